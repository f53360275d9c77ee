"""What is found in the queues of half messages, compared with a plain list of what is there."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.reput import Reput
from penstock.actors.transactions import half_queues
from penstock.actors.transactions.half_queues import HalfQueues, Op, OpMarks
from penstock.shared.files import descriptors
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import AT_MAGIC
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import QUARANTINE, damage_between, save_quarantine
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.messaging.system_topics import OP_TOPIC
from penstock.shared.queue.reader import QueueReader

COUNT = 9


@pytest.fixture
def nine(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> Iterator[tuple[HalfQueues, list[Record]]]:
    """Nine messages of orders/1, between those of another queue."""
    broker = pipeline(transient_store_pool_enable=False)
    for number in range(COUNT):
        broker.append(queue_id=1, size=100 + number)
        broker.append(queue_id=0)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    reader = QueueReader(broker.config, broker.run, broker.positions)
    yield HalfQueues(reader), broker.stored("orders", 1)
    reader.close()


def _seen(queues: HalfQueues, after: int, before: int) -> list[int]:
    """The offsets of all that are looked at between two log offsets."""
    seen: list[int] = []

    def note(record: Record) -> bool:
        seen.append(record.queue_offset)
        return False

    assert queues.find("orders", 1, after, before, note) is None
    return seen


def test_what_begins_at_one_log_offset_and_before_another_is_looked_at(
    nine: tuple[HalfQueues, list[Record]],
) -> None:
    queues, stored = nine
    places = [record.physical_offset for record in stored]
    edges = sorted({at + by for at in places for by in (-1, 0, 1)} - {-1})
    for after in edges:
        for before in edges:
            wanted = [n for n, at in enumerate(places) if after <= at < before]
            assert _seen(queues, after, before) == wanted, (after, before)
    assert queues.range("orders", 1) == (0, COUNT) and queues.range("orders", 7) == (0, 0)
    assert queues.find("none", 0, 0, 1 << 40, lambda record: True) is None


def test_of_many_only_the_last_are_looked_at_and_the_first_that_fits_is_found(
    nine: tuple[HalfQueues, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, stored = nine
    found = queues.find("orders", 1, 0, 1 << 40, lambda record: record.queue_offset in (4, 6))
    assert found is not None and found.queue_offset == 4 and found.body == stored[4].body
    monkeypatch.setattr(half_queues, "MOST_LOOKED_AT", 4)
    assert _seen(queues, 0, 1 << 40) == [5, 6, 7, 8]
    assert _seen(queues, stored[7].physical_offset, 1 << 40) == [7, 8]
    assert _seen(queues, 0, stored[3].physical_offset) == [0, 1, 2]


def test_an_entry_without_a_message_leads_to_none(
    nine: tuple[HalfQueues, list[Record]], tmp_path: Path
) -> None:
    queues, _ = nine
    (file,) = tmp_path.glob("*/consumequeue/orders/1/*")
    with file.open("r+b") as entries:
        entries.seek(6 * ENTRY.size)
        entries.write(ENTRY.pack(0, BLANK_SIZE, 0))
    assert _seen(queues, 0, 1 << 40) == [0, 1, 2, 3, 4, 5, 7, 8]


def _damaged(broker: Any, first: Record, last: Record) -> QueueReader:
    """A reader of the log in which these and what lies between them is lost."""
    end = last.physical_offset + last.total_size
    damage = damage_between(broker.paths, 1 << 30, first.physical_offset, end, "for this test")
    save_quarantine(broker.paths, damage, 1)
    broker.positions.initialise("read_only", QUARANTINE)
    return QueueReader(broker.config, broker.run, broker.positions)


def test_a_message_in_a_damaged_part_of_the_log_is_passed_over(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Its bytes may be whole by chance, or be such that a disk does not give them back."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(count=5, queue_id=1)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    stored = broker.stored("orders", 1)
    reader = _damaged(broker, stored[2], stored[3])
    assert _seen(HalfQueues(reader), 0, 1 << 40) == [0, 1, 4]
    reader.close()


@pytest.mark.parametrize("most", [1, 2, 1000])
@pytest.mark.parametrize("lost", [{4}, {6}, {0, 1}, {3, 4, 5}, {7, 8}])
def test_beside_entries_without_a_message_all_others_are_looked_at(
    nine: tuple[HalfQueues, list[Record]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: set[int],
    most: int,
) -> None:
    """Also those before an entry at which the search begins, and with more lost than it passes."""
    monkeypatch.setattr(half_queues, "MOST_PASSED", most)
    queues, stored = nine
    places = [record.physical_offset for record in stored]
    (file,) = tmp_path.glob("*/consumequeue/orders/1/*")
    with file.open("r+b") as entries:
        for number in lost:
            entries.seek(number * ENTRY.size)
            entries.write(ENTRY.pack(0, BLANK_SIZE, 0))
    for after in places:
        for before in (*places, 1 << 40):
            there = {n for n, at in enumerate(places) if after <= at < before} - lost
            assert set(_seen(queues, after, before)) >= there, (after, before)


def test_of_as_many_queues_as_are_kept_what_is_committed_is_looked_for_once(
    nine: tuple[HalfQueues, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_queues, "MOST_QUEUES", 2)
    queues, _ = nine
    first, second = (queues.commits_before("orders", queue, 1 << 40) for queue in (1, 0))
    assert queues.commits_before("orders", 1, 1 << 40) is first
    assert first == {}, "none of these was committed"
    queues.commits_before("orders", 2, 1 << 40)
    assert queues.commits_before("orders", 0, 1 << 40) is second
    assert queues.commits_before("orders", 1, 1 << 40) is not first, "the oldest has made room"


@pytest.mark.parametrize("opened", [0, 1], ids=["the queue", "the log"])
def test_who_lacks_a_descriptor_takes_no_message_for_lost(
    nine: tuple[HalfQueues, list[Record]], opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there would be sent once more. Another life has descriptors again."""
    # an actor of another test may have said how it makes room, and garbage may be closed meanwhile
    monkeypatch.setattr(descriptors, "_make_room", lambda: False)
    gc.collect()
    queues, stored = nine
    if opened:
        queues._entry(queues._reader.queues("orders")[1], 0)  # has opened the queue alone
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            queues.find("orders", 1, 0, 1 << 40, lambda record: True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert _seen(queues, 0, 1 << 40) == [record.queue_offset for record in stored]


@pytest.mark.parametrize("low", [0, 3])
@pytest.mark.parametrize("bent", [None, *range(COUNT)])
def test_of_op_records_all_are_read_that_can_be_and_each_once(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    bent: int | None,
    low: int,
) -> None:
    """Some at a time where one cannot be read, and all the rest in one look after that."""
    monkeypatch.setattr(half_queues, "_ONE_BY_ONE", 4)
    broker = pipeline(transient_store_pool_enable=False)
    for number in range(COUNT):
        raw = Record(OP_TOPIC, b"%d," % number, b"TAGS\x01d\x02", born_host=bytes(8))
        broker.append_frame(OP_TOPIC, 0, encode_record(raw))
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    if bent is not None:
        place = broker.stored(OP_TOPIC, 0)[bent].physical_offset
        with open(broker.paths.commit_log / segment_name(0), "r+b") as file:
            file.seek(place + AT_MAGIC)
            file.write(bytes(4))
    reader = QueueReader(broker.config, broker.run, broker.positions)
    slot = reader.queues(OP_TOPIC)[0]
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(slot, low)
    table.close()
    queues, at, found = HalfQueues(reader), 0, list[Op]()
    while at < COUNT:
        first = max(at, low)
        some, at = queues.ops(at)
        assert at == (min(first + 4, COUNT) if bent is not None and bent >= first else COUNT)
        found += some
    assert [(op.offset, op.halves) for op in found] == [
        (number, (number,)) for number in range(low, COUNT) if number != bent
    ]
    for start in (COUNT, COUNT + 3):
        assert queues.ops(start) == ([], start)
    reader.close()


def _store_ops(broker: Any, work: Callable[..., None], count: int) -> None:
    """Store op records, each of which names the half message of its own number."""
    for number in range(count):
        raw = Record(OP_TOPIC, b"%d," % number, b"TAGS\x01d\x02", born_host=bytes(8))
        broker.append_frame(OP_TOPIC, 0, encode_record(raw))
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))


def test_op_records_after_lost_ones_are_found_in_one_step(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """However many are lost: who reads them serves nobody before it has come to the end."""
    broker, lost = pipeline(transient_store_pool_enable=False), COUNT - 2
    _store_ops(broker, work, COUNT)
    stored = broker.stored(OP_TOPIC, 0)
    reader = _damaged(broker, stored[0], stored[lost - 1])
    queues = HalfQueues(reader)
    assert queues.ops(0) == ([], lost)
    found, at = queues.ops(lost)
    assert ([op.halves for op in found], at) == ([(7,), (8,)], COUNT)
    reader.close()


def test_while_a_file_of_op_records_goes_none_of_the_others_is_passed_over(
    pipeline: Callable[..., Any], work: Callable[..., None], tmp_path: Path
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    in_file = broker.config.mapped_file_size_consume_queue_bytes // ENTRY.size
    _store_ops(broker, work, in_file + 3)
    first, _ = sorted(tmp_path.glob(f"*/consumequeue/{OP_TOPIC}/0/*"))
    first.unlink()
    reader = QueueReader(broker.config, broker.run, broker.positions)
    queues = HalfQueues(reader)
    assert queues.ops(0) == ([], 0)
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(reader.queues(OP_TOPIC)[0], in_file)
    table.close()
    found, at = queues.ops(0)
    assert ([op.offset - in_file for op in found], at) == ([0, 1, 2], in_file + 3)
    reader.close()


def test_op_records_are_kept_for_the_first_half_message_that_is() -> None:
    marks, last = OpMarks(0), half_queues._BLOCK - 1
    for number in range(last + 2):
        marks.note(Op(number, (number,), ""))
    marks.forget(last)
    assert marks.first_for(last) == 0
    marks.forget(last + 1)
    assert marks.first_for(last) == last + 1


@given(st.lists(st.lists(st.integers(0, 400), max_size=3), max_size=600), st.data())
def test_no_op_record_that_somebody_still_needs_is_left_out(
    named: list[list[int]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, 5))
    marks = OpMarks(start)
    forgotten = data.draw(st.integers(0, 200))
    for number, halves in enumerate(named, start):
        marks.note(Op(number, tuple(halves), ""))
        if number == start + 300:
            marks.forget(forgotten)
    for half in (0, 100, forgotten, 399, 400, 401):
        if half < forgotten:
            continue
        needed = [n for n, halves in enumerate(named, start) if max(halves, default=-1) >= half]
        first = marks.first_for(half)
        assert start <= first <= (needed[0] if needed else start + len(named))
        # whole blocks without anything needed are left out
        assert (needed[0] if needed else start + len(named)) - first < half_queues._BLOCK
