"""Where a consume queue ends, whatever stands after its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import shown
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.layout import segment_name
from penstock.shared.queue.snapshot import QueueFiles

ROOM = 400


@contextmanager
def opened_queue(directory: Path, log_start: int = 0) -> Iterator[QueueFiles]:
    with closing(FileCache()) as files:
        yield QueueFiles(files, directory, "orders", 0, log_start)


@given(count=st.integers(1, ROOM - 40), data=st.data())
def test_garbage_behind_a_queue_s_end_does_not_make_it_longer(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    """RocketMQ ends it at the first entry that is not one."""
    directory: Path = tmp_path_factory.mktemp("queue")
    raw = bytearray(ROOM * ENTRY.size)
    for slot in range(count):
        ENTRY.pack_into(raw, slot * ENTRY.size, slot * 100, 100, 7)
    start = data.draw(st.integers((count + 1) * ENTRY.size, len(raw) - 1))
    garbage = data.draw(st.binary(max_size=300))
    raw[start : start + len(garbage)] = garbage
    del raw[ROOM * ENTRY.size :]
    (directory / segment_name(0)).write_bytes(raw)
    with opened_queue(directory) as queue:
        assert queue.max_offset == count
        assert list(queue.entries(0, count)["offset"]) == list(range(0, 100 * count, 100))


@given(data=st.data())
def test_a_queue_ends_and_is_cut_where_a_look_at_every_entry_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Entries are in blocks that are read at once: what is asked for lies at any place of one."""
    directory: Path = tmp_path_factory.mktemp("queue")
    room = data.draw(st.sampled_from((1, 2, 203, 204, 205, 408, 700)), "entries of a file")
    files = data.draw(st.integers(1, 3), "files")
    lead = data.draw(st.integers(0, min(room, 30)), "blanks")
    count = data.draw(st.integers(lead, room * files), "entries, blanks among them")
    first = data.draw(st.integers(0, 2), "files that have expired") * room
    size = data.draw(st.sampled_from((1, 100)), "bytes of a record")
    offsets = [0] * lead + [1000 + 100 * number for number in range(count - lead)]
    entries = [ENTRY.pack(at, size if at else BLANK_SIZE, 7) for at in offsets]
    raw = b"".join(entries).ljust(room * files * ENTRY.size, b"\0")
    for number in range(files):
        at = number * room * ENTRY.size
        name = segment_name(first * ENTRY.size + at)
        (directory / name).write_bytes(raw[at : at + room * ENTRY.size])
    log_start = data.draw(
        st.one_of(st.just(0), st.sampled_from([0, *offsets]), st.integers(900, 1100 + 100 * count)),
        "log start",
    )
    with opened_queue(directory, log_start) as queue:
        readable = (slot for slot in range(lead, count) if offsets[slot] >= log_start)
        assert queue.first_slot == first and queue.min_offset == first + next(readable, count)
        asked = data.draw(st.lists(st.integers(1, 1000 + 100 * count), max_size=4), "positions")
        ends = {each: sum(at < each for at in offsets) for each in (1, 1001, 1 << 40, *asked)}
        for position in data.draw(st.permutations([None, *ends]), "order"):
            if position is None:
                assert queue.max_offset == first + count
            else:
                assert queue.end_before(position) == (
                    first + ends[position] if ends[position] else 0
                )
        assert queue.end_before(0) == 0


GROWING = [(100 * number, 100) for number in range(200)]


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        (GROWING, 200),
        # each begins just where the one before it ends, and all but the last few are not looked at
        ([(number, 1) for number in range(200)], 200),
        ([*GROWING[:3], (0, 0), *GROWING[4:]], 200),
        ([(number, 1) if number != 3 else (0, 0) for number in range(200)], 200),
        # what stands at the end is no part of a queue: it ends where there is no entry
        ([(0, 0), (100, 100)], 0),
        ([(0, 0), *GROWING[1:8]], 0),
        ([*GROWING[:1], (0, 0), *GROWING[2:8]], 1),
        ([(number, 1) for number in range(5)] + [(0, 0)] * 5 + GROWING[10:199] + [(0, 100)], 5),
        (GROWING[:5] + [(0, 0)] * 5 + GROWING[10:190] + [(10, 0)] + GROWING[191:], 5),
        (GROWING[:5] + [(0, 0)] * 5 + GROWING[10:199] + GROWING[198:199], 5),
        # no record begins before the log does
        (GROWING[:5] + [(-1, 100)] * 5 + GROWING[10:199] + [(0, 100)], 5),
        # it begins within the record before it
        (GROWING[:5] + [(0, 0)] * 5 + GROWING[10:199] + [(19_850, 100)], 5),
    ],
)
def test_bytes_that_do_not_go_on_as_entries_do_are_not_the_end_of_a_queue(
    tmp_path: Path, entries: list[tuple[int, int]], end: int
) -> None:
    raw = b"".join(ENTRY.pack(offset, size, 7 if size else 0) for offset, size in entries)
    (tmp_path / segment_name(0)).write_bytes(raw)
    with opened_queue(tmp_path) as queue:
        assert queue.max_offset == end


def test_a_place_without_an_entry_breaks_a_queue_wherever_it_stands(tmp_path: Path) -> None:
    entries = [*GROWING[:3], (0, 0), *GROWING[4:]]
    raw = b"".join(ENTRY.pack(offset, size, 0) for offset, size in entries)
    (tmp_path / segment_name(0)).write_bytes(raw)
    with opened_queue(tmp_path) as queue:
        assert queue.max_offset == 200
        assert [slot for slot in range(199) if queue.breaks_at(slot, 0)] == [2, 3]


@given(data=st.data())
def test_all_that_is_asked_of_single_slots_is_as_a_plain_list_of_them_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the entries lead to, and whichever files are missing."""
    directory: Path = tmp_path_factory.mktemp("queue")
    room, begin = data.draw(st.integers(1, 4), "entries of a file"), data.draw(st.integers(0, 2))
    entry = st.tuples(st.integers(0, 9), st.integers(1, 3))
    written = data.draw(st.lists(entry, min_size=1, max_size=3 * room), "entries")
    count = -(-len(written) // room)
    kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1), "files"))
    held: dict[int, tuple[int, int]] = {}
    for number in kept:
        some = written[number * room : (number + 1) * room]
        some += [(0, 0)] * (room - len(some))
        low = (begin + number) * room
        held |= dict(enumerate(some, low))
        raw = b"".join(ENTRY.pack(offset, size, 0) for offset, size in some)
        (directory / segment_name(low * ENTRY.size)).write_bytes(raw)
    ranges = [range((begin + each) * room, (begin + each + 1) * room) for each in kept]
    first, end = ranges[0].start, 1 + max(slot for slot in held if held[slot][1])

    with opened_queue(directory) as queue:
        assert (queue.first_slot, queue.max_offset) == (first, end)
        slots = range(ranges[-1].stop + 2)
        for slot in slots:
            assert queue.is_used(slot) == (held.get(slot, (0, 0)) != (0, 0))
            of_file = next((each for each in reversed(ranges) if each.start <= slot), ranges[0])
            name = segment_name(of_file.start * ENTRY.size)
            assert queue.place(slot) == (
                shown(directory / name),
                (slot - of_file.start) * ENTRY.size,
            )
            spans = [range(max(each.start, first), min(each.stop, slot)) for each in ranges]
            edges = [each for span in spans if span for each in (span[0], span[-1])]
            assert [*queue.edges(slot)] == [(each, *held[each]) for each in edges]
            if slot not in held:
                with pytest.raises(StoreDamaged):
                    queue.log_offset(slot)
                continue
            (offset, size), later = held[slot], held.get(slot + 1, (0, 0))[0]
            assert queue.log_offset(slot) == offset
            if slot + 1 < end and slot + 1 not in held:
                with pytest.raises(StoreDamaged):
                    queue.breaks_at(slot, 0)
                continue
            below = later if slot + 1 < end else offset + size
            for position in (0, offset, offset + 1):
                goes_on = size > 0 and position <= offset < below
                assert queue.breaks_at(slot, position) != goes_on
        start, stop = data.draw(st.sampled_from(slots)), data.draw(st.sampled_from(slots))
        wanted = range(start, stop)
        clipped = [range(max(each.start, start), min(each.stop, stop)) for each in ranges]
        assert [*queue.spans(start, stop)] == [(each.start, each.stop) for each in clipped if each]
        if not first <= start <= stop <= end:
            with pytest.raises(OffsetOutOfRange):
                queue.raw_entries(start, stop)
        elif not held.keys() >= {*wanted}:
            with pytest.raises(StoreDamaged):
                queue.raw_entries(start, stop)
        else:
            raw = b"".join(ENTRY.pack(*held[slot], 0) for slot in wanted)
            assert queue.raw_entries(start, stop) == raw == queue.entries(start, stop).tobytes()


def test_a_queue_without_a_file_begins_and_ends_at_zero(tmp_path: Path) -> None:
    files = FileCache()
    queue = QueueFiles(files, tmp_path, "orders", 0, 0)
    assert (queue.first_slot, queue.min_offset, queue.max_offset) == (0, 0, 0)
    assert not len(queue.entries(0, 0))
    assert queue.place(7) == (shown(tmp_path), 0) and queue.end_before(1 << 40) == 0
    (tmp_path / segment_name(0)).touch()
    assert QueueFiles(files, tmp_path, "orders", 0, 0).max_offset == 0
    files.close()


def test_entries_are_those_of_all_files_that_have_some(tmp_path: Path) -> None:
    each = 50 * ENTRY.size
    whole = b"".join(ENTRY.pack(slot, 100, 7) for slot in range(150))
    for base in range(0, len(whole), each):
        (tmp_path / segment_name(base)).write_bytes(whole[base : base + each])
    with opened_queue(tmp_path) as queue:
        assert queue.problems == []
        for start, stop in ((0, 50), (49, 51), (1, 149)):
            assert list(queue.entries(start, stop)["offset"]) == list(range(start, stop))
            assert queue.raw_entries(start, stop) == whole[start * ENTRY.size : stop * ENTRY.size]


@pytest.mark.parametrize("log_start", [0, 1, 5, 100])
def test_it_is_dispatched_to_the_end_of_its_newest_record_that_the_log_has(
    tmp_path: Path, log_start: int
) -> None:
    raw = b"".join(ENTRY.pack(at * at, 2 * at + 1, 7) for at in range(10))
    (tmp_path / segment_name(0)).write_bytes(raw + bytes(5 * ENTRY.size))
    with opened_queue(tmp_path, log_start) as queue:
        assert queue.dispatched_to == (100 if log_start < 100 else 0)
        assert queue.interruption() is None, "zeros are nothing that comes again"


def test_what_is_no_entry_after_a_file_that_is_missing_is_an_interruption_too(
    tmp_path: Path,
) -> None:
    for slot, entry in {0: (0, 100, 7), 2: (0, 0, 7)}.items():
        (tmp_path / segment_name(slot * ENTRY.size)).write_bytes(ENTRY.pack(*entry))
    with opened_queue(tmp_path) as queue:
        assert queue.interruption() == (1, 2)


@pytest.mark.parametrize("slot", [0, 48, 49])
@pytest.mark.parametrize("byte", [0, 19])
def test_a_single_byte_after_the_last_entry_is_an_interruption(
    tmp_path: Path, slot: int, byte: int
) -> None:
    raw = bytearray(50 * ENTRY.size)
    for number in range(slot):
        ENTRY.pack_into(raw, number * ENTRY.size, 100 * number, 100, 7)
    raw[slot * ENTRY.size + byte] = 1
    (tmp_path / segment_name(0)).write_bytes(raw)
    with opened_queue(tmp_path) as queue:
        assert queue.interruption() == (slot, slot)


@pytest.mark.parametrize("after", [6, 60, 149])
def test_an_interruption_is_where_entries_stop_and_where_something_comes_again(
    tmp_path: Path, after: int
) -> None:
    raw = bytearray(b"".join(ENTRY.pack(slot, 100, 7) for slot in range(5)))
    raw += bytes(150 * ENTRY.size - len(raw))
    ENTRY.pack_into(raw, after * ENTRY.size, after, 100, 7)
    each = 50 * ENTRY.size
    for base in range(0, len(raw), each):
        (tmp_path / segment_name(base)).write_bytes(raw[base : base + each])
    with opened_queue(tmp_path) as queue:
        assert queue.interruption() == (5, after)
