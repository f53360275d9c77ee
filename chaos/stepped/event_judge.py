"""Power failures at every event of a trace: each state that the disk may be in is started, caught
up, stopped, checked, and compared with what clients had been told by then.

Each different state is started once, with the promises of every moment at which it may be found.
A trace may end with damage; after that a state is repaired before it is started.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.chaos.history import Sent, Stored, check_acknowledged, check_order, read_stored
from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.event_trace import QUEUES, Trace
from penstock.chaos.stepped.replay import check_whole, in_another_boot, settle
from penstock.chaos.stepped.uncertain_disk import Image, UncertainDisk
from penstock.maintenance.repair import repair_store
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import remove_strays
from penstock.shared.store.lock import stopped_store
from penstock.shared.store.topics import load_topics

# One state of this many is started twice, to see that the second start changes nothing.
_TWICE = 8
# This many broken promises are enough to report of one trace.
_ENOUGH = 5


class Depth(NamedTuple):
    """How many states are examined after one event: all, if there are at most `few`; otherwise all
    states of the pieces that changed last, and `chosen` ones among all."""

    few: int
    chosen: int


class Judged(NamedTuple):
    """The results of one trace."""

    events: int
    states: int  # examined
    started: int  # different ones
    whole: int  # events after which all states were looked at
    wrong: list[str]


def judge_trace(
    trace: Trace, scratch: Path, dice: random.Random, depth: Depth, part: range | None = None
) -> Judged:
    """Crash at every event, or at those of a `part`; `scratch` is an empty directory."""
    part = part if part is not None else range(1, len(trace.events) + 1)
    judge = _Judge(scratch, trace)
    disk = UncertainDisk()
    wrong, states, whole = list(trace.wrong), 0, 0
    for number, event in enumerate(trace.events, 1):
        disk.take(event)
        judge.move_on(number)
        if number not in part:
            continue
        is_whole = disk.count() <= depth.few
        whole += is_whole
        possible = disk.images_of_youngest(depth.few, dice)
        if not is_whole:
            possible = chain(possible, disk.some_images(depth.chosen, dice))
        for image in possible:
            states += 1
            found = judge.wrong(image)
            if found:
                wrong += [f"after event {number}, {event.what}: {each}" for each in found]
                break
        if len(wrong) >= _ENOUGH:
            break
    remove_strays(judge.store, None)  # of starts that were refused
    return Judged(len(part), states, judge.started, whole, wrong)


class _Outcome(NamedTuple):
    """A state of the disk, started and stopped again: what it holds, and what is wrong with it."""

    stored: Stored
    queues: int
    wrong: list[str]


class _Judge:
    """Compares states of the disk with the promises of a moment."""

    def __init__(self, scratch: Path, trace: Trace) -> None:
        self._scratch = scratch
        self.store = scratch / "store"
        self._trace = trace
        self._config: Config = msgspec.structs.replace(
            trace.config, store_path_root_dir=str(self.store)
        )
        self._moment = 0
        self._acked: list[Sent] = []
        self._seen: list[Sent] = []
        self._known: dict[bytes, _Outcome] = {}
        self.started = 0

    def move_on(self, moment: int) -> None:
        """Go to a moment: all that clients were told before the next event is promised now."""
        trace, self._moment = self._trace, moment
        self._acked = self._due(trace.acked)
        self._seen = self._due(trace.seen)
        if moment == trace.repaired:
            self._known.clear()  # from here on a state is repaired first, so outcomes differ

    def _due(self, sent: Sequence[Sent]) -> list[Sent]:
        lost = self._trace.lost if self._repairs else ()
        return [
            each
            for each in sent
            if each.flushes <= self._moment and (each.queue_id, each.queue_offset) not in lost
        ]

    @property
    def _repairs(self) -> bool:
        return self._moment >= self._trace.repaired

    def wrong(self, image: Image) -> list[str]:
        """Which promises this state breaks, and how."""
        digest = image.digest()
        outcome = self._known.get(digest)
        if outcome is None:
            self.started += 1
            outcome = self._known[digest] = self._start(image)
        wrong = list(outcome.wrong)
        if self._moment >= self._trace.created and outcome.queues < QUEUES:
            wrong.append("the topic is gone")
        return [
            *wrong,
            *check_acknowledged(self._acked, outcome.stored, "which were acknowledged"),
            *check_acknowledged(self._seen, outcome.stored, "which a consumer saw"),
        ]

    def _start(self, image: Image) -> _Outcome:
        in_another_boot(image).write(self._scratch)
        try:
            if self._repairs and StorePaths(self.store).commit_log.is_dir():
                with stopped_store(self.store) as (paths, last_run):
                    repair_store(paths, self._config, ManualClock(), last_run)
            settle(self.store, self._config)
            outcome = self._look()
            if not outcome.wrong and self.started % _TWICE == 0:
                outcome.wrong.extend(self._again())
            return outcome
        except PenstockError as error:
            return _Outcome({}, QUEUES, [f"a start or a look is refused: {error}"])
        finally:
            for path in self._scratch.iterdir():
                shutil.rmtree(path)

    def _look(self) -> _Outcome:
        wrong = check_whole(self.store, self._config)
        stored, complaints = read_stored(str(self.store), TOPIC)
        queues = load_topics(StorePaths(self.store).topics).queues(TOPIC)
        return _Outcome(stored, queues, [*wrong, *complaints, *check_order(_messages(stored))])

    def _again(self) -> list[str]:
        """Check that a start of a whole store changes not a byte of RocketMQ's files."""
        before = _contents(self.store)
        settle(self.store, self._config)
        after = _contents(self.store)
        changed = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p)]
        return [f"a second start changes {path}" for path in sorted(changed)]


def _messages(stored: Stored) -> Stored:
    """The messages without the zeros that a repair has put in the place of lost ones."""
    return {
        queue: [body for body in bodies if body.strip(b"\0")] for queue, bodies in stored.items()
    }


def _contents(store: Path) -> dict[str, bytes]:
    """The contents of all files but Penstock's own, which name the last user of the store."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and path.parent.name != "penstock"
    }
