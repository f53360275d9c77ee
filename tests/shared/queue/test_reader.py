"""Reading by queue offset: whole records, in order, none left out, never more than asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer.log_appender import place
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.log.found_records import FoundRecords, piece_of
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import RANGE, rows_of
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
from penstock.shared.memory.run_directory import Endpoints, Run
from penstock.shared.queue import reader as queue_reader
from penstock.shared.queue.lag import Lag
from penstock.shared.queue.matching import read_matching
from penstock.shared.queue.reader import QueueReader
from penstock.shared.queue.windows import QueueWindows
from tests.shared.queue.conftest import Store

RecordMaker = Callable[..., Record]


def two_queues(make: RecordMaker, order: list[int], bodies: list[int]) -> list[Record]:
    numbers = [0, 0]
    made = []
    for queue_id, size in zip(order, bodies, strict=False):
        body = f"{queue_id}:{numbers[queue_id]}:".encode().ljust(size, b".")
        made.append(make(queue_id=queue_id, body=body))
        numbers[queue_id] += 1
    return made


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(8, 900)), min_size=1, max_size=40),
    st.integers(1, 6000),
    st.data(),
)
def test_any_queue_read_in_any_steps_is_its_messages_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], size: int, data: object
) -> None:
    """Built by hand, because a fixture is made once for all examples."""
    assert isinstance(data, st.DataObject)
    records = [
        Record(topic="orders", body=bytes([i]) * length, queue_id=queue_id)
        for i, (queue_id, length) in enumerate(steps)
    ]
    store = build(tmp_path_factory.mktemp("store"), records)
    for queue_id in (0, 1):
        bodies = [record.body for record in records if record.queue_id == queue_id]
        start = data.draw(st.integers(0, len(bodies)))
        expected = list(enumerate(bodies))[start:]
        assert store.all(queue_id, start, size) == expected
    for each in (store.reader, store.table, store.positions):
        each.close()


def test_lag_in_bytes_goes_on_past_the_end_of_a_segment(tmp_path: Path) -> None:
    """A segment of these queues has 5 entries."""
    store = build(tmp_path, [Record(topic="orders", body=b"x" * 100) for _ in range(12)])
    size = store.reader.read(0, 0, 1)[0].size
    lag = Lag(store.reader)
    for offset in (0, 3, 5, 11, 12):
        assert lag.size("orders", 0, offset) == (12 - offset) * size
        age_ms, found = lag.of("orders", 0, offset, 1 << 60)
        assert found == (12 - offset) * size and (age_ms > 0) == (offset < 12)
    StorePaths(tmp_path).queue("orders", 0).joinpath(f"{200:020}").unlink()
    store.reader.release_deleted(0)
    assert lag.of("orders", 0, 0, 1 << 60)[1] == -1, "not what is there of it"
    assert lag.size("orders", 1, 0) == 0, "there is no such queue"
    for each in (store.reader, store.table, store.positions):
        each.close()


def build(root: Path, records: list[Record]) -> Store:
    """A store and its shared memory below `root`, by the live writer's own parts."""
    config = Config(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log_bytes=4096,
        mapped_file_size_consume_queue_bytes=100,
        transient_store_pool_enable=False,
    )
    paths = StorePaths(root)
    for directory in (paths.commit_log, paths.staging):
        directory.mkdir(parents=True)
    run = Run("x", "y", str(root / "run"), 1, 1, Endpoints("", "", "", ""), False)
    run.path.mkdir()
    create_positions(run.positions)
    create_queue_table(run.queues, 2)
    numbers = QueueNumbers([(b"orders", 0), (b"orders", 1)])
    windows = QueueWindows(paths, config, numbers)
    table = QueueTable(run.queues, writable=True)
    log, counts = bytearray(), [0, 0]
    for queue_id in (0, 1):
        table.add(queue_id, QueueKey("orders", queue_id), 0, 0)
    for record in records:
        size = len(encode_record(record))
        (piece,) = place([0, size], len(log), 4096)
        if piece.blank:
            log += BLANK.pack(piece.blank, MAGIC_BLANK).ljust(piece.blank, b"\0")
        queue_id = record.queue_id
        stamped = msgspec.structs.replace(
            record, queue_offset=counts[queue_id], physical_offset=len(log)
        )
        entry = ENTRY.pack(len(log), size, 0)
        row = rows_of(queue_id, counts[queue_id], entry)
        windows.put(row)
        table.move_max_offsets(row)
        counts[queue_id] += 1
        log += encode_record(stamped)
    for at in range(0, len(log), 4096):
        whole = bytes(log[at : at + 4096]).ljust(4096, b"\0")
        (paths.commit_log / segment_name(at)).write_bytes(whole)
    windows.close()
    positions = Positions(run.positions, owner="supervisor")
    positions.initialise("queue_count", 2)
    return Store(QueueReader(config, run, positions), table, positions, paths)


def test_neighbours_are_joined_and_nothing_is_copied(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    store = open_store(two_queues(make_record, [0, 0, 0, 1, 0], [20] * 5))
    store.count(0, "orders", 0, 0, 4)
    scattered, next_offset = store.reader.read(0, 0, 1 << 20)
    assert next_offset == 4
    assert len(scattered.ranges) == 2 * RANGE.size, "three neighbours, and one alone"
    neighbours, next_offset = store.reader.read(0, 0, 3 * (scattered.size // 4))
    assert next_offset == 3
    view = piece_of([neighbours])
    assert isinstance(view, memoryview) and bytes(piece_of([scattered])).startswith(view)
    (file,) = store.paths.commit_log.iterdir()
    with file.open("r+b") as log:
        log.seek(200)
        log.write(b"\x99")
    assert view[200] == 0x99, "a view of the file itself"


def test_one_look_is_bounded_in_entries(
    open_store: Callable[..., Store], make_record: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "ENTRIES_AT_ONCE", 3)
    store = open_store(two_queues(make_record, [0] * 8, [20] * 8))
    store.count(0, "orders", 0, 0, 8)
    assert store.reader.read(0, 0, 1 << 20)[1] == 3
    assert store.reader.read(0, 6, 1 << 20)[1] == 8


def test_the_entries_of_a_look_and_their_neighbours_are_read_at_once(
    open_store: Callable[..., Store], make_record: RecordMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(two_queues(make_record, [0] * 8, [20] * 8))
    store.count(0, "orders", 0, 0, 8)
    reads = []

    def pread(handle: int, size: int, at: int) -> bytes:
        reads.append((at, size))
        return os.preadv(handle, [found := bytearray(size)], at) and bytes(found)

    monkeypatch.setattr(os, "pread", pread)
    assert store.reader.read(0, 3, 1 << 20, 2)[1] == 5
    assert reads == [(2 * ENTRY.size, 4 * ENTRY.size)]


def test_what_is_not_published_yet_is_not_read(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    store = open_store(two_queues(make_record, [0] * 8, [20] * 8))
    store.count(0, "orders", 0, 0, 5)
    assert [offset for offset, _ in store.all(0, 0, 1 << 20)] == [0, 1, 2, 3, 4]
    store.table.move_max_offsets(rows_of(0, 5, bytes(20)))
    assert store.reader.range(0) == (0, 6)
    assert [offset for offset, _ in store.all(0, 4, 1 << 20)] == [4, 5]


def test_blanks_before_the_first_message_are_passed_over(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    store = open_store(two_queues(make_record, [0] * 3, [20] * 3), first_offsets={("orders", 0): 7})
    store.count(0, "orders", 0, 0, 10)
    (segment,) = store.paths.queue("orders", 0).iterdir()
    assert segment.read_bytes().startswith(BLANK_ENTRY * 7)
    assert [offset for offset, _ in store.all(0, 0, 1)] == [7, 8, 9]
    assert store.reader.read(0, 2, 1 << 20)[1] == 10
    assert store.reader.offset_at(0, 1) == 7
    found = [store.reader.read(0, offset, 1, 1)[0] for offset in (7, 8, 9)]
    times = [decode_record(piece_of([each])).store_timestamp_ms for each in found]
    assert store.reader.first_stored_ms(0) == times[0]
    store.count(1, "orders", 1, 0, 0)
    assert store.reader.first_stored_ms(1) == -1, "an empty queue"
    for lost in range(1, 4):
        position, size, _ = ENTRY.unpack_from(segment.read_bytes(), ENTRY.size * (6 + lost))
        damage = damage_between(store.paths, 1 << 20, 0, position + size, "lost")
        store.reader._log.damaged = DamagedRanges(damage)
        assert store.reader.first_stored_ms(0) == [*times, -1][lost]


def test_queues_of_a_topic_are_found_as_they_come(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    store = open_store([make_record()])
    assert store.reader.queues("orders") == {}
    store.count(0, "orders", 5, 0, 1)
    store.count(1, "other", 0, 0, 1)
    assert store.reader.queues("orders") == {5: 0}
    store.count(2, "orders", 1, 0, 1)
    assert store.reader.queues("orders") == {5: 0, 1: 2}
    assert store.reader.queues("other") == {0: 1}
    assert store.reader.queues("none") == {}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(-2, 60))
def test_the_offset_of_a_time_is_the_first_message_stored_at_or_after_it(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], at_ms: int
) -> None:
    times = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    store = build(
        tmp_path_factory.mktemp("store"),
        [Record(topic="orders", body=b"", store_timestamp_ms=1000 + time) for time in times],
    )
    expected = next((i for i, time in enumerate(times) if time >= at_ms), len(times))
    assert store.reader.offset_at(0, 1000 + at_ms) == expected
    assert store.reader.offset_at(1, 1000) == 0, "an empty queue"
    for each in (store.reader, store.table, store.positions):
        each.close()


@pytest.mark.parametrize(
    "bad",
    [ENTRY.pack(0, 0, 0), ENTRY.pack(100, -5, 7), ENTRY.pack(-1, 108, 0)],
    ids=["zero", "less", "before"],
)
def test_an_entry_that_leads_nowhere_is_named_and_those_before_it_are_read(
    open_store: Callable[..., Store], make_record: RecordMaker, bad: bytes
) -> None:
    records = [make_record(body=b"%d" % number, queue_id=0) for number in range(9)]
    store = open_store(records)
    file = next(store.paths.queue("orders", 0).iterdir())
    raw = bytearray(file.read_bytes())
    raw[5 * ENTRY.size : 6 * ENTRY.size] = bad
    file.write_bytes(raw)
    store.count(0, "orders", 0, 0, 9)
    records, next_offset = store.reader.read(0, 0, 1 << 20)
    assert next_offset == 5 and records.size > 0
    with pytest.raises(StoreDamaged, match="orders, queue 0, offset 5.*penstock store rebuild"):
        store.reader.read(0, 5, 1 << 20)
    assert store.all(0, 6, 1 << 20) == [(n, b"%d" % n) for n in range(6, 9)]
    raw[6 * ENTRY.size : 7 * ENTRY.size] = bad
    file.write_bytes(raw)
    assert store.reader.whole_from(0, 5) == 5, "two such are not of lost messages"


def test_an_answer_ends_with_its_segment_and_an_entry_that_leads_away_ends_it(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    records = [make_record(body=bytes([n]) * 500, queue_id=0) for n in range(12)]
    store = open_store(records)
    file = next(store.paths.queue("orders", 0).iterdir())
    store.count(0, "orders", 0, 0, 12)
    first, next_offset = store.reader.read(0, 0, 1 << 20)
    assert (first.base, next_offset) == (0, 6) and first.size < 4096
    assert [offset for offset, _ in store.all(0, 0, 1 << 20)] == list(range(12))
    raw = bytearray(file.read_bytes())
    raw[2 * ENTRY.size : 3 * ENTRY.size] = ENTRY.pack(1 << 40, 597, 0)
    file.write_bytes(raw)
    assert store.reader.read(0, 0, 1 << 20)[1] == 2
    with pytest.raises(FileNotFoundError):
        store.reader.read(0, 2, 1 << 20)


@pytest.mark.parametrize("at_once", [2, 3, 4096])
@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        # slot: the slot whose entry it has. A message that nobody knows of has that of a neighbour.
        ({4: 5}, [4]),
        ({3: 5, 4: 5}, [3, 4]),
        ({4: 3}, [4]),
        ({1: 0}, [1]),
        ({4: 3, 5: 3}, [4, 5]),
        ({0: 1, 10: 9, 11: 9}, [0, 10, 11]),
        ({1: 2, 3: 2, 5: 6, 7: 6}, [1, 3, 5, 7]),
    ],
)
def test_an_entry_that_leads_to_the_record_of_a_neighbour_is_that_of_a_lost_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    changes: dict[int, int],
    lost: list[int],
) -> None:
    """A segment of these queues has 5 entries, so neighbours are also in different files."""
    monkeypatch.setattr(queue_reader, "ENTRIES_AT_ONCE", at_once)
    store = build(tmp_path, [Record(topic="orders", body=b"%d" % n) for n in range(12)])
    files = sorted(store.paths.queue("orders", 0).iterdir())
    assert len(files) == 3
    raw = b"".join(file.read_bytes() for file in files)
    entries = [raw[at : at + ENTRY.size] for at in range(0, 12 * ENTRY.size, ENTRY.size)]
    changed = b"".join(entries[changes.get(slot, slot)] for slot in range(12)).ljust(300, b"\0")
    for number, file in enumerate(files):
        file.write_bytes(changed[number * 100 : (number + 1) * 100])
    whole = [(slot, b"%d" % slot) for slot in range(12) if slot not in lost]
    for max_bytes in (1, 1 << 20):
        for start in range(12):
            found, passed, filtered = [], [], []
            while start < 12:
                records, after = store.reader.read(0, start, max_bytes)
                found += [(each.queue_offset, each.body) for each in _records(records)]
                same = read_matching(store.reader, 0, start, 12, max_bytes, Everything())
                filtered += [(each.queue_offset, each.body) for each in _records(same[0])]
                assert (same[1] == start) == (after == start), "they stop in front of the same"
                if after == start:
                    after = store.reader.whole_from(0, start)
                    passed += range(start, after)
                assert after > start
                start = after
            first = min([each for each, _ in found] + passed)
            assert found == [each for each in whole if each[0] >= first]
            assert passed == [slot for slot in lost if slot >= first]
            assert list(dict.fromkeys(filtered)) == found
    for each in (store.reader, store.table, store.positions):
        each.close()


class Everything:
    """A filter that all messages match."""

    decided_by_broker = False

    def may_match(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.full(len(codes), True)

    def matches(self, record: memoryview) -> bool:
        raise AssertionError(record)


def _records(found: FoundRecords) -> list[Record]:
    raw, at, records = bytes(piece_of([found])), 0, []
    while at < len(raw):
        records.append(decode_record(raw, at))
        at += records[-1].total_size
    return records


def test_who_stands_at_the_ends_of_queues_is_told_apart_until_one_of_them_moves(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    store = open_store(two_queues(make_record, [0] * 5 + [1] * 3, [20] * 8))
    reader = store.reader
    store.count(0, "orders", 0, 0, 5)
    store.count(1, "orders", 1, 0, 3)
    reader.queues("orders")
    both = reader.standing("orders", {0: 5, 1: 3, 7: 0})
    assert reader.is_at_ends(both) and reader.is_at_ends(both, or_past=True)
    for elsewhere in ({0: 4, 1: 3}, {0: 5, 1: 2}, {0: 6}):
        assert not reader.is_at_ends(reader.standing("orders", elsewhere))
        is_past = 4 not in elsewhere.values() and 2 not in elsewhere.values()
        assert reader.is_at_ends(reader.standing("orders", elsewhere), or_past=True) == is_past
    # after the end of a queue that has nothing yet: what that means follows from `dispatched`
    assert not reader.is_at_ends(reader.standing("orders", {0: 5, 7: 1}))
    second, nowhere = reader.standing("orders", {1: 3}), reader.standing("others", {0: 0})
    assert reader.is_at_ends(second) and reader.is_at_ends(nowhere)
    store.table.move_max_offsets(rows_of(0, 5, bytes(20)))
    assert not reader.is_at_ends(both) and reader.is_at_ends(second)
    store.count(2, "orders", 2, 0, 0)
    assert not reader.is_at_ends(second), "there is another queue of the topic"
    assert reader.is_at_ends(nowhere)


def test_a_queue_that_is_new_since_the_answer_is_no_reason_to_wait(
    open_store: Callable[..., Store], make_record: RecordMaker
) -> None:
    """There was nothing to say; while that is noted, the reput counts another queue."""
    store = open_store(two_queues(make_record, [0] * 5, [20] * 5))
    reader = store.reader
    store.count(0, "orders", 0, 0, 5)
    assert list(reader.queues("orders")) == [0]
    store.count(1, "orders", 1, 0, 0)
    assert not reader.is_at_ends(reader.standing("orders", {0: 5}))
