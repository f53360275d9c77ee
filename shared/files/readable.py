"""Waiting for one descriptor, whatever its number.

select(2) refuses descriptors above 1,023, which occur in a program that embeds a broker or has a
thousand connections. poll(2) has no such limit.

This file does not know what is read, and from what.
"""

from __future__ import annotations

import select


def is_readable(descriptor: int, within_s: float | None) -> bool:
    """Whether a read returns at once, or will `within_s` seconds from now; None waits for ever.

    An end and an error count too: the read reports them.
    """
    return _is_ready(descriptor, select.POLLIN, within_s)


def wait_until_writable(descriptor: int) -> None:
    """Wait as long as it takes. An error ends the wait, too: the write reports it."""
    _is_ready(descriptor, select.POLLOUT, None)


def is_abandoned(descriptor: int) -> bool:
    """Whether the reader of what is written there is gone: a pipe's, or a terminal."""
    if not hasattr(select, "poll"):
        return False  # the next write reports it
    waiting = select.poll()
    waiting.register(descriptor, 0)  # poll reports errors in any case
    return bool(waiting.poll(0))


def _is_ready(descriptor: int, wanted: int, within_s: float | None) -> bool:
    if not hasattr(select, "poll"):
        return True  # Windows can ask only about sockets: the read then waits as long as it takes
    waiting = select.poll()
    waiting.register(descriptor, wanted)
    # its milliseconds are a C int: a longer wait ends after 24 days
    return bool(waiting.poll(None if within_s is None else min(within_s * 1000, 2**31 - 1)))
