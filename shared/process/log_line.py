"""A line for whoever watches a broker's standard error: when, who, and what.

    2026-11-21T10:08:10.632Z penstock writer: the disk is full

With PENSTOCK_LOG=json, which `penstock up --log json` sets for all its processes, an object:

    {"time":"2026-11-21T10:08:10.632Z","level":"info","actor":"writer","generation":1,
     "offset":1048576,"message":"the disk is full"}

The time is UTC, to the millisecond, so that lines of several machines can be put together. Telling
is never worth an error: standard error may be a file on the full disk that the line is about.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import UTC, datetime

LOG_VARIABLE = "PENSTOCK_LOG"


def log_line(
    now_ms: int,
    who: str,
    text: str,
    *,
    level: str = "info",
    generation: int | None = None,
    offset: int | None = None,
) -> None:
    """Print it. `who` is an actor, or the supervisor; `generation` is the actor's, and `offset` how
    far the log is written, where that is known. Only JSON has these two and the level."""
    when = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    when = when.replace("+00:00", "Z")
    if os.environ.get(LOG_VARIABLE) == "json":
        import json  # most brokers write text

        row = {"time": when, "level": level, "actor": who, "generation": generation}
        line = json.dumps({**row, "offset": offset, "message": text}, separators=(",", ":"))
    else:
        line = f"{when} penstock {who}: {text}"
    with suppress(OSError):
        # one write, so that lines of several processes do not mix
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
