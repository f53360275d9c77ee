"""Windows of queues: every entry in its place, however few windows there are, and no empty file."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files import mapped_area
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import rows_of
from penstock.shared.queue import windows as queue_windows
from penstock.shared.queue.windows import (
    WINDOW_BYTES,
    WORTH_A_WINDOW,
    DirectorySyncFailed,
    QueueWindows,
)

SEGMENT = 100  # five entries
NAMES = [(b"orders", 3), (b"orders", 4), (b"%RETRY%g", 0), (b"t" * 127, 5000)]


def entries(start: int, stop: int) -> bytes:
    return b"".join(ENTRY.pack(at * 1000, 100 + at, -at) for at in range(start, stop))


def windows_in(root: Path, segment_bytes: int = SEGMENT, most: int = 0) -> QueueWindows:
    paths = StorePaths(root)
    paths.staging.mkdir(parents=True, exist_ok=True)
    config = Config(mapped_file_size_consume_queue_bytes=segment_bytes, max_queues=8)
    return QueueWindows(paths, config, QueueNumbers(NAMES), most)


def files_of(root: Path, queue: int) -> list[Path]:
    topic, queue_id = NAMES[queue]
    directory = StorePaths(root).queue(topic.decode(), queue_id)
    return sorted(directory.iterdir()) if directory.exists() else []


@settings(deadline=None)
@given(
    first=st.lists(st.integers(0, 23), min_size=4, max_size=4),
    puts=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 12)), max_size=5),
        min_size=1,
        max_size=6,
    ),
    most=st.integers(1, 4),
    restart=st.booleans(),
)
def test_a_queue_is_what_was_put_however_often_and_wherever_it_began(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[int],
    puts: list[list[tuple[int, int, int]]],
    most: int,
    restart: bool,
) -> None:
    """A reput goes on from where its predecessor was, or from before that."""
    root = tmp_path_factory.mktemp("store")
    windows = windows_in(root, most=most)
    stop = list(first)
    for put in puts:
        rows = b""
        for queue, back, count in put:
            start = max(first[queue], stop[queue] - back)
            rows += rows_of(queue, start, entries(start, start + count))
            stop[queue] = max(stop[queue], start + count)
        windows.put(rows)
        if restart:
            windows.close()
            windows = windows_in(root, most=most)
    windows.close()
    for queue in range(4):
        if stop[queue] == first[queue]:
            assert files_of(root, queue) == []
            continue
        lead = first[queue] - first[queue] % 5
        whole = BLANK_ENTRY * (first[queue] - lead) + entries(first[queue], stop[queue])
        padded = whole + bytes(-len(whole) % SEGMENT)
        found = files_of(root, queue)
        assert [path.name for path in found] == [
            segment_name(lead * 20 + at) for at in range(0, len(padded), SEGMENT)
        ]
        assert b"".join(path.read_bytes() for path in found) == padded
    assert list(StorePaths(root).staging.iterdir()) == []


def test_a_queue_goes_over_the_ends_of_windows_and_of_files(tmp_path: Path) -> None:
    """A file has a window and a half, so its last window is shorter."""
    count = WINDOW_BYTES // 20
    size = 20 * (count + count // 2)
    windows = windows_in(tmp_path, size)
    stop = 4 * count
    for start in range(0, stop, 700):
        windows.put(rows_of(0, start, entries(start, min(start + 700, stop))))
    windows.close()
    raw = b"".join(path.read_bytes() for path in files_of(tmp_path, 0))
    assert raw == entries(0, stop).ljust(len(raw), b"\0") and len(raw) == 3 * size


def test_a_segment_gets_its_name_together_with_its_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ does not start on an empty one, and a crash may come at any moment."""
    windows = windows_in(tmp_path)
    names, rename = [], os.rename

    def look(source: str, target: str) -> None:
        names.append((Path(target).name, Path(source).read_bytes()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", look)
    windows.put(rows_of(0, 3, entries(3, 7)))
    assert names == [
        (segment_name(0), (BLANK_ENTRY * 3 + entries(3, 4)).ljust(SEGMENT, b"\0")),
        (segment_name(100), entries(5, 6).ljust(SEGMENT, b"\0")),
    ]
    windows.close()


def test_where_places_are_scarce_a_few_entries_take_no_window_from_another_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, real = list[int](), mapped_area.MappedArea.map

    def note(area: mapped_area.MappedArea, place: int, handle: int, at: int) -> None:
        mapped.append(place)
        real(area, place, handle, at)

    monkeypatch.setattr(mapped_area.MappedArea, "map", note)
    windows, stop = windows_in(tmp_path, 400, most=2), 0
    for count in (1, 3, WORTH_A_WINDOW - 1):
        rows = [rows_of(queue, stop, entries(stop, stop + count)) for queue in range(4)]
        stop += count
        windows.put(b"".join(rows))
        assert mapped == [1, 0] or mapped == [0, 1]
    many = stop + WORTH_A_WINDOW
    windows.put(rows_of(3, stop, entries(stop, many)))
    assert len(mapped) == 3
    windows.close()
    for queue, end in enumerate((stop, stop, stop, many)):
        raw = b"".join(path.read_bytes() for path in files_of(tmp_path, queue))
        assert raw == entries(0, end).ljust(400, b"\0")


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    windows = windows_in(tmp_path)
    for queue in range(4):
        windows.put(rows_of(queue, 0, entries(0, 3)))
    assert len(os.listdir("/proc/self/fd")) == before
    windows.close()


def test_rounds_of_entries_take_no_more_memory_however_many_they_are(tmp_path: Path) -> None:
    windows = windows_in(tmp_path, 400)
    windows.put(rows_of(0, 0, entries(0, 1)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(1, 13):
            windows.put(rows_of(0, at, entries(at, at + 1)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    windows.close()
    assert after - before < 64 << 10


def test_memory_that_is_given_back_costs_no_entry(tmp_path: Path) -> None:
    windows = windows_in(tmp_path)
    windows.put(rows_of(0, 0, entries(0, 2)))
    windows.release_pages()
    windows.put(rows_of(0, 2, entries(2, 4)))
    windows.close()
    (file,) = files_of(tmp_path, 0)
    assert file.read_bytes() == entries(0, 4).ljust(SEGMENT, b"\0")


def test_a_file_of_another_length_is_named_and_not_mapped(tmp_path: Path) -> None:
    windows = windows_in(tmp_path)
    windows.put(rows_of(0, 0, entries(0, 2)))
    windows.close()
    (file,) = files_of(tmp_path, 0)
    os.truncate(file, 60)
    windows = windows_in(tmp_path)
    with pytest.raises(StoreDamaged, match=f"{segment_name(0)} has 60"):
        windows.put(rows_of(0, 2, entries(2, 3)))
    windows.close()


def test_a_disk_without_room_for_a_window_is_an_error_and_the_next_try_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = windows_in(tmp_path)
    windows.put(rows_of(0, 0, entries(0, 2)))
    rows = rows_of(0, 2, entries(2, 3)) + rows_of(1, 0, entries(0, 9))

    def full(handle: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="no room"):
            windows.put(rows)
    windows.put(rows)
    windows.close()
    assert files_of(tmp_path, 0)[0].read_bytes() == entries(0, 3).ljust(SEGMENT, b"\0")
    raw = b"".join(path.read_bytes() for path in files_of(tmp_path, 1))
    assert raw == entries(0, 9).ljust(200, b"\0")


def test_a_window_that_cannot_be_mapped_costs_no_other_queue_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = windows_in(tmp_path)
    windows.put(rows_of(0, 0, entries(0, 2)) + rows_of(1, 0, entries(0, 2)))
    real = mapped_area._libc

    class NoMemory:
        """The kernel unmaps what was there, and then has no room for what was to be there."""

        def mmap(self, *given: Any) -> int | None:
            if given[4] < 0:
                return int(real.mmap(*given))
            ctypes.set_errno(errno.ENOMEM)
            return mapped_area._FAILED

    with monkeypatch.context() as kernel:
        kernel.setattr(mapped_area, "_libc", NoMemory())
        with pytest.raises(OSError, match="allocate memory"):
            windows.put(rows_of(0, 5, entries(5, 6)))
    windows.put(rows_of(0, 5, entries(5, 7)) + rows_of(1, 2, entries(2, 4)))
    windows.put(rows_of(1, 4, entries(4, 5)))
    windows.close()
    raw = [b"".join(path.read_bytes() for path in files_of(tmp_path, queue)) for queue in (0, 1)]
    assert raw[1] == entries(0, 5)
    assert raw[0] == (entries(0, 2).ljust(SEGMENT, b"\0") + entries(5, 7)).ljust(200, b"\0")


def test_very_many_new_files_do_not_need_as_many_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_windows, "FILES_AT_ONCE", 2)
    windows = windows_in(tmp_path)
    gc.collect()  # else what others have left is closed meanwhile, and makes room
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    spare = [number for number in range(len(taken) + 3) if number not in taken][:3]
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1, limits[1]))
    try:
        windows.put(b"".join(rows_of(queue, 0, entries(0, 3)) for queue in range(4)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    windows.close()
    for queue in range(4):
        assert files_of(tmp_path, queue)[0].read_bytes() == entries(0, 3).ljust(SEGMENT, b"\0")


def test_names_that_may_not_be_on_disk_are_told_from_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that did not get there are written again with the next file; names are not."""
    windows = windows_in(tmp_path)
    windows.put(rows_of(0, 0, entries(0, 2)))
    sync = os.fsync

    def fails(handle: int, kind: int) -> None:
        if stat.S_IFMT(os.fstat(handle).st_mode) == kind:
            raise OSError(errno.EIO, "no such luck")
        sync(handle)

    for kind in (stat.S_IFREG, stat.S_IFDIR):
        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", lambda handle, kind=kind: fails(handle, kind))
            with pytest.raises(OSError, match="luck") as caught:
                windows.put(rows_of(0, 5, entries(5, 6)))
        assert isinstance(caught.value, DirectorySyncFailed) == (kind == stat.S_IFDIR)
        assert len(files_of(tmp_path, 0)) == 1 and not list(StorePaths(tmp_path).staging.iterdir())
    windows.close()


def test_the_names_before_a_new_one_are_durable_so_that_no_power_failure_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = windows_in(tmp_path)
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            done.append(f"sync {path.name}")
        fsync(handle)

    def named(source: str, target: str) -> None:
        done.append("/".join(Path(target).parts[-2:]))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", named)
    windows.put(rows_of(0, 0, entries(0, 1)) + rows_of(1, 0, entries(0, 6)))
    first, second = segment_name(0), segment_name(100)
    assert sorted(done[:2]) == [f"3/{first}", f"4/{first}"]
    assert done[2:] == ["sync 4", f"4/{second}"]
    done.clear()
    windows.put(rows_of(0, 1, entries(1, 12)))
    assert done == ["sync 3", f"3/{second}", "sync 3", f"3/{segment_name(200)}"]
    windows.close()


def test_there_are_no_more_windows_than_the_process_may_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_windows, "most_pieces", lambda: 2)
    places, real = set[int](), mapped_area.MappedArea.map

    def note(area: mapped_area.MappedArea, place: int, handle: int, at: int) -> None:
        places.add(place)
        real(area, place, handle, at)

    monkeypatch.setattr(mapped_area.MappedArea, "map", note)
    windows = windows_in(tmp_path)
    windows.put(b"".join(rows_of(queue, 0, entries(0, 13)) for queue in range(4)))
    windows.close()
    assert places == {0, 1}
    for queue in range(4):
        raw = b"".join(path.read_bytes() for path in files_of(tmp_path, queue))
        assert raw == entries(0, 13).ljust(3 * SEGMENT, b"\0")


def test_a_file_of_another_length_is_not_written_to_without_a_window_either(tmp_path: Path) -> None:
    windows = windows_in(tmp_path, most=1)
    for queue in (0, 1):  # the only window is the first one's
        windows.put(rows_of(queue, 0, entries(0, 2)))
    (file,) = files_of(tmp_path, 1)
    os.truncate(file, 60)
    with pytest.raises(StoreDamaged, match=f"{segment_name(0)} has 60"):
        windows.put(rows_of(1, 4, entries(4, 5)))
    assert file.stat().st_size == 60
    windows.close()


def test_a_new_file_takes_no_more_of_the_disk_than_its_entries(tmp_path: Path) -> None:
    """There may be 100,000 queues, and a file has room for 300,000 entries."""
    windows = windows_in(tmp_path, 6_000_000)
    windows.put(rows_of(0, 0, entries(0, 2)))
    windows.close()
    (file,) = files_of(tmp_path, 0)
    assert file.stat().st_size == 6_000_000
    assert file.stat().st_blocks * 512 <= WINDOW_BYTES + (64 << 10)
