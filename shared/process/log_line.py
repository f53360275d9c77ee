"""A line for whoever watches a broker's standard error: when, who, and what.

    2026-11-21T10:08:10.632Z penstock writer: the disk is full

With PENSTOCK_LOG=json, which `penstock up --log json` sets for all its processes, an object:

    {"time":"2026-11-21T10:08:10.632Z","level":"info","actor":"writer","generation":1,
     "offset":1048576,"message":"the disk is full"}

The time is UTC, to the millisecond, so that lines of several machines can be merged. A line that
cannot be written is dropped: standard error may be a file on the full disk that the line is about.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from penstock.shared.errors import PenstockError

LOG_VARIABLE = "PENSTOCK_LOG"


class Report(Protocol):
    """Prints a line; `about` are the other arguments of `log_line`."""

    def __call__(self, line: str, /, **about: Any) -> None: ...


class LoggedLines(logging.Handler):
    """Prints what this process reports through `logging`, as lines like the others."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def install(self) -> None:
        """Replace the handler that a fork has from its parent."""
        logging.getLogger("penstock").handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())


def writes_objects() -> bool:
    """Whether each line is an object for programs."""
    return os.environ.get(LOG_VARIABLE) == "json"


def log_line(
    now_ms: int,
    who: str,
    text: str,
    *,
    level: str = "info",
    generation: int | None = None,
    offset: int | None = None,
    actor: str = "",
) -> None:
    """Print it. `who` is an actor or the supervisor; `actor` is whom the line is about, where that
    is another. `generation` is that actor's, and `offset` the end of the written log, where these
    are known. Only JSON shows `actor`, `generation`, `offset` and `level`."""
    when = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    when = when.replace("+00:00", "Z")
    if writes_objects():
        import json  # most brokers write text

        row = {"time": when, "level": level, "actor": actor or who, "generation": generation}
        line = json.dumps({**row, "offset": offset, "message": text}, separators=(",", ":"))
    else:
        line = f"{when} penstock {who}: {text}"
    with suppress(OSError):
        # one write, so that lines of several processes do not mix
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def log_error(now_ms: int, who: str, error: BaseException, **about: Any) -> None:
    """Print why a process ends: a known error in its own words, a defect with its traceback."""
    known = isinstance(error, PenstockError | OSError)
    text = str(error) if known else "".join(traceback.format_exception(error))
    log_line(now_ms, who, text, level="error", **about)
