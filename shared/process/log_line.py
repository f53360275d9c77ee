"""A line for whoever watches a broker's standard error: when, who, and what.

    2026-11-21T10:08:10.632Z penstock writer: the disk is full

The time is UTC, to the millisecond, so that lines of several machines can be put together. Telling
is never worth an error: standard error may be a file on the full disk that the line is about.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime


def log_line(now_ms: int, who: str, text: str) -> None:
    """Print it. `who` is an actor, or the supervisor."""
    when = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    with suppress(OSError):
        # one write, so that lines of several processes do not mix
        sys.stderr.write(f"{when.replace('+00:00', 'Z')} penstock {who}: {text}\n")
        sys.stderr.flush()
