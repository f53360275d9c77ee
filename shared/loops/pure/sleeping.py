"""The sleep of a quiet actor that serves clients: until traffic, or until its memory has grown.

The twin of what `compiled` has under the same name. What clients send and what becomes no request
wakes nobody, so memory is looked at in between, in which nothing else of the actor is touched: a
turn of the whole actor costs thirty times as much.
"""

from __future__ import annotations

import os
import select

# seven numbers of up to twenty digits
STATM_BYTES = 256


def sleep_small(source: int, statm: int, most_pages: int, timeout_ms: int, look_ms: int) -> None:
    """Sleep until the descriptor `source` is ready, or `timeout_ms` are over.

    Ends early when, at a look each `look_ms`, this process has more than `most_pages` of its own:
    `statm` is its /proc/self/statm, open. Raises OSError where that cannot be read.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while timeout_ms > 0:
        if poll.poll(min(timeout_ms, look_ms)):
            return
        timeout_ms -= look_ms
        if own_pages(statm) > most_pages:
            return


def own_pages(statm: int) -> int:
    """Resident pages of this process alone. The file is read anew, whatever was read before."""
    _, resident, shared, *_ = os.pread(statm, STATM_BYTES, 0).split()
    return int(resident) - int(shared)
