"""The log's end: appended frames are records in order, and a successor finds all of it again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.actors.writer.log_tail import LogEnd
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.layout import segment_name
from penstock.shared.log.reader import LogReader
from penstock.shared.loops.forms import rows_of
from penstock.shared.loops.pure.walk import walk
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
from penstock.shared.memory.run_directory import Endpoints, Run
from penstock.shared.memory.transient_store_pool import TransientStorePool, create_pool
from penstock.shared.queue.deleted_topics import NONE, DeletedTopic, DeletedTopics
from penstock.shared.wire.messages import QueueRun

SEGMENT, POOL = 4096, 16384
HOST = pack_host("192.168.7.9", 10911)


class Appending:
    """A writer's end of the log, with allocator, committer and reput done by hand."""

    def __init__(self, root: Path, pool: bool) -> None:
        self.config = Config(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log_bytes=SEGMENT,
            transient_store_pool_enable=pool,
            transient_store_pool_bytes=POOL,
        )
        self.directory = root / "commitlog"
        self.directory.mkdir(parents=True)
        self.run = Run("r", "b", str(root / "run"), 1, 1, Endpoints("", "", "", ""), pool)
        self.run.path.mkdir()
        create_positions(self.run.positions)
        create_queue_table(self.run.queues, 8)
        if pool:
            create_pool(self.run.pool, POOL)
        self.positions = Positions(self.run.positions, owner="supervisor")
        self.table = QueueTable(self.run.queues, writable=True)
        self.slots: dict[QueueKey, int] = {}
        self.clock = ManualClock()
        self.allocate(8)
        self.begin()

    def allocate(self, count: int) -> None:
        for _ in range(count):
            base = self.positions["allocated"]
            (self.directory / segment_name(base)).write_bytes(bytes(SEGMENT))
            self.positions.initialise("allocated", base + SEGMENT)

    def begin(self, gone: DeletedTopics = NONE) -> None:
        """Start as the writer does: a map of its own, and what it finds in shared memory."""
        self.writer = Positions(self.run.positions, owner="writer")
        self.reader = LogReader(self.config, self.run, self.writer)
        pieces = self.reader.pieces
        self.end = LogEnd(self.config, self.run, self.writer, pieces, self.clock, gone)

    def close(self) -> None:
        for each in (self.end, self.reader, self.writer):
            each.close()

    def close_all(self) -> None:
        self.close()
        self.table.close()
        self.positions.close()

    def append(self, topic: str, queue_id: int, bodies: list[bytes]) -> bool:
        """Append a frame of one run if there is room; checks the runs it is told."""
        return self.append_frame([(topic, queue_id, bodies, False)])

    def append_frame(self, asked: list[tuple[str, int, list[bytes], bool]]) -> bool:
        """Append a frame if there is room; checks where its runs are said to be."""
        runs = [QueueRun(t, q, len(bodies), batch) for t, q, bodies, batch in asked]
        sent = [(topic, queue, body) for topic, queue, bodies, _ in asked for body in bodies]
        records = [encode_record(Record(t, body, queue_id=q)) for t, q, body in sent]
        starts = [0, *accumulate(map(len, records))]
        before = self.end.wrote
        expected = self.end.place(runs, starts)
        if expected > self.end.room():
            return False
        stored = self.end.append(runs, b"".join(records), starts, HOST)
        assert self.end.wrote == self.positions["wrote"] == expected
        firsts = [run.first for run in stored]
        assert firsts == sorted(set(firsts)) and firsts[0] == 0
        for i, (topic, queue_id, body) in enumerate(sent):
            run = next(run for run in reversed(stored) if run.first <= i)
            at = run.physical_offset + starts[i] - starts[run.first]
            record = self.record_at(at, starts[i + 1] - starts[i])
            assert (record.topic, record.queue_id, record.body) == (topic, queue_id, body)
            assert record.queue_offset == run.queue_offset + i - run.first
            assert record.physical_offset == at >= before
            assert record.store_host == HOST
        first = 0
        for each in runs:
            places = [run for run in stored if first <= run.first < first + each.count]
            assert places[0].first == first, "each run is named"
            assert not each.batch or len(places) == 1, "a batch is in one segment"
            first += each.count
        return True

    def record_at(self, at: int, size: int) -> Record:
        for position, piece in self.reader.pieces(at, self.end.wrote):
            assert position == at
            return decode_record(piece[:size])
        raise AssertionError(at)

    def commit(self, position: int) -> None:
        """Copy whole records from the pool, as the committer does."""
        if self.run.pool_enabled:
            pool = TransientStorePool(self.run.pool)
            for at in range(self.positions["committed"], position):
                with (self.directory / segment_name(at - at % SEGMENT)).open("r+b") as file:
                    file.seek(at % SEGMENT)
                    file.write(b"".join(pool.pieces(at, at + 1)))
            pool.close()
        self.positions.initialise("committed", position)

    def dispatch(self, records: list[Record]) -> None:
        """Count records in the queue table, as the reput does."""
        for record in records:
            key = QueueKey(record.topic, record.queue_id)
            if key not in self.slots:
                self.slots[key] = len(self.slots)
                self.table.add(self.slots[key], key, 0, 0)
                self.positions.initialise("queue_count", len(self.slots))
            self.table.move_max_offsets(rows_of(self.slots[key], record.queue_offset, bytes(20)))

    def records(self, start: int = 0) -> list[Record]:
        found = []
        for position, piece in self.reader.pieces(start, self.end.wrote):
            for each in walk(piece, position):
                found.append(decode_record(piece, each.position - position))
        return found


class AnyHistory(RuleBasedStateMachine):
    """Appends, commits, dispatches and deaths of the writer in any order."""

    pool = True

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.log = Appending(Path(self.directory.name) / "store", self.pool)
        self.queues: dict[QueueKey, list[bytes]] = {}
        self.number = 0

    @rule(
        runs=st.lists(
            st.tuples(
                st.sampled_from(["a", "b"]),
                st.integers(0, 1),
                st.lists(st.integers(0, 1500), min_size=1, max_size=4),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def append(self, runs: list[tuple[str, int, list[int], bool]]) -> None:
        asked = []
        for topic, queue_id, sizes, batch in runs:
            bodies = []
            for size in sizes:
                self.number += 1
                bodies.append(f"{self.number}:".encode().ljust(size, b"."))
            # a batch fits a segment
            asked.append((topic, queue_id, bodies, batch and sum(sizes) < 3000))
        if self.log.append_frame(asked):
            for topic, queue_id, bodies, _ in asked:
                self.queues.setdefault(QueueKey(topic, queue_id), []).extend(bodies)

    @rule()
    def allocate_more(self) -> None:
        self.log.allocate(2)

    @rule()
    def commit(self) -> None:
        self.log.commit(self.log.end.wrote)

    @rule(half=st.booleans())
    def dispatch(self, half: bool) -> None:
        """Half: the reput dies between the queue table and its position."""
        start = self.log.positions["dispatched"]
        stop = self.log.positions["committed"]
        fresh = [r for r in self.log.records(start) if r.physical_offset < stop]
        self.log.dispatch(fresh)
        if not half:
            self.log.positions.initialise("dispatched", stop)

    @rule()
    def the_writer_dies(self) -> None:
        wrote = self.log.end.wrote
        self.log.close()
        self.log.begin()
        assert self.log.end.wrote == wrote

    @invariant()
    def every_queue_holds_what_was_appended_in_order(self) -> None:
        found: dict[QueueKey, list[bytes]] = {}
        for record in self.log.records():
            queue = found.setdefault(QueueKey(record.topic, record.queue_id), [])
            assert record.queue_offset == len(queue)
            queue.append(record.body)
        assert found == self.queues

    def teardown(self) -> None:
        self.log.close_all()
        self.directory.cleanup()


class AnyHistoryWithoutPool(AnyHistory):
    """The same, straight into the segments."""

    pool = False


few = settings(max_examples=15, stateful_step_count=15)
TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = few
TestAnyHistoryWithoutPool = AnyHistoryWithoutPool.TestCase
TestAnyHistoryWithoutPool.settings = few


@pytest.fixture(params=[True, False], ids=["pool", "no-pool"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Appending]:
    log = Appending(tmp_path / "store", request.param)
    yield log
    log.close_all()


def test_times_do_not_go_back_when_the_clock_does(log: Appending) -> None:
    times = []
    for jump in (0, 500, -10_000, 3):
        log.clock.jump(jump)
        log.append("t", 0, [b"x"])
        times.append(log.positions["wrote_timestamp"])
    start = times[0]
    assert times == [start, start + 500, start + 500, start + 500]
    assert [record.store_timestamp_ms for record in log.records()] == times
    log.close()
    log.begin()
    log.append("t", 0, [b"x"])
    assert log.positions["wrote_timestamp"] == start + 500, "nor for a successor"


def test_a_full_ring_and_missing_segments_leave_no_room(log: Appending) -> None:
    appended = 0
    while log.append("t", 0, [b"x" * 1000]):
        appended += 1
    pooled = log.run.pool_enabled
    assert appended == 3 * (POOL // SEGMENT if pooled else 8), "three fit a segment"
    log.commit(log.end.wrote)
    assert log.append("t", 0, [b"x" * 1000]) == pooled
    log.allocate(1)
    assert log.append("t", 0, [b"x" * 1000])


def test_the_same_records_are_placed_again_where_the_log_ends_by_then(log: Appending) -> None:
    record = encode_record(Record("orders", b"x"))
    runs, starts = [QueueRun("orders", 0, 1)], [0, len(record)]
    for count in range(3):
        assert log.end.place(runs, starts) == (count + 1) * len(record)
        (stored,) = log.end.append(runs, record, starts, HOST)
        assert stored.physical_offset == count * len(record)


def test_another_frame_is_placed_by_itself_where_the_first_was_not_stored(log: Appending) -> None:
    """One that was refused after it was placed leaves nothing to the next."""
    for starts in ([0, 300], [0, 200, 400], [0, 100]):
        runs = [QueueRun("orders", 0, len(starts) - 1)]
        assert log.end.place(runs, starts) == starts[-1]


def test_entering_a_segment_is_told_once(log: Appending) -> None:
    told = []
    for _ in range(8):
        log.append("t", 0, [b"x" * 1000])
        told.append(log.end.entered_segment())
        assert not log.end.entered_segment()
    assert told == [False, False, False, True, False, False, True, False]


def test_without_a_pool_what_a_dead_writer_had_not_published_is_gone(tmp_path: Path) -> None:
    log = Appending(tmp_path / "store", pool=False)
    log.append("t", 0, [b"first"])
    wrote = log.end.wrote
    log.append("t", 0, [b"second"])
    log.positions.initialise("wrote", wrote)  # it died between the bytes and the word
    log.close()
    log.begin()
    (segment, *_) = sorted(log.directory.iterdir())
    assert not any(segment.read_bytes()[wrote:])
    log.append("t", 0, [b"third"])
    assert [(r.queue_offset, r.body) for r in log.records()] == [(0, b"first"), (1, b"third")]
    log.close_all()


def test_without_a_pool_a_new_writer_opens_no_segment_that_may_be_made_again(
    tmp_path: Path,
) -> None:
    """A segment that is not counted goes when the allocator is replaced, as this writer was."""
    log = Appending(tmp_path / "store", pool=False)
    log.append("t", 0, [b"first"])
    log.positions.initialise("allocated", SEGMENT)
    for path in log.directory.iterdir():
        if path.name != segment_name(0):
            path.unlink()
    uncounted = log.directory / segment_name(SEGMENT)
    uncounted.write_bytes(bytes(SEGMENT))
    log.close()
    log.begin()
    uncounted.unlink()
    log.allocate(1)
    while log.end.wrote < SEGMENT + 500:
        assert log.append("t", 0, [b"second"])
    assert any(uncounted.read_bytes()), "what was written is in the file that has the name"
    log.close_all()


def test_times_do_not_go_back_though_a_writer_died_before_it_told_the_time(tmp_path: Path) -> None:
    log = Appending(tmp_path, pool=True)
    told_ms = log.writer["wrote_timestamp"]
    log.append("t", 0, [b"from the future"])
    log.positions.initialise("wrote_timestamp", told_ms)  # `wrote` was its last word
    first_ms = log.clock.now_ms()
    log.close()
    log.clock.jump(-3_600_000)
    log.begin()
    log.append("t", 0, [b"later"])
    assert log.writer["wrote_timestamp"] == first_ms
    log.close_all()


@pytest.mark.parametrize("is_told", [True, False])
def test_times_do_not_go_back_where_the_queues_have_the_whole_log(
    tmp_path: Path, is_told: bool
) -> None:
    """The time is that of the last record, or what a writer has told, whichever is later."""
    log = Appending(tmp_path, pool=True)
    log.append("t", 0, [b"first"])
    told_ms, last = log.writer["wrote_timestamp"], log.end.wrote
    log.clock.advance(500)
    log.append("t", 0, [b"second"])
    stored_ms = log.clock.now_ms()
    log.positions.initialise("dispatched", log.end.wrote)
    if not is_told:
        log.positions.initialise("wrote_timestamp", told_ms)
        log.positions.initialise("dispatched_record", last)
    log.close()
    log.clock.jump(-3_600_000)
    log.begin()
    log.append("t", 0, [b"third"])
    assert log.writer["wrote_timestamp"] == stored_ms
    log.close_all()


@pytest.mark.parametrize("later", [0, 1, 2], ids=["none", "in the log", "in its queue"])
@pytest.mark.parametrize("reput", ["is before it", "is amid it", "is after it"])
def test_a_new_writer_counts_no_message_of_a_topic_that_was_deleted(
    tmp_path: Path, reput: str, later: int
) -> None:
    """Its queues begin at 0 again, whatever the reput has done of the deletion by then."""
    log, key = Appending(tmp_path / "store", pool=True), QueueKey("t", 0)
    log.append("t", 0, [b"a", b"b"])
    row = DeletedTopic(number=1, topic="t", log_end=log.end.wrote, at_ms=1, is_done=True)
    if reput != "is before it":
        log.dispatch(log.records())
        log.positions.initialise("dispatched", log.end.wrote)
    if reput == "is after it":
        log.table.mark_deleted(log.slots.pop(key))
        log.positions.initialise("forgotten_topics", 1)
    log.end.forget_topic("t")
    if later:
        log.append("t", 0, [b"c"])
    if later == 2 and reput == "is after it":
        log.slots[key] = 1
        log.table.add(1, key, 0, 1)
        log.positions.initialise("queue_count", 2)
        log.positions.initialise("dispatched", log.end.wrote)
    log.close()
    log.begin(DeletedTopics(1, (row,)))
    assert log.end.next_offset("t", 0) == bool(later)
    log.close_all()
