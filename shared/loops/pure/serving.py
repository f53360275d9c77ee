"""What an actor asks a socket in each turn, and how it drops a message that has too many parts.

The twins of what `compiled` has under these names; `active` chooses what a process uses. A peer may
send millions of empty parts in one message, and Python would make an object of each. And pyzmq
makes an enum for each question: an actor asks several in each turn, and a single message takes two
turns of most actors.
ZeroMQ is imported where it is used: most processes that load this have no sockets.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has come. The question makes ZeroMQ process what its threads have reported,
    which its descriptor signals only once."""
    import zmq

    return bool(int(socket.get(zmq.EVENTS)) & int(zmq.POLLIN))


def drop_parts(socket: zmq.Socket[bytes], most: int) -> int:
    """Receive at most `most` parts of the current message and drop them. Returns their number.

    If that is less than `most`, the message is over: it never goes on into the next one.
    """
    import zmq

    for count in range(most):
        if not socket.get(zmq.RCVMORE):
            return count
        socket.recv(zmq.NOBLOCK)
    return most


@cache
def addresses() -> tuple[int, int]:
    """The addresses of zmq_recv and zmq_getsockopt; (0, 0) if they cannot be found by name."""
    # imported here, because clients load this file and never call this
    import ctypes

    from zmq.backend.cython import _zmq

    try:
        # pyzmq's wheels bring libzmq along or link it in; either way their own module has the names
        library = ctypes.CDLL(_zmq.__file__)
        found = library.zmq_recv, library.zmq_getsockopt
    except (AttributeError, OSError):
        return 0, 0
    receive, get = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in found)
    return receive, get
