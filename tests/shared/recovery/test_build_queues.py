"""Queues that are made from the log: which record has which slot, and how far each queue goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import (
    AT_BODY_V4,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    SMALLEST_RECORD_BYTES,
)
from penstock.shared.layout import StorePaths
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd
from penstock.shared.recovery import build_queues
from penstock.shared.recovery.build_queues import LogRun, QueueBuilder, log_runs
from penstock.shared.store.directory import StoreDirectory

# slot -> the log offset and the size that its entry names, and its tags code
Slots = dict[int, tuple[int, int, int]]
FIRST, SECOND = (b"orders", 0), (b"orders", 1)
BLANK = 0, 0x7FFFFFFF


class Made:
    """What a builder has made of a store's log."""

    def __init__(self, store: Any, **more: Any) -> None:
        self._target = StorePaths(store.paths.root.parent / "made")
        for directory in (self._target.consume_queue, self._target.staging):
            directory.mkdir(parents=True)
        self.directory = StoreDirectory(store.paths.root)
        self.builder = QueueBuilder(self.directory, self._target, store.config, **more)
        self.done = self.builder.done

    def slots(self, queue: tuple[bytes, int] = FIRST) -> Slots:
        """A queue's entries, without blanks and what is not written."""
        found: Slots = {}
        directory = self._target.queue(queue[0].decode(), queue[1])
        for path in sorted(directory.iterdir()) if directory.exists() else ():
            for number, (at, size, code) in enumerate(ENTRY.iter_unpack(path.read_bytes())):
                if size and (at, size) != BLANK:
                    found[int(path.name) // ENTRY.size + number] = at, size, code
        return found

    def raw(self) -> dict[str, bytes]:
        root = self._target.consume_queue
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@contextmanager
def made(store: Any, *, built: bool = True, **more: Any) -> Iterator[Made]:
    found = Made(store, **more)
    with found.directory:
        if built:
            found.builder.build()
        yield found
        found.builder.close()


def _name(store: Any, *, slots: dict[int, int], queues: dict[int, int] | None = None) -> list[int]:
    """Have records of these numbers name these slots, and queues; where all records begin."""
    log, starts = store.log(), store.starts()
    for number, slot in slots.items():
        at = starts[number] - starts[0] + AT_QUEUE_OFFSET
        log[at : at + 8] = slot.to_bytes(8, "big")
    for number, queue in (queues or {}).items():
        at = starts[number] - starts[0] + AT_QUEUE_ID
        log[at : at + 4] = queue.to_bytes(4, "big")
    store.write_log(log)
    return list(starts)


def _damage(store: Any, numbers: Collection[int]) -> list[int]:
    log, starts = store.log(), store.starts()
    for number in numbers:
        log[starts[number] - starts[0] + AT_BODY_V4] ^= 1
    store.write_log(log)
    return list(starts)


@pytest.fixture
def alone(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> Callable[..., Any]:
    """A store of one queue whose records name these slots, of which no queue's files know."""

    def make(*slots: int, body: int = 400, **layout: Any) -> tuple[Any, list[int]]:
        store = stopped_store([make_record(body=bytes(body))] * len(slots), **layout)
        starts = _name(store, slots=dict(enumerate(slots)))
        shutil.rmtree(store.paths.consume_queue)
        return store, starts[:-1]

    return make


# --- runs of the log ---


def _grouped(steps: list[tuple[int, int]], most: int) -> list[tuple[int, int, int]]:
    """[start, stop) and records of each run: of one segment, and of no more than `most` bytes but
    for its last record."""
    runs: list[tuple[int, int, int]] = []
    for at, size in steps:
        if runs and runs[-1][1] == at and at % 4096 and at - runs[-1][0] <= most:
            start, _, count = runs.pop()
            runs.append((start, at + size, count + 1))
        else:
            runs.append((at, at + size, 1))
    return runs


@pytest.mark.parametrize("most", [0, 1, 2, 3, 100])
def test_runs_are_whole_records_of_one_segment_and_no_longer_than_they_may_be(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    store = stopped_store(twelve, base=8192)
    starts = store.starts()
    size = starts[1] - starts[0]
    monkeypatch.setattr(build_queues, "_RUN_BYTES", most * size)
    steps = [(at, size) for at in starts[:-1]]
    with StoreDirectory(store.paths.root) as directory:
        for stop in (None, starts[3], starts[3] + 1, starts[-1]):
            found = [*log_runs(directory, QueueNumbers(), (), 8192, stop)]
            wanted = _grouped(
                [each for each in steps if stop is None or each[0] < stop], most * size
            )
            assert [run[:3] for run in found if run.records] == wanted
            assert not any(run.is_damage or run.keys is not None for run in found)
            assert found[-1].stop >= wanted[-1][1]
        for run in log_runs(directory, QueueNumbers(), (), 8192, keyed=True):
            assert (run.keys is not None) == (run.records > 0)


def test_what_is_between_runs_is_damage_or_nothing(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = _damage(store, [3])
    with StoreDirectory(store.paths.root) as directory:
        found = [*log_runs(directory, QueueNumbers(), (), 0)]
    bare = [run._replace(rows=b"") for run in found[:3]]
    assert bare == [
        LogRun(0, starts[3], 3),
        LogRun(starts[3], starts[4], is_damage=True),
        LogRun(starts[4], starts[4] + bare[2].stop - bare[2].start, bare[2].records),
    ]
    assert [run.is_damage for run in found].count(True) == 1


def test_the_way_through_the_log_is_told_from_its_beginning_to_its_end(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, base=1 << 20)
    told: list[tuple[int, int]] = []
    with made(store, built=False) as it:
        it.builder.build(lambda *now: told.append(now))
        total = it.directory.files_end - (1 << 20)
    assert {each[1] for each in told} == {total}
    ways = [each[0] for each in told]
    assert ways == sorted(ways) and ways[0] > 0 and ways[-1] == store.starts()[-1] - (1 << 20)


# --- which record has which slot ---


@pytest.mark.parametrize(
    ("slots", "held", "misplaced"),
    [
        ([7], {7: 0}, []),
        ([0, 1, 2], {0: 0, 1: 1, 2: 2}, []),
        # of two that name a slot the second has none, and the first one of the next run has
        ([0, 1, 2, 2, 3], {0: 0, 1: 1, 2: 2, 3: 4}, [3]),
        # the log ends, and nobody knows whether the topic was made again; the queue goes on after
        ([0, 1, 2, 0], {0: 0, 1: 1, 2: 2, 3: 3}, [3]),
        ([0, 1, 2, 0, 1], {0: 3, 1: 4, 2: 2}, []),
        # the log has no room for what would lie between, and what comes next goes on
        ([0, 1, 5000, 2, 3], {0: 0, 1: 1, 2: 3, 3: 4}, [2]),
        ([5, 3020, 3022, 3023], {3020: 1, 3021: 2, 3022: 2, 3023: 3}, [0]),
        # nothing leads up to the first
        ([9, 3, 4, 5], {3: 1, 4: 2, 5: 3}, [0]),
        # what is missing leads to what comes next; each is named in the order of the log
        ([9, 3, 4, 5, 3, 7], {3: 1, 4: 2, 5: 3, 6: 5, 7: 5}, [0, 4]),
        (
            [0, 1, 2, 1, 4, 9, 0],
            {0: 0, 1: 1, 2: 2, 3: 4, 4: 4, **dict.fromkeys(range(5, 10), 5), 10: 6},
            [3, 6],
        ),
    ],
)
@pytest.mark.parametrize("body", [10, 3600], ids=["one run", "a run each"])
def test_each_record_has_the_slot_that_the_order_of_the_log_gives_it(
    alone: Callable[..., Any],
    slots: list[int],
    held: dict[int, int],
    misplaced: list[int],
    body: int,
) -> None:
    """Wherever the log is cut into runs."""
    store, starts = alone(*slots, body=body)
    with made(store) as it:
        found = {slot: starts.index(at) for slot, (at, *_) in it.slots().items()}
    assert found == held
    assert it.done.misplaced == [starts[each] for each in misplaced]
    assert it.done.messages == len(slots)
    assert it.done.entries == len(slots) - len(misplaced)
    assert it.done.lost == sum(slots[number] != slot for slot, number in held.items())
    assert it.builder.ends == {FIRST: max(held) + 1}


def test_of_several_that_go_back_by_one_all_but_the_first_have_their_slots(
    alone: Callable[..., Any],
) -> None:
    store, starts = alone(0, 1, 2, 2, 3, 4, body=10)
    with made(store) as it:
        found = {slot: starts.index(at) for slot, (at, *_) in it.slots().items()}
    assert (found, it.done.misplaced) == ({0: 0, 1: 1, 2: 2, 3: 4, 4: 5}, [starts[3]])


def test_a_topic_that_was_made_again_has_none_of_the_messages_before(
    alone: Callable[..., Any],
) -> None:
    """They stand in the same run, and one of them in front of what has the next slot."""
    store, starts = alone(0, 1, 2, 3, 0, 1, 2, body=10)
    row = DeletedTopic(number=1, topic="orders", log_end=starts[4], at_ms=1, is_done=True)
    save_deleted_topics(store.paths.deleted_topics, DeletedTopics(1, (row,)))
    with made(store) as it:
        found = {slot: starts.index(at) for slot, (at, *_) in it.slots().items()}
    assert found == {0: 4, 1: 5, 2: 6} and it.builder.ends == {FIRST: 3}


def test_of_two_that_name_a_slot_the_one_has_it_that_had_it_before(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """Though nobody knows any more which queue the other is of."""
    store = stopped_store(twelve)
    shutil.rmtree(store.paths.queue("orders", 0))
    starts = _name(store, slots={}, queues={4: 1})
    with made(store) as it:
        assert it.slots(SECOND)[2][0] == starts[5]


@pytest.mark.parametrize("base", [0, 1 << 20])
def test_a_slot_has_to_have_room_in_the_log_from_where_that_begins(
    alone: Callable[..., Any], base: int
) -> None:
    """What is before a log's beginning is room for nothing."""
    most = 2 * 4096 // SMALLEST_RECORD_BYTES
    store, starts = alone(0, 1, 2, 3, 4, 5, 6, 5000, 8, base=base)
    assert starts[-1] - base < 2 * 4096
    with made(store) as it:
        assert max(it.slots()) < most
    assert it.done.misplaced == [starts[7]]


def test_only_queues_that_are_asked_for_are_made_and_their_old_files_are_no_witnesses(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    with made(store) as it:
        whole, own = it.raw(), it.slots()
    assert {name.split("/")[1] for name in whole} == {"0", "1"}
    shutil.rmtree(store.paths.root.parent / "made")
    _damage(store, [10, 11])
    _name(store, slots={}, queues={4: 7})
    with made(store, only=[SECOND]) as it:
        assert {name: raw for name, raw in whole.items() if "/1/" in name} == it.raw()
        assert it.done.misplaced == []
    shutil.rmtree(store.paths.root.parent / "made")
    with made(store) as it:
        assert it.slots() == own and it.done.misplaced == [store.starts()[4]]


# --- where a queue ends ---


@pytest.mark.parametrize("lost", [[10], [8, 10], [8, 9, 10, 11], [6, 10], [4, 6, 8, 10]])
@pytest.mark.parametrize("misplaced", [[], [8], [6, 8], [10]])
def test_the_last_entries_of_a_queue_stay_that_lead_to_what_is_lost_or_misplaced(
    stopped_store: Callable[..., Any], twelve: list[Record], lost: list[int], misplaced: list[int]
) -> None:
    """Where nothing of the queue comes after them: a queue has no gap."""
    store = stopped_store(twelve)
    with made(store) as it:
        whole = it.slots()
    shutil.rmtree(store.paths.root.parent / "made")
    wrong = [each for each in misplaced if each not in lost]
    starts = _name(store, slots=dict.fromkeys(wrong, 0))
    _damage(store, lost)
    with made(store) as it:
        found = {slot: at for slot, (at, *_) in it.slots().items()}
        assert it.builder.ends[FIRST] == 6, "no offset is given again"
    assert found.keys() == whole.keys()
    own = {slot: starts[2 * slot] for slot in whole if 2 * slot not in [*lost, *wrong]}
    assert found.items() >= own.items()
    assert it.done.misplaced == [starts[each] for each in wrong]
    assert it.done.lost == len({*lost, *wrong} - {9, 11}) + len({*lost} & {9, 11})


def test_an_old_entry_that_leads_to_no_damage_ends_what_is_kept_of_a_queue(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """What stands after it stays out as well, for it would stand after a gap."""
    store = stopped_store([make_record(queue_id=each % 2) for each in range(12)])
    starts = _damage(store, [6, 8])
    (file,) = store.paths.queue("orders", 0).iterdir()
    raw = bytearray(file.read_bytes())
    entries = [(starts[6], 1, 0), (starts[7], 1, 0), (starts[8], 1, 0)]
    for slot, entry in enumerate(entries, 6):
        ENTRY.pack_into(raw, slot * ENTRY.size, *entry)
    file.write_bytes(raw)
    with made(store) as it:
        assert max(it.slots()) == 6 and it.builder.ends == {FIRST: 7, SECOND: 6}


@pytest.mark.parametrize("end", [0, 1, 6, 7, 50, 51])
@pytest.mark.parametrize("queue", [FIRST, (b"gone", 3)], ids=["in the log", "expired"])
@pytest.mark.parametrize("by", [UNKNOWN, 0, -1, 1, 2])
def test_a_queue_goes_on_where_it_is_known_to_have_ended(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    queue: tuple[bytes, int],
    end: int,
    by: int,
) -> None:
    """The last entry that was known may lead to what the log has, or to what came after its end."""
    store = stopped_store(twelve)
    starts = store.starts()
    known = QueueEnd(end, UNKNOWN if by == UNKNOWN else starts[-1] + by - 1)
    with made(store) as it:
        before = it.slots(queue)
        it.builder.reach(queue, known, 50)
        after, lost = it.slots(queue), it.done.lost
        assert it.builder.ends.get(queue, 0) == max(end, 6 if queue == FIRST else 0)
    if queue != FIRST:
        entry, first = (0, SMALLEST_RECORD_BYTES, 0), (end - 1) // 50 * 50
    elif UNKNOWN < known.last_position < starts[-1]:
        entry, first = before[5], 6
    else:
        entry, first = (starts[-1], SMALLEST_RECORD_BYTES, 0), 6
    added = dict.fromkeys(range(max(first, 0), end), entry)
    assert after == before | added and lost == len(added)


def test_what_is_lost_at_a_queue_s_end_leads_to_the_newest_damage_of_the_log(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = _damage(store, [3, 8])
    with made(store) as it:
        it.builder.reach(SECOND, QueueEnd(8, 0), 50)
        found = it.slots(SECOND)
    first, newest = ((starts[each], starts[each + 1] - starts[each], 0) for each in (3, 8))
    assert [found[each] for each in (1, 6, 7)] == [first, newest, newest]


def test_entries_lead_to_nothing_past_the_end_that_the_log_is_known_to_have(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    with made(store, log_end=starts[6]) as it:
        it.builder.reach(FIRST, QueueEnd(5, UNKNOWN), 50)
        found = it.slots()
    assert [found[slot][0] for slot in range(5)] == [
        starts[0],
        starts[2],
        starts[4],
        *[starts[6]] * 2,
    ]


def test_nothing_that_was_written_stays_mapped(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    place = str(store.paths.root.parent / "made")
    with made(store):
        assert place in Path("/proc/self/maps").read_text()
    assert place not in Path("/proc/self/maps").read_text()
