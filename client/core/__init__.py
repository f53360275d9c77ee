"""Producers, consumers and queries as state machines: bytes in, commands out.

May import `shared`. No sockets, no threads and no event loop, so that the blocking client, the
asyncio client and an actor that appends drive the same code.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, for the type alone
if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    """The log of clients: what happens while no call waits to be told.

    logging is imported with the first line: most programs that import a client never have one.
    """
    import logging

    return logging.getLogger("penstock")
