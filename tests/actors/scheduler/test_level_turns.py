"""A delay level and a plain model of it: any entries, clocks, outcomes and expiry; and several
levels, none of which waits for all of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.actors.scheduler.copies import Batch, put_frames
from penstock.actors.scheduler.levels import Level
from penstock.actors.scheduler.surroundings import Doubt
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.messaging.delayed import Delay

pytestmark = pytest.mark.takes(5)

DELAY_MS = 10
ENTRIES = 9
MOST_AT_ONCE, MOST_COPIES, MOST_IN_FRAME = 6, 3, 2
STORED_AFTER = 77
END_MS = 1000

Entries = list[tuple[int, str]]


class Levels:
    """A level's queue, the entries of which are written as a test has them."""

    def __init__(self, scene: Any) -> None:
        for _ in range(ENTRIES):
            scene.send(Delay(1))
        positions = scene.broker.positions
        scene.until(lambda: positions["queued"] == positions["wrote"], "their entries")
        waiting = scene.queue(SCHEDULE_TOPIC, 0)
        self.places = [each.physical_offset for each in waiting]
        self._sizes = [each.total_size for each in waiting]
        self._file = scene.broker.paths.queue(SCHEDULE_TOPIC, 0) / segment_name(0)
        self._around = scene.actor._timers._around
        self._table = QueueTable(scene.broker.run.queues, writable=True)
        self._slot = self._around.queues.queues(SCHEDULE_TOPIC)[0]

    def make(self, entries: Entries, doubt: Doubt, start: int = 0) -> tuple[Level, RecordSender]:
        """A life of the level: what it puts stays with the sender."""
        raw = b"".join(
            # no record has one byte more
            BLANK_ENTRY if kind == "blank" else ENTRY.pack(place, size + (kind == "lost"), due_ms)
            for place, size, (due_ms, kind) in zip(self.places, self._sizes, entries, strict=True)
        )
        with open(self._file, "r+b") as file:
            file.write(raw)
        self.expire(0)
        sender = RecordSender("0" * 16, "scheduler", 1, stored_after=STORED_AFTER)
        around = self._around._replace(sender=sender, doubt=doubt)
        return Level(1, DELAY_MS, start, around), sender

    def expire(self, low: int) -> None:
        self._table.publish_min_offset(self._slot, low)

    def close(self) -> None:
        self._table.close()


class Model:
    """What a level is to do, entry by entry; `frames` are those of the level, as they were put."""

    def __init__(self, levels: Levels, entries: Entries, doubt: Doubt) -> None:
        self.levels, self.entries, self.doubt = levels, entries, doubt
        self.level, self.sender = levels.make(entries, doubt)
        self.now_ms = self.monotonic_ms = 0
        self.low = self.next = self.done = 0
        # when each that was to wait too long was seen
        self.seen: dict[int, int] = {}
        # when the one that it stopped at is due, and whether it looks before that
        self.due_ms, self.is_early = -1, False
        self.frames: list[Batch] = []
        self.delivered = self.undelivered = 0

    # --- what happens ---

    def turn(self, wall_ms: int, passed_ms: int) -> None:
        self.now_ms += wall_ms
        self.monotonic_ms += passed_ms
        before = list(self.sender._waiting)
        taken = self.level.turn(self.now_ms, self.monotonic_ms)
        made = [each for each in self.sender._waiting if each not in before]
        first = max(self.next, self.low)
        copies = self._take()
        assert (taken, max(self.level.next, self.low)) == (max(0, self.next - first), self.next)
        # in their order, and with those that may be stored in frames of their own
        said = [(note - 1, frame.floor >= 0) for frame in made for note in frame.tag.notes]
        assert said == copies
        assert {frame.floor for frame in made} <= {STORED_AFTER, -1}
        self.frames += [frame.tag for frame in made]
        # it says when it wants to be asked again, and before that it need not be
        wanted_ms = (self.due_ms,) if self.due_ms >= 0 else (-1, self.now_ms)
        assert self.level.due_ms in wanted_ms

    def _take(self) -> list[tuple[int, bool]]:
        copies: list[tuple[int, bool]] = []
        first = max(self.next, self.low)
        self.undelivered += first - self.next
        self.next = first
        if self.due_ms > self.now_ms and not self.is_early:
            return copies
        self.due_ms = -1
        while self.next < min(ENTRIES, first + MOST_AT_ONCE):
            due_ms, kind = self.entries[self.next]
            if not self._is_due(self.next):
                # what is to wait longer than it may comes before that
                self.due_ms, self.is_early = due_ms, due_ms > self.now_ms + DELAY_MS
                break
            if len(copies) == MOST_COPIES:
                break
            self.undelivered += kind == "lost"
            if kind == "whole":
                early_ms = due_ms if due_ms <= self.now_ms else 0
                copies.append((self.next, self._may_be_stored(self.next, early_ms)))
            self.next += 1
        return copies

    def _is_due(self, at: int) -> bool:
        due_ms, kind = self.entries[at]
        if kind == "blank" or due_ms <= self.now_ms:
            return True
        if due_ms <= self.now_ms + DELAY_MS:
            return False
        return self.monotonic_ms - self.seen.setdefault(at, self.monotonic_ms) >= DELAY_MS

    def _may_be_stored(self, at: int, due_ms: int) -> bool:
        return due_ms <= self.doubt.due_ms and self.levels.places[at] < self.doubt.below

    def settle(self, number: int, is_stored: int) -> None:
        """Frames get their outcomes in any order."""
        left = [each for each in self.frames if not each.settled]
        if left:
            batch = left[number % len(left)]
            self.level.settle(batch, bool(is_stored))
            self.delivered += len(batch.copies) * is_stored
            self.undelivered += len(batch.copies) * (1 - is_stored)

    def split(self, number: int, _: int) -> None:
        """A frame is refused, and its messages go again, each by itself."""
        left = [each for each in self.frames if not each.settled]
        if left:
            batch = left[number % len(left)]
            parts = list[Batch]()
            for each in zip(batch.copies, batch.notes, strict=True):
                parts += put_frames(self.sender, self.level, [each], -1)
            self.level.again(batch, parts)
            at = self.frames.index(batch)
            self.frames[at : at + 1] = parts

    def expire(self, more: int, _: int) -> None:
        self.low = min(ENTRIES, self.low + more)
        self.levels.expire(self.low)

    # --- what is to be true at any moment ---

    def check(self) -> None:
        level = self.level
        on_way = [each.notes[0] - 1 for each in self.frames if not each.settled]
        assert level.done >= self.done, "it does not go back"
        self.done = level.done
        if on_way:
            # whoever begins there finds all that is on its way, and nothing that is over
            over = [each.notes[-1] for each in self.frames[: self._first_on_way()]]
            assert max(over, default=0) <= level.done <= on_way[0]
        else:
            assert level.done == level.next
        at = max(self.low, level.done)
        is_over = at == ENTRIES
        assert level.ends() == (self.low, ENTRIES)
        assert level.pending == ENTRIES - at
        entry = (-1, 0) if is_over else self._entry(at)
        assert level.first_place() == entry[0]
        place, due_ms = entry
        is_held = due_ms <= self.doubt.due_ms and place < self.doubt.below
        assert level.is_sure == (self.doubt.due_ms < 0 or is_over or not is_held)
        assert level.delivered == self.delivered

    def _first_on_way(self) -> int:
        return [each.settled for each in self.frames].index(False)

    def _entry(self, at: int) -> tuple[int, int]:
        due_ms, kind = self.entries[at]
        if kind == "blank":
            place, _, code = ENTRY.unpack(BLANK_ENTRY)
            return place, code
        return self.levels.places[at], due_ms

    def finish(self) -> None:
        """In the end all have come, or are counted."""
        for _ in range(ENTRIES):
            self.turn(END_MS, DELAY_MS)
        while any(not each.settled for each in self.frames):
            self.check()
            self.settle(0, 1)
        self.check()
        assert self.level.done == self.level.next == ENTRIES
        assert self.level.undelivered == self.undelivered


@pytest.fixture
def levels(scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Levels]:
    found = Levels(scene())
    room = "penstock.actors.scheduler"
    monkeypatch.setattr(f"{room}.levels.ENTRIES_AT_ONCE", MOST_AT_ONCE)
    size = len(put_one(found).record)
    monkeypatch.setattr(f"{room}.levels.TURN_BYTES", MOST_COPIES * size)
    monkeypatch.setattr(f"{room}.copies.MOST_IN_FRAME", MOST_IN_FRAME)
    yield found
    found.close()


def put_one(levels: Levels) -> Any:
    """A copy: all are of the same size."""
    level, sender = levels.make([(0, "whole")] * ENTRIES, Doubt(-1, 0))
    level.turn(0, 0)
    return sender._waiting[0].tag.copies[0]


def test_a_run_begins_where_the_queue_has_no_more_of_the_last_one(levels: Levels) -> None:
    """What comes next has the offsets of what a power failure took, and is not passed over."""
    for start in range(ENTRIES + 2):
        for kept in range(ENTRIES + 1):
            log_end = [*levels.places, 1 << 40][kept]
            level, _ = levels.make([(0, "whole")] * ENTRIES, Doubt(-1, 0), start)
            level.begin(log_end)
            assert (level.next, level.done) == (min(start, kept),) * 2


STEPS = st.lists(
    st.one_of(
        # two clocks, of which either may stand still
        st.tuples(st.just("turn"), st.integers(0, 6), st.integers(0, 12)),
        st.tuples(st.just("settle"), st.integers(0, 20), st.integers(0, 1)),
        st.tuples(st.just("split"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("expire"), st.sampled_from([0, 1, 2, 3, ENTRIES]), st.just(0)),
    ),
    max_size=30,
)
ENTRY_LISTS = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["whole"] * 4 + ["blank", "lost"])),
    min_size=ENTRIES,
    max_size=ENTRIES,
)


@settings(max_examples=150)
@given(
    entries=st.one_of(ENTRY_LISTS.map(sorted), ENTRY_LISTS),
    doubt_ms=st.integers(-1, 30),
    below=st.integers(0, ENTRIES - 1),
    steps=STEPS,
)
# a turn that is full amid what is due, before what is not
@example(
    entries=[(0, "whole")] * 4 + [(20, "whole")] * 5, doubt_ms=-1, below=0, steps=[("turn", 0, 0)]
)
def test_a_level_does_what_a_plain_model_does(
    levels: Levels,
    entries: Entries,
    doubt_ms: int,
    below: int,
    steps: list[tuple[str, int, int]],
) -> None:
    """Times need not be in order: levels are made longer and shorter."""
    model = Model(levels, entries, Doubt(doubt_ms, levels.places[below]))
    for kind, *numbers in steps:
        getattr(model, kind)(*numbers)
        model.check()
    model.finish()


def test_each_level_has_its_turn_however_much_is_due_of_the_others(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.scheduler.levels.ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr("penstock.client.core.sending.record_sender.MAX_IN_FLIGHT", 1)
    it, due = scene(is_first=True), (1, 2, 3)
    level_of = {it.send(Delay(level)): level for _ in range(24) for level in due}
    it.broker.clock.advance(60_000)
    came = [level_of[each.body.decode()] for each in it.await_bodies(len(level_of))]
    assert sorted(came) == sorted(level_of.values())
    for level in due:
        first = came.index(level)
        for other in due:
            last = len(came) - 1 - came[::-1].index(other)
            assert first < last, f"{level} has waited for all of {other}"
