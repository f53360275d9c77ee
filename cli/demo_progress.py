"""Bars for the demo's long parts on a terminal's stderr; elsewhere a line for each quarter."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bars:
    """Several bars at once; each is known by its label."""

    def __init__(self) -> None:
        self._totals: dict[str, int | None] = {}
        self._quarters: dict[str, int] = {}
        self._tasks: dict[str, Any] = {}
        self._progress: Any = None

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description:>10}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, label: str, total: int | None) -> None:
        """A new bar; without a total it only shows that something goes on."""
        self._totals[label] = total
        self._quarters[label] = 0
        if self._progress is not None:
            self._tasks[label] = self._progress.add_task(label, total=total)
        elif total is None:
            self.say(f"{label}: started")

    def moved(self, label: str, done: int) -> None:
        if self._progress is not None:
            self._progress.update(self._tasks[label], completed=done)
            return
        total = self._totals[label]
        quarter = 4 * done // total if total else 0
        if quarter > self._quarters[label]:
            self._quarters[label] = quarter
            self.say(f"{label}: {done} of {total}")

    def done(self, label: str) -> None:
        if self._progress is not None:
            self._progress.update(self._tasks[label], total=1, completed=1)
        else:
            self.say(f"{label}: done")

    def say(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
