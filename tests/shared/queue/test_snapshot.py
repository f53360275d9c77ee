"""Where a consume queue ends, whatever stands after its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import segment_name
from penstock.shared.queue.snapshot import QueueFiles

ROOM = 400


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
    files = FileCache()
    queue = QueueFiles(files, directory, "orders", 0, 0)
    assert queue.max_offset == count
    assert list(queue.entries(0, count)["offset"]) == list(range(0, 100 * count, 100))
    files.close()


def test_a_queue_without_a_file_begins_and_ends_at_zero(tmp_path: Path) -> None:
    files = FileCache()
    queue = QueueFiles(files, tmp_path, "orders", 0, 0)
    assert (queue.first_slot, queue.min_offset, queue.max_offset) == (0, 0, 0)
    assert not len(queue.entries(0, 0))
    files.close()


def test_entries_are_those_of_all_files_that_have_some(tmp_path: Path) -> None:
    each = 50 * ENTRY.size
    whole = b"".join(ENTRY.pack(slot, 100, 7) for slot in range(150))
    for base in range(0, len(whole), each):
        (tmp_path / segment_name(base)).write_bytes(whole[base : base + each])
    files = FileCache()
    queue = QueueFiles(files, tmp_path, "orders", 0, 0)
    for start, stop in ((0, 50), (49, 51), (1, 149)):
        assert list(queue.entries(start, stop)["offset"]) == list(range(start, stop))
        assert queue.raw_entries(start, stop) == whole[start * ENTRY.size : stop * ENTRY.size]
    files.close()


@pytest.mark.parametrize("log_start", [0, 1, 5, 100])
def test_it_is_dispatched_to_the_end_of_its_newest_record_that_the_log_has(
    tmp_path: Path, log_start: int
) -> None:
    raw = b"".join(ENTRY.pack(at * at, 2 * at + 1, 7) for at in range(10))
    (tmp_path / segment_name(0)).write_bytes(raw + bytes(5 * ENTRY.size))
    files = FileCache()
    queue = QueueFiles(files, tmp_path, "orders", 0, log_start)
    assert queue.dispatched_to == (100 if log_start < 100 else 0)
    files.close()


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
    files = FileCache()
    queue = QueueFiles(files, tmp_path, "orders", 0, 0)
    assert queue.interruption() == (5, after)
    files.close()
