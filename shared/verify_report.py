"""What a check of a store found: the report, and the place where findings are gathered.

A problem breaks an invariant of the format; a note is worth knowing and breaks nothing. Kinds that
begin with `log-` say that the commit log itself is damaged: nothing can rebuild that.
"""

from __future__ import annotations

import msgspec

from penstock.shared.segment_files import Problem

# Enough to act on; one bad disk block can produce a million, which nobody reads.
MAX_LISTED = 1000


class QueueSummary(msgspec.Struct, frozen=True):
    """One queue; `messages` counts its records in the log."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int


class Report(msgspec.Struct, frozen=True):
    """The result of `verify_store`. `problem_count` may exceed the number of problems listed."""

    directory: str
    ok: bool
    log_damaged: bool
    clean: bool
    messages: int
    bytes: int
    segments: int
    topics: int
    log_start: int
    log_end: int
    blanks: int
    torn_tail_bytes: int
    queues: list[QueueSummary]
    problems: list[Problem]
    problem_count: int
    notes: list[str]
    seconds: float


class Findings:
    """Gathers problems, the first MAX_LISTED of them in full, and notes."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.log_damaged = False
        self.notes: list[str] = []

    def add(self, problem: Problem) -> None:
        self.problem_count += 1
        self.log_damaged |= problem.kind.startswith("log-")
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)

    def report(self, kind: str, place: tuple[str, int], position: int | None, detail: str) -> None:
        """A problem at a place, which is a file and a byte offset in it."""
        self.add(Problem(kind, place[0], place[1], position, detail))

    def note(self, text: str) -> None:
        self.notes.append(text)
