"""Waiting for one descriptor, whatever its number.

select(2) refuses descriptors above 1,023, and a program that embeds a broker, or has a thousand
connections, has them. poll(2) has no such bound.

Not known here: what is read, and from what.
"""

from __future__ import annotations

import select


def is_readable(descriptor: int, within_s: float | None) -> bool:
    """Whether a read returns at once, or will `within_s` seconds from now; None waits for ever.

    An end and an error count too: the read tells them.
    """
    return _is_ready(descriptor, select.POLLIN, within_s)


def wait_until_writable(descriptor: int) -> None:
    """For as long as it takes. An error ends it too: the write tells it."""
    _is_ready(descriptor, select.POLLOUT, None)


def is_abandoned(descriptor: int) -> bool:
    """Whether nobody reads any more what is written there: a pipe, or a terminal that is gone."""
    if not hasattr(select, "poll"):
        return False  # the next write tells it
    waiting = select.poll()
    waiting.register(descriptor, 0)  # errors are told unasked
    return bool(waiting.poll(0))


def _is_ready(descriptor: int, wanted: int, within_s: float | None) -> bool:
    if not hasattr(select, "poll"):
        return True  # Windows asks of sockets only: whoever reads waits as long as it takes
    waiting = select.poll()
    waiting.register(descriptor, wanted)
    # its milliseconds are a C int: a longer time ends after 24 days
    return bool(waiting.poll(None if within_s is None else min(within_s * 1000, 2**31 - 1)))
