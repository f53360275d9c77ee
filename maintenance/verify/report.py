"""What a check of a store found: the report, and the collection of findings.

A problem breaks an invariant of the format; a note is worth knowing and breaks nothing. Kinds that
begin with `log-` say that the commit log itself is damaged, which nothing can rebuild.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.shared.files.segments import Problem
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away, quoted, repair_command

# Enough to act on; one bad disk block can cause a million, which nobody reads.
MAX_LISTED = 1000


class QueueSummary(msgspec.Struct, frozen=True):
    """One queue; `messages` counts its records in the log. The offsets [min_offset, max_offset) are
    those of log and files together, so there may be more of them than messages."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of `verify_store`. `problem_count` may exceed the number of problems listed.

    `clean` is RocketMQ's word: there is no `abort`. `log_start` and `log_end` are log offsets.
    """

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
    torn_tail_bytes: int  # at the log's end, with nothing whole after them
    queues: list[QueueSummary]
    problems: list[Problem]
    problem_count: int
    notes: list[str]
    advice: list[str]  # commands that repair it
    seconds: float


# What a repair corrects: files that are wrong themselves, and bytes of the log that are no record.
_REPAIRED = frozenset({"stray-file", "empty-segment", "checkpoint-size", "queue-lost"})
_REPAIRED_LEADS = ("log-", "queue-segment-")


def _is_of(part: str, kind: str) -> bool:
    """Whether a rebuild of this part removes the problem. Missing queue offsets stay missing.

    Kinds begin with the part that they are about, so a new kind needs no table here.
    """
    return kind.startswith(f"{part}-") and kind != "queue-offset"


class Findings:
    """Collects problems, the first MAX_LISTED of them in full, and notes."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.log_damaged = False
        self.notes: list[str] = []
        self._kinds: set[str] = set()

    def add(self, problem: Problem) -> None:
        """Add a problem. Past MAX_LISTED it is only counted, but its kind still leads to advice."""
        self.problem_count += 1
        self._kinds.add(problem.kind)
        self.log_damaged |= problem.kind.startswith("log-")
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)

    def report(self, kind: str, place: tuple[str, int], position: int | None, detail: str) -> None:
        """Add a problem at a place, which is a file and a byte offset in it."""
        self.add(Problem(kind, place[0], place[1], position, detail))

    def advice(self, paths: StorePaths) -> list[str]:
        """The commands that correct what was found, each as it can be typed."""
        kinds = self._kinds
        found = [f"rm {quoted(paths.geometry)}"] if "geometry" in kinds else []
        parts = [part for part in ("queue", "index") if any(_is_of(part, kind) for kind in kinds)]
        # a record that names another's slot is damage: queues made from it would be no better
        is_misplaced = "queue-offset" in kinds and "queue" in parts
        is_repaired = any(kind.startswith(_REPAIRED_LEADS) for kind in kinds) or is_misplaced
        # A repair makes queues and index again at its end, so with it no rebuild is advised.
        if kinds & _REPAIRED or is_repaired:
            return [*found, repair_command(paths.root)]
        if parts:
            only = {"queue": " --queues", "index": " --index"}[parts[0]] if len(parts) == 1 else ""
            found.append(f"penstock store rebuild {quoted(paths.root)}{only}")
        if "checkpoint-ahead" in kinds:
            found.append(move_away(paths.checkpoint))
        return found

    def join(self, problems: Iterable[Problem], count: int, kinds: Iterable[str]) -> None:
        """Add what a part of the check has found: its first problems, and their total number."""
        listed = list(problems)
        for problem in listed:
            self.add(problem)
        self.problem_count += count - len(listed)
        for kind in kinds:
            self._kinds.add(kind)
            self.log_damaged |= kind.startswith("log-")

    @property
    def kinds(self) -> list[str]:
        """The kinds of all problems, including those that are not listed."""
        return sorted(self._kinds)

    def note(self, text: str) -> None:
        """Add a note. Notes leave the store `ok`."""
        self.notes.append(text)
