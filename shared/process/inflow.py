"""What connections have sent and nobody has taken: the memory that a message without an end costs.

ZeroMQ hands out a message when all of it is there. Until then it keeps what has come, however much
and in however many parts: a part of no bytes takes 2 on the wire and 64 in memory. ZeroMQ does not
say what it keeps, so two others are asked. The C library says how much memory is in use. The kernel
says how many bytes each TCP connection has received; those of requests that were taken are
subtracted. A connection has sent too much in each of these states:

    all whole requests are taken, and more than UNDER_WAY_BYTES were sent beyond them
    the same, but memory has grown by SPARE_BYTES and PER_BYTE times what was sent: empty parts
    memory has grown by QUEUED_BYTES: clients are faster, or very many keep a little each

Then the connection with the most bytes that were not taken is closed.

An incomplete request wakes no actor, but ZeroMQ's thread works to receive it. So each time that its
process has worked for WORK_MS, an actor takes a turn and looks, even if it was asleep.

Unless memory has grown, a look reads one short file of the kernel. That file does not show a flood
that fills memory which is free but still the process's, as after an earlier flood: so the C library
is asked now and then, too. Connections over a socket file are this user's own; the kernel does not
count their bytes, and they are never closed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket as sockets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import zmq

from penstock.shared.process.malloc_tuning import in_use_bytes, own_bytes

UNDER_WAY_BYTES = 128 << 20
QUEUED_BYTES = 512 << 20
SPARE_BYTES, PER_BYTE = 32 << 20, 8
# Time between two looks, and the growth of memory at which a look also asks the C library.
LOOK_MS = 10
GROWN_BYTES = 8 << 20
# How often to ask the C library while the process has not grown: after ASK_MS, and ASK_PER_MS for
# each ms that the last question took. It walks all free pieces, which takes some tens of
# microseconds, or some ms where there are many.
ASK_MS, ASK_PER_MS = 20, 100
# The kernel counts in ticks of 10 ms at most. Even at six gigabytes a second, two of them bring
# less than UNDER_WAY_BYTES.
WORK_MS = 10
# A connection with fewer bytes under way is not closed, for an honest frame may be this long. The
# second limit is for when memory runs out.
LEAST_BYTES, LEAST_AT_LAST_BYTES = 512 << 10, 4 << 10
# Counts of this many closed connections may stay before they are dropped.
_SPARE_COUNTS = 1000
_TCP_INFO_BYTES, _RECEIVED_AT = 136, 128  # struct tcp_info, tcpi_bytes_received


def wake_by_work(work_ms: int) -> None:
    """Send this process a signal, which ends its sleep or its next one, each time that it has
    worked for this long; 0 ends that. It needs the descriptor of `signal.set_wakeup_fd`.

    The kernel measures the work, system calls of all threads included. An idle process is left
    alone: looking at memory by the clock would be most of what an idle broker does.
    """
    signal.signal(signal.SIGPROF, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF,))
    signal.setitimer(signal.ITIMER_PROF, work_ms / 1000, work_ms / 1000)


def thread_ms() -> int:
    """Processor time of this thread. It stands still while others have the processors."""
    return time.thread_time_ns() // 1_000_000


def process_ms() -> int:
    """Processor time of all threads of this process."""
    return time.process_time_ns() // 1_000_000


class _Waiting(NamedTuple):
    """Bytes of a connection that nobody has taken. Sorted by its first field, the size."""

    size: int
    handle: int
    inode: int


class Inflow:
    """The connections of one serving socket."""

    def __init__(
        self,
        monotonic_ms: Callable[[], int],
        closed: Callable[[int], None],
        worked_ms: Callable[[], int] = thread_ms,
    ) -> None:
        """`closed` is told how many bytes of a closed connection had not been taken."""
        self._monotonic_ms = monotonic_ms
        # The cost of a look is measured as its own work. By the clock, a thread that lost its
        # processor in the middle of a look would then rest ten or a hundred times as long, while a
        # flood comes.
        self._worked_ms = worked_ms
        self._closed = closed
        self._next_ms = 0
        # After a look that took long, the next one waits until the process has worked this long, or
        # is this large, or until this time.
        self._rest_to = (0, 0, 0)
        self._calm = in_use_bytes()  # memory in use that is not clients'
        self._ask_ms = 0
        # memory at the last look that found no flood
        self._seen = own_bytes()
        self._used = self._calm
        # Counted by inode, because a descriptor's number is reused as soon as it is closed.
        # a connection's name -> its socket's inode -> bytes of the requests that were taken
        self._inodes: dict[bytes, int] = {}
        self._taken: dict[int, int] = {}
        self._connections = 0
        self._grows = False
        # inodes of closed connections that ZeroMQ has not released yet
        self._closing: set[int] = set()

    def took(self, peer: zmq.Frame, size: int) -> None:
        """A request of `size` bytes was taken; `peer` is the frame with its connection's name."""
        name = peer.bytes
        inode = self._inodes.get(name)
        if inode is None:
            inode = self._inodes[name] = _inode_of(peer)
            if len(self._inodes) > self._connections + _SPARE_COUNTS:
                self._forget(set(_sockets()))
        self._taken[inode] = self._taken.get(inode, 0) + size

    def look(self, drained: bool, held_bytes: int) -> bool:
        """Close the connection that has too much under way. `drained` says that no whole request is
        waiting, `held_bytes` how much the actor itself keeps of requests and answers.

        Returns whether memory grows, so that the caller looks again soon.
        """
        now_ms = self._monotonic_ms()
        if now_ms < self._next_ms:
            return self._grows  # a doorbell in between must not make the sleep long again
        self._next_ms = now_ms + LOOK_MS
        rest_ms, rest_bytes, rest_to_ms = self._rest_to
        if now_ms < rest_to_ms and process_ms() < rest_ms and own_bytes() < rest_bytes:
            return self._grows
        began_ms = self._worked_ms()
        own = own_bytes()
        self._seen = min(self._seen, own)
        self._grows = own >= self._seen + GROWN_BYTES
        if not self._grows and now_ms < self._ask_ms:
            return False
        used = in_use_bytes()
        self._ask_ms = now_ms + ASK_MS + ASK_PER_MS * (self._worked_ms() - began_ms)
        self._used = min(self._used, used)
        self._grows = self._grows or used >= self._used + GROWN_BYTES
        if not self._grows:
            return False
        grown = used - held_bytes - self._calm
        self._calm += min(0, grown)
        # While whole requests wait, nobody can say whose the growth is. If it counted as nobody's,
        # a client that has sent everything it means to send would never be closed.
        if grown < SPARE_BYTES or (not self._close_one(grown, drained) and drained):
            self._seen, self._used = own, used
        # A look takes long where there are many connections or many free pieces. So looks get a
        # tenth of the process's work, which on a busy machine is less than a tenth of the time. A
        # flood is work, too; but a quick one sends 200 MiB meanwhile, so its size also ends the
        # rest.
        took_ms = self._worked_ms() - began_ms
        self._rest_to = process_ms() + 9 * took_ms, own + SPARE_BYTES, now_ms + 90 * took_ms
        return True

    def _close_one(self, grown: int, drained: bool) -> bool:
        """Close the largest if all connections together have too much. Returns whether they do."""
        waiting = sorted(self._waiting(), reverse=True)
        largest = waiting[0].size if waiting else 0
        if drained and largest < LEAST_AT_LAST_BYTES:
            self._calm += grown  # it is the actor's own memory
            return False
        sent = sum(each.size for each in waiting)
        is_flood = sent > UNDER_WAY_BYTES or grown > SPARE_BYTES + PER_BYTE * sent
        if grown > QUEUED_BYTES:
            least = LEAST_AT_LAST_BYTES
        elif drained and is_flood:
            least = LEAST_BYTES
        else:
            return False
        # one at a time: what that frees may be enough
        if largest >= least and waiting[0].inode not in self._closing:
            self._closing.add(waiting[0].inode)
            _close(waiting[0])
            self._closed(largest)
        return True

    def _waiting(self) -> Iterator[_Waiting]:
        found = _sockets()
        self._forget(set(found))
        for inode, handle in found.items():
            size = _received(handle) - self._taken.get(inode, 0)
            if size > 0:
                yield _Waiting(size, handle, inode)

    def _forget(self, there: set[int]) -> None:
        """Drop the counts of connections that do not exist any more."""
        self._connections = len(there)
        self._closing &= there
        self._taken = {inode: size for inode, size in self._taken.items() if inode in there}
        self._inodes = {name: inode for name, inode in self._inodes.items() if inode in there}


def _inode_of(frame: zmq.Frame) -> int:
    """The inode of the socket that a frame came by; 0 when it is closed already."""
    try:
        return os.fstat(int(frame.get(zmq.SRCFD))).st_ino
    except (zmq.ZMQError, OSError):
        return 0


def _sockets() -> dict[int, int]:
    """This process's sockets: inode -> descriptor."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(name)
    return found


_libc = ctypes.CDLL(None)
_info = ctypes.create_string_buffer(_TCP_INFO_BYTES)
_unread = ctypes.c_int()
_FIONREAD = 0x541B


def _received(handle: int) -> int:
    """Bytes that have come by a TCP connection and that ZeroMQ has read; 0 for another socket."""
    size = ctypes.c_uint(_TCP_INFO_BYTES)
    level, option = sockets.IPPROTO_TCP, sockets.TCP_INFO
    if _libc.getsockopt(handle, level, option, _info, ctypes.byref(size)):
        return 0
    if size.value < _TCP_INFO_BYTES or _libc.ioctl(handle, _FIONREAD, ctypes.byref(_unread)):
        return 0  # an old kernel, or one that listens
    received: int = struct.unpack_from("=Q", _info, _RECEIVED_AT)[0]
    return received - _unread.value


def _close(waiting: _Waiting) -> None:
    """Shut down the connection: ZeroMQ reads its end, and drops what it has of the message."""
    try:
        # ZeroMQ's thread may close the descriptor at any moment, and its number may be reused. So
        # it is duplicated first: the duplicate stays the same socket, and its inode is compared.
        handle = os.dup(waiting.handle)
    except OSError:
        return
    with suppress(OSError), sockets.socket(fileno=handle) as peer:
        if os.fstat(handle).st_ino != waiting.inode:
            return  # perhaps an honest client's by now
        # a reset: a client that waits for room in its window learns of it at once
        peer.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        peer.shutdown(sockets.SHUT_RDWR)
        # otherwise ZeroMQ would also read what the kernel holds for it: some million parts
        _libc.recv(handle, None, ctypes.c_size_t(1 << 30), sockets.MSG_TRUNC | sockets.MSG_DONTWAIT)
