"""What the broker remembers of Spark's writers: how many, for how long, and whom it forgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.actors.writer.exact_offsets import LEDGER_KEPT_MS, SAVE_MS
from penstock.shared.messaging.ledger import State, group_of, moves
from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.store.saved_offsets import SavedOffsets, save_offsets
from penstock.shared.wire.messages import Appended, Refused
from tests.actors.writer.test_exact_offsets import Bench, block, present

HOUR_MS = 3_600_000
MOST = 5


@pytest.fixture
def bench(
    pipeline: Callable[..., Any], client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setattr("penstock.actors.writer.exact_offsets.MAX_VALUES", MOST)
    return Bench(pipeline, client)


def write(bench: Bench, writer: str, before: State, after: State, key: str = "") -> Any:
    frame = block(key or f"{writer}{after}", moves(before, after), group=group_of(writer))
    return bench.send_when_read(frame)


def batch(bench: Bench, writer: str, number: int) -> Any:
    """A writer's next batch, which is stored in one frame."""
    return write(bench, writer, (number or NONE, NONE, NONE), (number + 1, NONE, NONE))


def test_of_writers_beyond_the_most_the_one_is_forgotten_that_has_not_written_for_longest(
    bench: Bench,
) -> None:
    for number in range(MOST):
        assert isinstance(batch(bench, f"w{number}", 0), Appended)
        bench.broker.clock.advance(HOUR_MS)
    assert isinstance(batch(bench, "w0", 1), Appended)
    bench.broker.clock.advance(LEDGER_KEPT_MS - 3 * HOUR_MS)
    assert isinstance(batch(bench, "new", 0), Appended)
    assert isinstance(batch(bench, "w1", 1), Refused), "it was forgotten"
    for number in (0, 2, 3, 4):
        told = present(write(bench, f"w{number}", (99, NONE, NONE), (100, NONE, NONE), "stray"))
        assert [*told.values()] == [{0: 2 if number == 0 else 1}]


def test_writers_are_kept_for_a_day_and_others_are_told_what_to_do(bench: Bench) -> None:
    for number in range(MOST):
        assert isinstance(batch(bench, f"w{number}", 0), Appended)
    bench.broker.clock.advance(LEDGER_KEPT_MS)
    answer = batch(bench, "new", 0)
    assert isinstance(answer, Refused) and answer.status == "SERVICE_NOT_AVAILABLE"
    assert "penstock groups rm GROUP" in answer.hint and "batchId" in answer.hint
    bench.broker.clock.advance(1)
    assert isinstance(batch(bench, "new", 0), Appended)


def test_a_stream_goes_on_where_there_is_no_room_for_another(bench: Bench) -> None:
    for number in range(MOST):
        assert isinstance(batch(bench, f"w{number}", 0), Appended)
    for number in range(1, 4):
        assert isinstance(batch(bench, "w0", number), Appended)
    assert isinstance(batch(bench, "new", 0), Refused)


def test_neither_a_group_nor_a_batch_that_is_being_published_is_forgotten(bench: Bench) -> None:
    assert isinstance(bench.send(block("a", {"in": {0: (NONE, 5)}})), Appended)
    assert isinstance(write(bench, "busy", (NONE, NONE, NONE), (1, 7, 0)), Appended)
    assert isinstance(batch(bench, "w", 0), Appended)
    bench.broker.clock.advance(2 * LEDGER_KEPT_MS)
    assert isinstance(batch(bench, "new", 0), Appended)
    assert isinstance(batch(bench, "newer", 0), Refused)
    assert isinstance(write(bench, "busy", (1, 7, 0), (1, 7, 1)), Appended)
    assert present(bench.send(block("b", {"in": {0: (9, 10)}}))) == {"in": {0: 5}}


@pytest.mark.parametrize("saved", [False, True])
def test_a_new_writer_process_knows_who_has_not_written_for_longest(
    bench: Bench, saved: bool
) -> None:
    for number in (3, 1, 4, 0, 2):
        assert isinstance(batch(bench, f"w{number}", 0), Appended)
        bench.broker.clock.advance(HOUR_MS)
    if saved:
        bench.broker.clock.advance(SAVE_MS)
        bench.broker.positions.initialise("flushed", bench.broker.positions["wrote"])
        for _ in range(5):
            bench.writer.work()
        assert bench.broker.paths.exact_offsets.exists()
    bench.restart()
    bench.broker.clock.advance(LEDGER_KEPT_MS - 5 * HOUR_MS // 2)
    for name in ("x", "y", "z"):
        assert isinstance(batch(bench, name, 0), Appended)
    assert isinstance(batch(bench, "xx", 0), Refused)
    assert isinstance(batch(bench, "w0", 1), Appended)
    assert isinstance(batch(bench, "w2", 1), Appended)


def test_writers_of_a_file_without_times_are_kept_for_a_day(bench: Bench) -> None:
    offsets = {group_of(f"w{number}"): {"rmq_sys_penstock_staging": {0: 3}} for number in range(5)}
    bench.broker.crash(bench.writer)
    save_offsets(bench.broker.paths.exact_offsets, msgspec.json.encode(SavedOffsets(0, 0, offsets)))
    bench.start()
    assert isinstance(batch(bench, "new", 0), Refused)
    bench.broker.clock.advance(LEDGER_KEPT_MS + 1)
    assert isinstance(batch(bench, "new", 0), Appended)


class Model:
    """What each writer has stored, and when; what the broker must know of that."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stored: dict[int, int] = {}
        self.last_ms: dict[int, int] = {}
        self.groups = 0
        self.number = 0

    def now_ms(self) -> int:
        return int(self.bench.broker.clock.now_ms())

    def is_old(self, writer: int) -> bool:
        return self.last_ms[writer] < self.now_ms() - LEDGER_KEPT_MS

    def guarded(self) -> int:
        return self.groups + sum(not self.is_old(each) for each in self.stored)

    def group(self) -> None:
        guarded = self.guarded()
        frame = block(f"g{self.groups}", {"in": {0: (NONE, 1)}}, group=f"g{self.groups}")
        stored = isinstance(self.bench.send_when_read(frame), Appended)
        assert stored == (guarded < MOST)
        self.groups += stored

    def write(self, writer: int) -> None:
        """As the sink does it: with what it believes, then with what it is told."""
        self.number += 1
        guarded, known = self.guarded(), self.stored.get(writer, NONE)
        name, after = f"w{writer}", (known + 1 if known != NONE else 1, NONE, NONE)
        answer = write(self.bench, name, (known, NONE, NONE), after, f"a{self.number}-")
        if isinstance(answer, Refused) and answer.status == "OFFSETS_MOVED":
            assert [*present(answer).values()] == [{0: NONE}], "what it tells is true"
            assert self.is_old(writer), "a writer of today is known"
            answer = write(self.bench, name, (NONE, NONE, NONE), after, f"b{self.number}-")
        if isinstance(answer, Refused):
            assert answer.status == "SERVICE_NOT_AVAILABLE" and guarded >= MOST
            assert writer not in self.stored or self.is_old(writer)
            return
        self.stored[writer], self.last_ms[writer] = after[0], self.now_ms()


STEPS = st.lists(
    st.one_of(
        st.integers(0, 7),
        st.sampled_from(["group", "restart", "hour", "day", "day"]),
    ),
    max_size=40,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_whoever_writes_when_a_writer_of_today_is_known_and_only_old_ones_make_room(
    pipeline: Callable[..., Any], client: Callable[..., Any], steps: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.actors.writer.exact_offsets.MAX_VALUES", MOST)
        bench = Bench(pipeline, client)
        model = Model(bench)
        for step in steps:
            if step == "restart":
                bench.restart()
            elif step == "group":
                model.group()
            elif step in ("hour", "day"):
                bench.broker.clock.advance(HOUR_MS if step == "hour" else LEDGER_KEPT_MS)
            else:
                model.write(step)
