"""What an actor asks a socket at each turn, and what it does with a message that has too many
parts: it drops them.

The twins of what `compiled` has under these names; `active` chooses what a process uses. A peer may
send millions of parts of no bytes in one message, and Python would make an object of each. And
pyzmq makes an enum for each question: an actor asks several at each turn, and a message that comes
alone takes two turns of most actors.
ZeroMQ is imported where it is used: most processes that load this have no sockets.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has come. ZeroMQ looks then at what its threads have said, which a
    descriptor tells of only once."""
    import zmq

    return bool(int(socket.get(zmq.EVENTS)) & int(zmq.POLLIN))


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
