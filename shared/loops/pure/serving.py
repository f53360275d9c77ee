"""What an actor that serves clients does when they send no whole requests: drop parts, and sleep.

The twins of what `compiled` has under these names; `active` chooses what a process uses. A peer may
send millions of parts of no bytes in one message, and Python would make an object of each. What is
no whole request wakes nobody, so a sleeping actor's memory is looked at in between, and nothing
else of it is touched, as a turn of the whole actor would.
ZeroMQ is imported where it is used: most processes that load this have no sockets.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq

# seven numbers of up to twenty digits
STATM_BYTES = 256


def drop_parts(socket: zmq.Socket[bytes], most: int) -> int:
    """Receive at most `most` parts of the message under way and drop them; how many those were.

    Fewer than `most` were the last ones: it never goes on into the next message.
    """
    import zmq

    for count in range(most):
        if not socket.get(zmq.RCVMORE):
            return count
        socket.recv(zmq.NOBLOCK)
    return most


@cache
def addresses() -> tuple[int, int]:
    """Where the functions zmq_recv and zmq_getsockopt are; (0, 0) where they have no names."""
    # here and not above: clients load this file, and none of them calls this
    import ctypes

    from zmq.backend.cython import _zmq

    try:
        # pyzmq's wheels bring libzmq along or link it in; either way its own module knows the names
        library = ctypes.CDLL(_zmq.__file__)
        found = library.zmq_recv, library.zmq_getsockopt
    except (AttributeError, OSError):
        return 0, 0
    receive, get = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in found)
    return receive, get


def sleep_small(source: int, statm: int, most_pages: int, timeout_ms: int, look_ms: int) -> None:
    """Sleep until the descriptor `source` is ready, or `timeout_ms` are over.

    Ends early when, at a look each `look_ms`, this process has more than `most_pages` of its own:
    `statm` is its /proc/self/statm, open. Raises OSError where that cannot be read.
    """
    import select  # not every system that clients run on has all of it

    poll = select.poll()
    poll.register(source, select.POLLIN)
    while timeout_ms > 0:
        if poll.poll(min(timeout_ms, look_ms)):
            return
        timeout_ms -= look_ms
        if own_pages(statm) > most_pages:
            return


def own_pages(statm: int) -> int:
    """Resident pages of this process alone. From the beginning of the file, each time."""
    _, resident, shared, *_ = os.pread(statm, STATM_BYTES, 0).split()
    return int(resident) - int(shared)
