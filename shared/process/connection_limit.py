"""How many connections an endpoint takes. Beyond that new ones wait outside, and no other notices.

ZeroMQ takes every connection that comes. When its process may open no more files it takes none,
burns a core over those that wait, and the process can open no segment either. So the endpoint
closes: then the kernel drops the first packet of a new TCP connection (its client's kernel sends it
again), and the socket's file has another name. Connections that are there stay. A client outside is
not answered, and its timeout says so.

    open          the soft limit of open files is below the hard one: connections reach it first
    closed        it is as before: room for those that are in the kernel's queue, and for the store
    open again    when one below the lower limit has gone

What is counted are descriptors and not clients, because descriptors are what runs out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.shared.files.descriptors import on_shortage
from penstock.shared.process.listeners import backlog

# For files of the store: the reader may have sixteen segments and as many queues' files open.
LEAST_RESERVED, MOST_RESERVED = 32, 256
# however few files there are
LEAST_CONNECTIONS = 8
# Between two tries to open.
LOOK_MS = 100
# Linux's numbers, which Python's socket module does not have.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# one instruction of classic BPF: take 0 bytes of the packet
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
_IPC = "ipc://"
_NO_FILE = 1 << 30


class ConnectionLimit:
    """The listening sockets of one actor: endpoint -> descriptor. Open at first.

    ZeroMQ takes connections and says nothing of it, so `tend` looks at descriptors, once a cycle of
    the actor. A few more than the limit may have come by then, and what the actor opens before that
    look gets one of the spare files.
    """

    def __init__(
        self,
        listening: Mapping[str, int],
        max_connections: int,
        report: Callable[[str], None],
        listen: Callable[[int, bool], None],
    ) -> None:
        """`listen` is told which descriptors are ready when a client connects, and from when on
        they must not be looked at: a connection that is not taken makes them ready for ever."""
        self._listening = dict(listening)
        self._report = report
        self._listen = listen
        self._open = True
        # whether the soft limit is the hard one, and spare files can be had
        self._lifted = False
        self._look_ms = 0
        # The hard limit of open files; the soft one while open; and the lowest free descriptor at
        # which it closes. All are numbers of descriptors.
        self._files = self._fewer = self._limit = 0
        if self._listening:
            self._measure(max_connections)
        self._admit()  # a predecessor may have closed it

    def _measure(self, max_connections: int) -> None:
        self._files = self._fewer = _most_files()
        # what the actor has open before any client comes
        in_use = self._lowest_free()
        # Linux lets one more wait than the backlog says.
        waiting = len(self._listening) * (backlog() + 1)
        spare = waiting + min(max(self._files // 8, LEAST_RESERVED), MOST_RESERVED)
        # Only where files run out before connections do. Spare descriptors, opened one by one,
        # would keep the same files free, and took a new writer 80 ms; a lower limit is one call.
        if self._files < in_use + max_connections + spare:
            self._fewer = max(self._files - spare, in_use + LEAST_CONNECTIONS)
        self._limit = min(in_use + max_connections, self._fewer)
        self.most = self._limit - in_use
        _limit_files(self._fewer)
        # Connections may reach the limit while the actor works: a file that it opens then takes one
        # of those spared, and the next look closes the endpoint.
        on_shortage(self._lift)

    def tend(self, now_ms: int) -> None:
        """Open or close. Costs two system calls; to be called whenever somebody came."""
        lowest = self._lowest_free()
        if self._open and lowest >= self._limit:
            self._open = False
            # First: what waits in the kernel will be taken all the same, and needs the spare files.
            self._lift()
            for endpoint, handle in self._listening.items():
                _keep_out(endpoint, handle)
                self._listen(handle, False)
            self._report(f"{self.most} connections are as many as it takes; others wait")
        elif self._open and self._lifted:
            self._lower()  # whoever took the last file has gone before the look
        elif not self._open and now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            if lowest < self._limit:
                self._open = True
                self._lower()
                self._admit()

    def _lift(self) -> bool:
        """Give out the spare files; whether there are any."""
        self._lifted = self._files > self._fewer
        _limit_files(self._files)
        return self._lifted

    def _lower(self) -> None:
        self._lifted = False
        _limit_files(self._fewer)

    def _admit(self) -> None:
        for endpoint, handle in self._listening.items():
            _let_in(endpoint, handle)
            self._listen(handle, True)

    def _lowest_free(self) -> int:
        """The lowest free descriptor: as many are in use at least. New ones fill holes first.

        Two system calls, whatever the number of connections. -1 where nothing listens, and no
        limit is as low as that.
        """
        for listening in self._listening.values():
            try:
                handle = os.dup(listening)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                return _NO_FILE  # none is free below the soft limit
            os.close(handle)
            return handle
        return -1


def raise_open_files_limit() -> None:
    """A client is a file, and so is a queue's segment: take as many as this user may have."""
    _limit_files(_most_files())


def _most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _limit_files(count: int) -> None:
    # The soft limit alone: an ordinary user could not raise the hard one again.
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, _most_files()))


def _let_in(endpoint: str, handle: int) -> None:
    if endpoint.startswith(_IPC):
        path = Path(endpoint.removeprefix(_IPC))
        if _closed(path).exists():
            _closed(path).rename(path)
        return
    try:
        _set_option(handle, _SO_DETACH_FILTER, struct.pack("i", 0))
    except OSError as error:
        if error.errno != errno.ENOENT:  # it had no filter
            raise


def _keep_out(endpoint: str, handle: int) -> None:
    if endpoint.startswith(_IPC):
        path = Path(endpoint.removeprefix(_IPC))
        path.rename(_closed(path))
        return
    # a name of its own, because its address alone would not keep it alive until the kernel has it
    instruction = ctypes.create_string_buffer(_DROP, len(_DROP))
    _set_option(handle, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(instruction)))


def _closed(path: Path) -> Path:
    return path.with_suffix(".full")


def _set_option(handle: int, name: int, value: bytes) -> None:
    # a socket object would need a descriptor of its own, and there may be none
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setsockopt(handle, socket.SOL_SOCKET, name, value, len(value)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
