"""What a start cuts after the log's end, what it writes again first, and what it keeps beside."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.reader import reach_bytes
from penstock.shared.memory.run_directory import Run
from penstock.shared.recovery.cut_log import cut_log, doubted_log, keep_torn

PAGE = 4096
SIZE = 4 * PAGE
FIRST = 3 * SIZE


@pytest.mark.parametrize(
    ("last", "from_memory", "again", "expected"),
    [
        ("ours", True, False, "what a writer may have left unpublished"),
        ("ours", True, True, "all after the end"),
        ("none", False, False, "all that nothing vouches for"),
        ("none", False, True, "all that nothing vouches for"),
        ("ours", False, False, "all that nothing vouches for"),
        ("of another boot", False, False, "nothing"),
        ("of another boot", False, True, "all after the end"),
        ("of another boot, and RocketMQ since", False, False, "all that nothing vouches for"),
        ("of another boot, and no abort", False, False, "all that nothing vouches for"),
    ],
)
def test_in_doubt_is_what_a_run_of_this_boot_may_have_written(
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    last: str,
    from_memory: bool,
    again: bool,
    expected: str,
) -> None:
    config = make_config()
    paths, run = StorePaths(config.store), make_run(config)
    paths.root.mkdir(exist_ok=True)
    if "no abort" not in last:
        pid = run.supervisor_pid + ("RocketMQ" in last)
        paths.abort.write_bytes(str(pid).encode())
    if last.startswith("of another boot"):
        run = msgspec.structs.replace(run, boot_id="another")
    last_run = None if last == "none" else run
    found = doubted_log(paths, config, last_run, range(1000, 5000), from_memory, again=again)
    assert (
        found
        == {
            "what a writer may have left unpublished": range(5000, 5000 + reach_bytes(config)),
            "all after the end": range(5000, sys.maxsize),
            "all that nothing vouches for": range(1000, sys.maxsize),
            "nothing": range(5000, 5000),
        }[expected]
    )


def _make_log(directory: Path, rng: random.Random) -> tuple[list[int], dict[int, bytes]]:
    """Segments whose pages are data, zeros that were written, or holes; their bases and bytes."""
    directory.mkdir(parents=True)
    logs = {}
    for base in range(FIRST, FIRST + 4 * SIZE, SIZE):
        pages = [rng.choice([rng.randbytes(PAGE), bytes(PAGE), None]) for _ in range(4)]
        with (directory / segment_name(base)).open("wb") as file:
            file.truncate(SIZE)
            for number, page in enumerate(pages):
                if page is not None:
                    file.seek(number * PAGE)
                    file.write(page)
        logs[base] = b"".join(page or bytes(PAGE) for page in pages)
    return list(logs), logs


def _data(path: Path) -> set[int]:
    """The offsets in a file of which the file system keeps a page."""
    with path.open("rb") as file:
        found, at = set[int](), 0
        while at < SIZE:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            found |= {*range(at, hole)}
            at = hole
    return found


@pytest.mark.parametrize("seed", range(30))
def test_any_log_is_zeros_after_its_end_and_what_is_in_doubt_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    bases, logs = _make_log(tmp_path / "log", rng)
    last = FIRST + 4 * SIZE
    start = rng.choice([FIRST, rng.randrange(FIRST, last), FIRST + SIZE])
    end = rng.choice([start, rng.randrange(start, last), min(start + SIZE, last), last])
    stop = rng.choice([end, rng.randrange(end, last + 1), end + 10, sys.maxsize])
    doubted = range(rng.choice([end, rng.randint(start, end)]), stop)
    paths = {base: tmp_path / "log" / segment_name(base) for base in bases}
    data = {base: _data(path) for base, path in paths.items()}
    for path in paths.values():
        os.utime(path, ns=(5_000, 7_000))
    written: dict[str, set[int]] = {str(path): set() for path in paths.values()}
    synced: list[str] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def note_write(handle: int, raw: bytes, at: int) -> int:
        count = pwrite(handle, raw, at)
        written[os.readlink(f"/proc/self/fd/{handle}")] |= {*range(at, at + count)}
        return count

    def note_sync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fdatasync(handle)

    monkeypatch.setattr(os, "pwrite", note_write)
    monkeypatch.setattr(os, "fdatasync", note_sync)
    torn = cut_log(tmp_path / "log", bases, SIZE, start, end, doubted)
    looked_at = [base for base in bases if base + SIZE > start]
    assert synced == [str(paths[base]) for base in looked_at]
    expected_torn = 0
    for base, path in paths.items():
        before, at = logs[base], end - base
        if base in looked_at:
            kept = min(max(at, 0), SIZE)
            expected_torn += SIZE - kept - before.count(0, kept)
            before = before[:kept].ljust(SIZE, b"\0")
            in_doubt = {*range(max(doubted.start - base, 0), min(doubted.stop - base, SIZE))}
            assert written[str(path)] >= in_doubt & data[base]
            assert {each for each in written[str(path)] if each < kept} <= in_doubt
        else:
            assert not written[str(path)]
        assert path.read_bytes() == before
        if not any(logs[base][max(at, 0) :]) and doubted.stop == end:
            assert path.stat().st_mtime_ns == 7_000, "by this time it expires"
    assert torn == expected_torn


@pytest.mark.parametrize(("start", "end"), [(0, 10), (100, SIZE), (SIZE - 5, 3 * SIZE + 7), (9, 9)])
def test_a_torn_tail_is_kept_as_it_is_and_never_in_another_one_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, end: int
) -> None:
    paths, synced, sync = StorePaths(tmp_path), list[str](), os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    bases, logs = _make_log(paths.commit_log, random.Random(start))
    monkeypatch.setattr(os, "fsync", note)
    for _ in range(2):
        keep_torn(paths, bases, SIZE, FIRST + start, FIRST + end)
        assert Path(synced[-2]).parent == paths.quarantine == Path(synced[-1]), "it and its name"
    tail = b"".join(logs.values())[start:end]
    name = f"torn-{segment_name(FIRST + start)}"
    found = {path.name: path.read_bytes() for path in paths.quarantine.iterdir()}
    assert found == {name: tail, f"{name}.1": tail}
    with pytest.raises(FileNotFoundError):
        keep_torn(paths, [FIRST + 4 * SIZE], SIZE, FIRST + 4 * SIZE, FIRST + 5 * SIZE)
