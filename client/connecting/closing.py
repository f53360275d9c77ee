"""Closes the socket of a client that has no thread, whatever happens to the client.

When ZeroMQ's context is collected, it waits for its sockets. In a reference cycle it may be
collected before them, and would wait for ever. So both are held here until the client is closed or
collected, or its process ends.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.connecting.lost_connection import LostConnection


def closer(
    owner: object, name: str, lost: LostConnection, socket: Any, context: Any
) -> Callable[[], None]:
    """A function that closes all three. If the owner forgets to call it, they are closed with a
    warning when the owner is collected."""
    left = weakref.finalize(owner, _close_left, name, lost, socket, context, os.getpid())

    def close() -> None:
        if left.detach() is not None:
            _close(lost, socket, context)

    return close


def _close(lost: LostConnection, socket: Any, context: Any) -> None:
    # RuntimeError: an event loop that is closed cannot be told
    with suppress(RuntimeError):
        lost.close()
    with suppress(RuntimeError):
        # linger=0: nobody wants an answer to what is still to be sent
        socket.close(linger=0)
    context.term()


def _close_left(name: str, lost: LostConnection, socket: Any, context: Any, pid: int) -> None:
    _close(lost, socket, context)
    if pid == os.getpid():
        warnings.warn(f"unclosed <{name}>", ResourceWarning, stacklevel=1)
