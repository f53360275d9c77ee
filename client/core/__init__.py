"""Producers, consumers and queries as state machines: bytes in, commands out.

May import `shared`. There are no sockets, threads or event loop here, so that the blocking client,
the asyncio client and an actor that appends can all drive the same code.
"""

from __future__ import annotations

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    """The clients' log, for what happens while no call is waiting that could raise it.

    logging is imported with the first line logged: most programs never log one.
    """
    import logging

    return logging.getLogger("penstock")
