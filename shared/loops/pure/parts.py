"""Drop parts of a message that has too many. The twin of what `compiled` has under this name;
which of the two a process uses is said in `active`. Most who load this have no sockets, so
ZeroMQ is loaded where it is used."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zmq


def drop_parts(socket: zmq.Socket[bytes], most: int) -> int:
    """Receive parts of the message under way and drop them, at most so many; how many."""
    import zmq

    for count in range(most):
        if not socket.get(zmq.RCVMORE):
            return count
        socket.recv(zmq.NOBLOCK)
    return most


@cache
def addresses() -> tuple[int, int]:
    """Where the functions zmq_recv and zmq_getsockopt are; (0, 0) where they have no names."""
    import ctypes  # clients load this file, and none of them comes here

    from zmq.backend.cython import _zmq

    try:
        # looked for in the module and in the libraries that it brings
        library = ctypes.CDLL(_zmq.__file__)
        found = library.zmq_recv, library.zmq_getsockopt
    except (AttributeError, OSError):
        return 0, 0
    receive, get = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in found)
    return receive, get
