"""Limits the connections of an endpoint. Clients beyond the limit wait; those inside do not notice.

ZeroMQ accepts every connection that comes. When its process may open no more files it accepts none,
burns a core over those that wait, and the process cannot open a segment either. So the endpoint
closes. On TCP the kernel then drops the first packet of a new connection, and the client's kernel
sends it again; a socket file is renamed. Existing connections stay. A client outside gets no
answer, and its timeout says so.

    open          the soft limit of open files is below the hard one: connections reach it first
    closed        the soft limit is the hard one: room for the kernel's queue and for the store
    open again    when the number of connections has fallen below the lower limit

It counts descriptors and not clients, because descriptors are what runs out.
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

# Files spared for the store: the reader may open sixteen segments and as many queues' files.
LEAST_RESERVED, MOST_RESERVED = 32, 256
# An endpoint takes at least this many, however few files the process may open.
LEAST_CONNECTIONS = 8
# Time between two tries to open again.
LOOK_MS = 100
# Linux's numbers, which Python's socket module does not have.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_HOPS = ((socket.IPPROTO_IP, 21), (socket.IPPROTO_IPV6, 73))  # IP_MINTTL, IPV6_MINHOPCOUNT
# one instruction of classic BPF: take 0 bytes of the packet
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
_IPC = "ipc://"
_NO_FILE = 1 << 30


class ConnectionLimit:
    """The listening sockets of one actor: endpoint -> descriptor. Open at first.

    ZeroMQ does not tell when it accepts a connection, so `tend` looks at descriptors once in each
    cycle of the actor. By then there may be a few connections more than the limit; a file that the
    actor opens before that look gets one of the spare descriptors.
    """

    def __init__(
        self,
        listening: Mapping[str, int],
        max_connections: int,
        report: Callable[[str], None],
        listen: Callable[[int, bool], None],
    ) -> None:
        """`listen` is told which descriptors become ready when a client connects, and when to stop
        watching them: a connection that nobody accepts makes them ready for ever."""
        self._listening = dict(listening)
        self._report = report
        self._listen = listen
        self._open = True
        # whether the soft limit is the hard one, so that spare files can be opened
        self._lifted = False
        self._look_ms = 0
        # The hard limit of open files; the soft limit while open; and the lowest free descriptor at
        # which the endpoint closes. All are numbers of descriptors.
        self._files = self._fewer = self._limit = 0
        if self._listening:
            self._measure(max_connections)
        self._admit()  # a predecessor may have closed it

    def _measure(self, max_connections: int) -> None:
        self._files = self._fewer = _most_files()
        # what the actor has open before any client connects
        in_use = self._lowest_free()
        # Linux lets one more wait than the backlog says.
        waiting = len(self._listening) * (backlog() + 1)
        spare = waiting + min(max(self._files // 8, LEAST_RESERVED), MOST_RESERVED)
        # Lowered only where files run out before connections do. Spare descriptors, opened one by
        # one, would reserve as many files but cost a new writer 80 ms; a lower limit is one call.
        if self._files < in_use + max_connections + spare:
            self._fewer = max(self._files - spare, in_use + LEAST_CONNECTIONS)
        self._limit = min(in_use + max_connections, self._fewer)
        self.most = self._limit - in_use
        _limit_files(self._fewer)
        # The limit may be reached while the actor works: a file that it opens then takes a spare
        # one, and the next look closes the endpoint.
        on_shortage(self._lift)

    def tend(self, now_ms: int) -> None:
        """Open or close. Costs two system calls; call it whenever a client may have connected."""
        lowest = self._lowest_free()
        if self._open and lowest >= self._limit:
            self._open = False
            # First: ZeroMQ still accepts what waits in the kernel, and that needs the spare files.
            self._lift()
            for endpoint, handle in self._listening.items():
                _keep_out(endpoint, handle)
                self._listen(handle, False)
            self._report(f"{self.most} connections are as many as it takes; others wait")
        elif self._open and self._lifted:
            self._lower()  # the connection that took the last file has gone before this look
        elif not self._open and now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            if lowest < self._limit:
                self._open = True
                self._lower()
                self._admit()

    def _lift(self) -> bool:
        """Make the spare files available. Returns whether there are any."""
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
        """The lowest free descriptor. At least as many are in use, as new ones fill gaps first.

        Two system calls, whatever the number of connections. -1, below any limit, where nothing
        listens.
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
    """Each client and each segment of a queue is a file: allow as many as this user may have."""
    _limit_files(_most_files())


def _most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _limit_files(count: int) -> None:
    # Only the soft limit: an ordinary user could not raise the hard one again.
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, _most_files()))


def _let_in(endpoint: str, handle: int) -> None:
    if endpoint.startswith(_IPC):
        path = Path(endpoint.removeprefix(_IPC))
        if _closed(path).exists():
            _closed(path).rename(path)
        return
    _want_hops(handle, 0)
    try:
        _set_option(handle, socket.SOL_SOCKET, _SO_DETACH_FILTER, struct.pack("i", 0))
    except OSError as error:
        if error.errno != errno.ENOENT:  # it had no filter
            raise


def _keep_out(endpoint: str, handle: int) -> None:
    if endpoint.startswith(_IPC):
        path = Path(endpoint.removeprefix(_IPC))
        path.rename(_closed(path))
        return
    # in a variable: the address alone would not keep the buffer alive until the kernel has read it
    instruction = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    try:
        _set_option(handle, socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except PermissionError:
        # Some kernels (6.18 is one) want CAP_NET_ADMIN for a filter, but not for this: packets
        # begin with 64 hops as a rule, or 128, and 255 is the most that there can be. What comes
        # with 255 gets in; against that only a filter helps.
        _want_hops(handle, 255)


def _closed(path: Path) -> Path:
    return path.with_suffix(".full")


def _want_hops(handle: int, least: int) -> None:
    """Have the kernel drop packets that may still travel over fewer hops than these."""
    for level, name in _HOPS:
        try:
            _set_option(handle, level, name, struct.pack("i", least))
        except OSError as error:
            # a socket of IPv4 has not both, and a kernel that is not Linux's perhaps none
            if error.errno != errno.ENOPROTOOPT:
                raise


def _set_option(handle: int, level: int, name: int, value: bytes) -> None:
    # a socket object would need a descriptor of its own, and there may be none
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setsockopt(handle, level, name, value, len(value)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
