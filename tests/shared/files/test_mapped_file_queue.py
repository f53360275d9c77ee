"""Mapped segments: offsets go to the right file, and what is no directory is named."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.descriptors import on_shortage
from penstock.shared.files.mapped_file_queue import MappedFile, MappedFileQueue
from penstock.shared.layout import segment_name

SIZE = 4096


def make_segments(directory: Path, count: int, first: int = 0) -> bytes:
    """Segments whose bytes tell where they are; all bytes from 0 on."""
    raw = bytes(first * SIZE)
    for number in range(first, first + count):
        content = bytes((number * 7 + i) % 251 for i in range(SIZE))
        (directory / segment_name(number * SIZE)).write_bytes(content)
        raw += content
    return raw


@given(st.lists(st.tuples(st.integers(0, 5 * SIZE - 1), st.integers(0, 2 * SIZE)), max_size=20))
def test_a_view_holds_the_bytes_of_its_offsets_up_to_the_segments_end(
    tmp_path_factory: pytest.TempPathFactory, looks: list[tuple[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("segments")
    raw = make_segments(directory, 5)
    queue = MappedFileQueue(directory, SIZE, keep=2)
    for position, length in looks:
        end = position - position % SIZE + SIZE
        assert (
            bytes(queue.view(position, position + length))
            == raw[position : min(position + length, end)]
        )
        assert queue.segment(position).base == position - position % SIZE
    queue.close()


def test_a_view_outlives_that_its_segment_is_put_aside(tmp_path: Path) -> None:
    raw = make_segments(tmp_path, 4)
    queue = MappedFileQueue(tmp_path, SIZE, keep=1)
    views = [queue.view(number * SIZE, len(raw)) for number in range(4)]
    queue.close()
    assert b"".join(views) == raw


def test_no_more_files_stay_open_than_are_kept(tmp_path: Path) -> None:
    make_segments(tmp_path, 6)
    queue = MappedFileQueue(tmp_path, SIZE, keep=3)
    before = len(os.listdir("/proc/self/fd"))
    for number in (0, 1, 2, 3, 4, 5, 0, 5):
        queue.segment(number * SIZE)
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * 3  # mmap keeps one of its own
    kept = queue.segment(5 * SIZE)
    queue.segment(2 * SIZE)
    assert queue.segment(5 * SIZE) is kept, "the latest used stay"
    del kept
    queue.close()
    assert len(os.listdir("/proc/self/fd")) == before


def is_read_at_random(file: Path) -> bool:
    """Whether this process has said so to the kernel of its mapping."""
    _, found, rest = Path("/proc/self/smaps").read_text().partition(str(file))
    assert found, "it is not mapped"
    return "rr" in rest.partition("VmFlags:")[2].partition("\n")[0].split()


def test_mapped_segments_and_later_ones_are_read_ahead_or_not(tmp_path: Path) -> None:
    make_segments(tmp_path, 2)
    queue = MappedFileQueue(tmp_path, SIZE)
    queue.segment(0)
    assert not is_read_at_random(queue.path(0))
    queue.read_ahead(False)
    queue.segment(SIZE)
    assert is_read_at_random(queue.path(0)) and is_read_at_random(queue.path(SIZE))
    queue.read_ahead(True)
    assert not is_read_at_random(queue.path(0)) and not is_read_at_random(queue.path(SIZE))
    queue.close()


def test_a_segment_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    make_segments(tmp_path, 1)
    queue = MappedFileQueue(tmp_path, SIZE, writable=True)
    with pytest.raises(FileNotFoundError):
        queue.view(SIZE, SIZE + 1)
    assert not queue.path(SIZE + 5).exists()
    assert queue.path(SIZE + 5).name == segment_name(SIZE)


def test_only_a_writable_queue_can_be_written(tmp_path: Path) -> None:
    raw = make_segments(tmp_path, 1)
    reading, writing = MappedFileQueue(tmp_path, SIZE), MappedFileQueue(tmp_path, SIZE, True)
    with pytest.raises(TypeError):
        reading.view(0, 3)[:] = b"abc"
    writing.view(4, 7)[:] = b"abc"
    assert bytes(reading.view(0, 9)) == raw[:4] + b"abc" + raw[7:9]
    reading.close()
    writing.close()


def test_a_file_of_another_length_is_not_mapped(tmp_path: Path) -> None:
    file = tmp_path / segment_name(0)
    file.write_bytes(bytes(SIZE - 1))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreDamaged, match=f"{SIZE - 1}"):
        MappedFile(file, 0, SIZE, writable=False)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_segment_that_cannot_be_mapped_keeps_no_file_open(tmp_path: Path) -> None:
    make_segments(tmp_path, 1)
    queue = MappedFileQueue(tmp_path, SIZE)
    on_shortage(lambda: False)  # an actor that was in this process before would make room
    spare = os.dup(0)
    os.close(spare)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # one is free, for the file; its mapping needs another
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files") as raised:
                queue.segment(0)
            assert raised.value.filename is None, "the file was opened, and not mapped"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert queue.segment(0).size == SIZE
    queue.close()


def test_a_link_in_a_segments_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(SIZE))
    (tmp_path / segment_name(0)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        MappedFileQueue(tmp_path, SIZE).view(0, 1)


# --- files that are deleted while they are read ---


def _mapped(directory: Path) -> set[int]:
    """The segments of a directory that this process has mapped, deleted or not."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = [line.split(f"{directory}/")[1] for line in lines if f"{directory}/" in line]
    return {int(name[:20]) // SIZE for name in names}


class Holding(RuleBasedStateMachine):
    """Segments are read, put aside, deleted and let go of; a plain model says what stays mapped."""

    KEEP = 2
    COUNT = 5

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.raw = make_segments(self.directory, self.COUNT)
        self.queue = MappedFileQueue(self.directory, SIZE, keep=self.KEEP)
        self.now_ms = 1000
        # the model: which are open, latest used last; which are held, and how often
        self.open: list[int] = []
        self.views: list[tuple[int, memoryview]] = []
        self.aside: set[int] = set()
        self.deleted: dict[int, int] = {}  # -> when the queue found out and could not unmap; -1

    def held(self, number: int) -> bool:
        return any(of == number for of, _ in self.views)

    @rule(number=st.integers(0, COUNT - 1), length=st.integers(0, SIZE))
    def look(self, number: int, length: int) -> None:
        if number in self.deleted and number not in self.open:
            with pytest.raises(FileNotFoundError):
                self.queue.view(number * SIZE, number * SIZE + length)
            return
        view = self.queue.view(number * SIZE, number * SIZE + length)
        self.views.append((number, view))
        if number in self.open:
            self.open.remove(number)
        self.open.append(number)
        if len(self.open) > self.KEEP:
            put_aside = self.open.pop(0)
            if self.held(put_aside):
                self.aside.add(put_aside)

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    @rule(number=st.integers(0, COUNT - 1))
    def delete(self, number: int) -> None:
        (self.directory / segment_name(number * SIZE)).unlink(missing_ok=True)
        self.deleted.setdefault(number, -1)

    @rule(later_ms=st.integers(0, 50))
    def release_deleted(self, later_ms: int) -> None:
        self.now_ms += later_ms
        longest = self.queue.release_deleted(self.now_ms)
        for number in [number for number in self.open if number in self.deleted]:
            self.open.remove(number)
            self.aside.add(number)
        self.aside = {number for number in self.aside if self.held(number)}
        expected = 0
        for number in self.aside & self.deleted.keys():
            if self.deleted[number] < 0:
                self.deleted[number] = self.now_ms
            expected = max(expected, self.now_ms - self.deleted[number])
        assert longest == expected

    @invariant()
    def bytes_are_right_and_nothing_else_is_mapped(self) -> None:
        for number, view in self.views:
            assert view == self.raw[number * SIZE : number * SIZE + len(view)]
        # what was put aside with views stays until somebody asks, at the latest
        mapped = _mapped(self.directory)
        assert set(self.open) | {of for of, _ in self.views} <= mapped
        assert mapped <= set(self.open) | {of for of, _ in self.views} | self.aside

    def teardown(self) -> None:
        self.views.clear()
        self.queue.release_deleted(self.now_ms)
        self.queue.close()
        assert _mapped(self.directory) == set()
        shutil.rmtree(self.directory)


TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_segment_that_has_another_name_now_is_closed_like_a_deleted_one(
    tmp_path: Path, replaced: bool
) -> None:
    """It is used again once nobody has it open."""
    make_segments(tmp_path, 2)
    queue = MappedFileQueue(tmp_path, SIZE)
    queue.view(0, SIZE)
    os.rename(tmp_path / segment_name(0), tmp_path / "aside")
    if replaced:
        make_segments(tmp_path, 1)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert queue.release_deleted(0) == 0
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    queue.close()


def test_a_deleted_segment_gives_its_room_back_when_the_last_view_goes(tmp_path: Path) -> None:
    make_segments(tmp_path, 1)
    queue = MappedFileQueue(tmp_path, SIZE)
    view = queue.view(5, 50)
    before = bytes(view)
    (tmp_path / segment_name(0)).unlink()
    handles = set(os.listdir("/proc/self/fd"))
    assert (queue.release_deleted(100), queue.release_deleted(130)) == (0, 30)
    assert bytes(view) == before
    view.release()
    assert queue.release_deleted(140) == 0
    assert len(handles - set(os.listdir("/proc/self/fd"))) == 2, "ours and the mapping's own"


def test_a_segment_is_locked_in_memory_or_the_error_says_why_not(tmp_path: Path) -> None:
    """A child without the right to lock, and one that may lock what it likes or little."""
    make_segments(tmp_path, 1)
    segment = MappedFile(tmp_path / segment_name(0), 0, SIZE, True)

    def outcome(may_lock: bool) -> int:
        if (child := os.fork()) == 0:
            try:
                if not may_lock:
                    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
                    if os.geteuid() == 0:
                        os.setuid(65534)
                number = segment.lock()
                status = Path("/proc/self/status").read_text()
                is_locked = status.partition("VmLck:")[2].split()[0] != "0"
                os._exit(number if is_locked == (number == 0) else 255)
            finally:
                os._exit(254)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert outcome(False) in (errno.EPERM, errno.ENOMEM, errno.EAGAIN)
    assert outcome(True) in (0, errno.EPERM, errno.ENOMEM, errno.EAGAIN)
    assert segment.close()
