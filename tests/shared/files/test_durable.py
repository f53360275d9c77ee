"""Files that are there whole or not at all, and cutting that touches nothing it must not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.shared.files.durable import (
    WRITE_BYTES,
    NewFile,
    data_ranges,
    drop_empty_last,
    exchange,
    make_directory,
    make_file,
    make_files,
    replace_file,
    sync_tree,
    write_again,
    write_at,
    zero_from,
)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    (tmp_path / "half-made").mkdir()
    return tmp_path / "half-made"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, by name, in order; the syncing is done all the same."""
    done: list[str] = []
    for name in ("fsync", "fdatasync", "rename"):
        real = getattr(os, name)

        def note(*arguments: object, name: str = name, real: object = real) -> None:
            if name == "rename":
                done.append(f"rename {Path(str(arguments[1])).name}")
            else:
                done.append(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).name)
            real(*arguments)

        monkeypatch.setattr(os, name, note)
    return done


def test_what_is_made_is_for_its_user_alone_and_what_was_there_stays_readable(
    tmp_path: Path,
) -> None:
    before = os.umask(0o022)
    try:
        made = tmp_path / "made" / "deeper"
        make_directory(made)
        make_file(made, made / "segment", 4096, sparse=False)
        replace_file(made / "small", b"1")
        shared = tmp_path / "shared"
        shared.write_bytes(b"RocketMQ's")
        shared.chmod(0o644)
        replace_file(shared, b"ours")
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop(shared) == 0o644
    assert {modes.pop(made), modes.pop(made.parent)} == {0o700}
    assert set(modes.values()) == {0o600}


def test_a_directory_and_its_parents_are_durable(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "other").touch()
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.name, "a"]
    (tmp_path / "a" / "b" / "file").touch()
    make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]


def test_a_directory_of_which_nobody_knows_that_its_name_is_durable_is_synced_again(
    tmp_path: Path, synced: list[str]
) -> None:
    """Whoever made it may have been killed before that; it has put nothing into it then."""
    (tmp_path / "a").mkdir()
    make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]
    make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a", "a"]


def test_a_directory_whose_name_is_not_on_disk_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync could succeed and be a lie; one of a name that is made again is not."""

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "the parent")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="the parent"):
            make_directory(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("sparse", [True, False])
def test_a_file_gets_its_name_when_it_is_whole(
    tmp_path: Path, staging: Path, synced: list[str], sparse: bool
) -> None:
    target = tmp_path / "commitlog" / "00"
    target.parent.mkdir()
    make_file(staging, target, 1 << 20, sparse=sparse, head=b"head")
    assert target.read_bytes() == b"head".ljust(1 << 20, b"\0")
    assert (target.stat().st_blocks * 512 >= 1 << 20) != sparse
    assert synced == [f"commitlog-00-{os.getpid()}-0", "rename 00", "commitlog"]
    assert list(staging.iterdir()) == []


def test_several_files_are_whole_before_the_first_has_its_name(
    tmp_path: Path, staging: Path, synced: list[str]
) -> None:
    """Two of them have the same name, in directories of the same name."""
    wanted = []
    for number, directory in enumerate(("a/0", "b/0", "b/1")):
        (tmp_path / directory).mkdir(parents=True)
        wanted.append(NewFile(f"{tmp_path}/{directory}/00", bytes([65 + number])))
    make_files(staging, wanted, 4096, sparse=True)
    for target, head in wanted:
        assert Path(target).read_bytes() == head.ljust(4096, b"\0")
    assert [each.rpartition("-")[0] for each in synced[:3]] == [
        f"{directory}-00-{os.getpid()}" for directory in "001"
    ]
    assert synced[3:] == ["rename 00"] * 3
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_of_several_files_that_cannot_all_be_made_those_with_a_name_are_whole(
    tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    wanted = [NewFile(f"{tmp_path}/{number}", b"head") for number in range(4)]
    real, calls = getattr(os, call), [0]

    def fail(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(errno.ENOSPC, "the third")
        return real(*arguments)

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="the third"):
        make_files(staging, wanted, 4096, sparse=True)
    made = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(made) == (2 if call == "rename" else 0)
    assert all(path.read_bytes() == b"head".ljust(4096, b"\0") for path in made)
    assert list(staging.iterdir()) == []
    make_files(staging, wanted, 4096, sparse=True)
    assert all(Path(target).stat().st_size == 4096 for target, _ in wanted)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, staging: Path) -> None:
    with pytest.raises(OSError):
        make_file(staging, tmp_path / "00", 1 << 60, sparse=False)
    assert list(staging.iterdir()) == [] and not (tmp_path / "00").exists()


def test_a_name_that_is_not_on_disk_does_not_stay(
    tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try makes the file again, and its name durable; one that is there it would not."""
    sync = os.fsync

    def fail(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, "the directory")
        sync(handle)

    target = tmp_path / "00000000000000000000"
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="the directory"):
            make_file(staging, target, 4096, sparse=False)
    assert not target.exists() and list(staging.iterdir()) == []
    make_file(staging, target, 4096, sparse=False)
    assert target.stat().st_size == 4096


def test_a_small_file_is_replaced_as_a_whole(tmp_path: Path, synced: list[str]) -> None:
    target = tmp_path / "topics.json"
    for content in (b"first" * 100, b"second", b""):
        replace_file(target, content)
        assert target.read_bytes() == content
    assert synced[:3] == ["topics.json.tmp", "rename topics.json", tmp_path.name]
    assert list(tmp_path.iterdir()) == [target]


def test_writing_goes_on_where_a_call_wrote_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, write = os.pwrite, os.write
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: pwrite(fd, raw[:3], at))
    monkeypatch.setattr(os, "write", lambda fd, raw: write(fd, raw[:3]))
    replace_file(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    handle = os.open(tmp_path / "a", os.O_RDWR)
    write_at(handle, b"abcdefg", 2)
    os.close(handle)
    assert (tmp_path / "a").read_bytes() == b"01abcdefg9"


def test_no_call_takes_so_much_memory_that_a_host_may_have_to_find_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, calls = os.pwrite, []
    monkeypatch.setattr(
        os, "pwrite", lambda fd, raw, at: calls.append((at, len(raw))) or pwrite(fd, raw, at)
    )
    content = bytes(range(251)) * 1000
    with (tmp_path / "a").open("wb") as file:
        write_at(file.fileno(), content, 5)
    assert (tmp_path / "a").read_bytes() == bytes(5) + content
    # aligned: else the page cache splits each of them
    stop = 5 + len(content)
    starts = [5, *range(WRITE_BYTES, stop, WRITE_BYTES)]
    assert calls == [
        (start, after - start) for start, after in zip(starts, [*starts[1:], stop], strict=True)
    ]


def test_writing_again_changes_nothing_and_notices_a_shorter_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(range(256)) * 20)
    handle = os.open(file, os.O_RDWR)
    write_again(handle, 100, 5000)
    assert file.read_bytes() == bytes(range(256)) * 20
    with pytest.raises(OSError) as caught:
        write_again(handle, 5000, 6000)
    assert caught.value.errno == errno.EIO
    os.close(handle)


def test_writing_again_touches_nothing_beyond_its_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows may be another process's, which stores there meanwhile."""
    written, write = set[int](), os.pwrite

    def note(handle: int, data: memoryview, at: int) -> int:
        written.update(range(at, at + len(data)))
        return write(handle, data, at)

    monkeypatch.setattr(os, "pwrite", note)
    file = tmp_path / "file"
    file.write_bytes(bytes(3 * WRITE_BYTES))
    with file.open("r+b") as opened:
        write_again(opened.fileno(), 100, WRITE_BYTES + 7)
    assert written == {*range(100, WRITE_BYTES + 7)}


def test_two_names_change_places_and_both_are_durable(tmp_path: Path, synced: list[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "tree").mkdir(parents=True)
        (tmp_path / name / "tree" / name).touch()
    exchange(tmp_path / "a" / "tree", tmp_path / "b" / "tree")
    assert (tmp_path / "a" / "tree" / "b").exists() and (tmp_path / "b" / "tree" / "a").exists()
    assert sorted(synced) == ["a", "b"]
    with pytest.raises(FileNotFoundError, match="gone"):
        exchange(tmp_path / "a" / "tree", tmp_path / "gone")


def test_a_last_file_is_dropped_durably(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "1").write_bytes(b"x")
    drop_empty_last(tmp_path)
    assert synced == []
    (tmp_path / "2").touch()
    drop_empty_last(tmp_path)
    assert synced == [tmp_path.name]


def test_only_a_last_file_without_a_byte_is_dropped(tmp_path: Path) -> None:
    drop_empty_last(tmp_path)
    for name, content in (("1", b""), ("2", b"x"), ("3", b"")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "9").mkdir()
    drop_empty_last(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "9"]
    drop_empty_last(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "9"]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=5000)), max_size=5),
    st.integers(0, 90_000),
    st.integers(0, 90_000),
)
def test_everything_from_a_place_on_becomes_zero_and_is_counted(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, bytes]],
    start: int,
    size: int,
) -> None:
    file = tmp_path_factory.mktemp("zero") / "file"
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    os.ftruncate(handle, 90_000)  # holes, as after a sparse make_file
    for page, content in parts:
        os.pwrite(handle, content, page * 4096)
    os.ftruncate(handle, 90_000)
    before = file.read_bytes()
    changed = zero_from(handle, start, size)
    after = file.read_bytes()
    cut = before[start:size]
    assert changed == len(cut) - cut.count(0)
    assert after == before[:start] + bytes(len(cut)) + before[max(start, size) :]
    assert zero_from(handle, start, size) == 0
    os.close(handle)


@given(
    st.sets(st.integers(0, 15), max_size=16),
    st.integers(0, 16 * 4096),
    st.integers(0, 16 * 4096),
)
@example({1}, 0, 4096)  # data begins where the range ends
def test_the_parts_of_a_range_that_are_no_holes_are_found_whole(
    blocks: set[int], start: int, stop: int
) -> None:
    with TemporaryFile() as file:
        file.truncate(16 * 4096)
        for block in blocks:
            os.pwrite(file.fileno(), b"x" * 4096, block * 4096)
        found = list(data_ranges(file.fileno(), start, stop))
    assert all(start <= at < end <= stop for at, end in found)
    covered = {at for first, last in found for at in range(first, last)}
    expected = {at for at in range(start, stop) if at // 4096 in blocks}
    # a file system may count holes as data, never data as a hole
    assert expected <= covered


@pytest.mark.parametrize("pages", [1, 33, 256, 4000])
@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_a_cut_writes_no_zeros_where_nothing_was_ever_written(pages: int, part: float) -> None:
    """What the kernel reads ahead into a hole counts as data: a cut read and wrote a whole segment
    of it. Files in memory are never read ahead, so this one is where the project is."""
    with TemporaryFile(dir=Path(__file__).parent) as file:
        handle = file.fileno()
        os.posix_fallocate(handle, 0, 64 << 20)
        os.pwrite(handle, b"x" * (pages * 4096), 0)
        os.fsync(handle)
        written = _written_bytes(handle)
        if written == 64 << 20:
            pytest.skip("this file system does not tell what was never written")
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # as after a power failure
        zero_from(handle, int(pages * part) * 4096, 64 << 20, again=True)
        assert _written_bytes(handle) == written


def _written_bytes(handle: int) -> int:
    return sum(stop - at for at, stop in data_ranges(handle, 0, os.fstat(handle).st_size))


def test_a_tree_is_durable_with_every_file_and_every_name_in_it(
    tmp_path: Path, synced: list[str]
) -> None:
    for name in ("a/1", "a/2", "a/deep/3", "b/4"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "other").touch()
    sync_tree(tmp_path / "tree")
    assert sorted(synced) == sorted(["1", "2", "3", "4", "a", "deep", "b", "tree"])
