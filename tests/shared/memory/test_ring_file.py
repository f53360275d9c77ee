"""The file of a ring: found only where it is, by its user, whole; its lock tells of its end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.shared.errors import RingUnavailable
from penstock.shared.memory import run_directory
from penstock.shared.memory.ring_file import (
    RING_BYTES,
    TOKEN_BYTES,
    is_held,
    make_ring,
    ring_files,
    ring_path,
    take_ring,
)

RUN_ID = "0123456789abcdef"
TOKEN = bytes(range(TOKEN_BYTES))
NUMBER = 4711


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_directory, "_MEMORY", tmp_path)
    directory = tmp_path / f"penstock-{RUN_ID}"
    directory.mkdir()
    return directory


@pytest.fixture
def ring(directory: Path) -> Iterator[int]:
    handle = make_ring(ring_path(directory, NUMBER), TOKEN)
    yield handle
    os.close(handle)


def test_a_ring_is_made_whole_for_its_user_only_and_begins_with_its_token(
    directory: Path, ring: int
) -> None:
    (path,) = ring_files(directory)
    found = path.stat()
    assert (found.st_size, found.st_mode & 0o777) == (RING_BYTES, 0o600)
    assert found.st_blocks * 512 >= RING_BYTES, "its memory is there"
    assert path.read_bytes()[:TOKEN_BYTES] == TOKEN


def test_what_a_producer_puts_into_its_ring_the_writer_reads_from_the_file(ring: int) -> None:
    taken = take_ring(RUN_ID, NUMBER, RING_BYTES, TOKEN)
    taken[100:103] = b"abc"
    taken[-1:] = b"!"
    assert os.pread(ring, 3, 100) == b"abc" and os.pread(ring, 9, RING_BYTES - 1) == b"!"
    taken.close()


def test_a_ring_is_held_from_when_it_is_taken_until_it_is_closed(ring: int) -> None:
    assert not is_held(ring)
    taken = take_ring(RUN_ID, NUMBER, RING_BYTES, TOKEN)
    gc.collect()
    assert is_held(ring) and is_held(ring)
    taken.close()
    assert not is_held(ring)


def test_the_kernel_tells_of_a_producer_that_was_killed(tmp_path: Path, ring: int) -> None:
    program = f"""
import sys
from pathlib import Path
from penstock.shared.memory import run_directory
from penstock.shared.memory.ring_file import take_ring
run_directory._MEMORY = Path({str(tmp_path)!r})
taken = take_ring({RUN_ID!r}, {NUMBER}, {RING_BYTES}, {TOKEN!r})
print("held", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    assert is_held(ring)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_held(ring)
    process.stdin.close()
    process.stdout.close()


def _without_name(directory: Path) -> None:
    ring_path(directory, NUMBER).unlink()


def _of_other_content(directory: Path) -> None:
    path = ring_path(directory, NUMBER)
    path.write_bytes(b"\0" * path.stat().st_size)


def _made_shorter(directory: Path) -> None:
    os.truncate(ring_path(directory, NUMBER), RING_BYTES - 1)


def _made_longer(directory: Path) -> None:
    os.truncate(ring_path(directory, NUMBER), RING_BYTES + 1)


def _behind_a_link(directory: Path) -> None:
    path = ring_path(directory, NUMBER)
    path.rename(directory / "elsewhere")
    path.symlink_to("elsewhere")


def _a_pipe(directory: Path) -> None:
    path = ring_path(directory, NUMBER)
    path.unlink()
    os.mkfifo(path)


def _a_directory(directory: Path) -> None:
    path = ring_path(directory, NUMBER)
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "change",
    [
        _without_name,
        _of_other_content,
        _made_shorter,
        _made_longer,
        _behind_a_link,
        _a_pipe,
        _a_directory,
    ],
)
def test_a_file_that_is_not_the_ring_is_refused(
    directory: Path, ring: int, change: Callable[[Path], None]
) -> None:
    change(directory)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RingUnavailable):
        take_ring(RUN_ID, NUMBER, RING_BYTES, TOKEN)
    assert not is_held(ring) and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
def test_a_file_of_another_user_is_refused(directory: Path, ring: int) -> None:
    os.chown(ring_path(directory, NUMBER), 12345, -1)
    with pytest.raises(RingUnavailable):
        take_ring(RUN_ID, NUMBER, RING_BYTES, TOKEN)


@pytest.mark.parametrize(
    ("run_id", "number", "size", "token"),
    [
        ("../../../../etc", NUMBER, RING_BYTES, TOKEN),
        (RUN_ID + "/..", NUMBER, RING_BYTES, TOKEN),
        ("", NUMBER, RING_BYTES, TOKEN),
        (RUN_ID, NUMBER + 1, RING_BYTES, TOKEN),
        (RUN_ID, NUMBER, 0, TOKEN),
        (RUN_ID, NUMBER, 1 << 60, TOKEN),
        (RUN_ID, NUMBER, RING_BYTES, b""),
        (RUN_ID, NUMBER, RING_BYTES, TOKEN[:-1]),
        (RUN_ID, NUMBER, RING_BYTES, bytes(TOKEN_BYTES)),
    ],
)
def test_an_answer_that_no_broker_would_give_is_refused(
    ring: int, run_id: str, number: int, size: int, token: bytes
) -> None:
    with pytest.raises(RingUnavailable):
        take_ring(run_id, number, size, token)


def test_where_memory_is_short_nothing_is_left(directory: Path) -> None:
    """A limit for files' sizes stands for a memory file system that is full."""
    program = f"""
import resource
from pathlib import Path
from penstock.shared.memory.ring_file import make_ring
resource.setrlimit(resource.RLIMIT_FSIZE, ({RING_BYTES - 1}, {RING_BYTES - 1}))
try:
    make_ring(Path({str(directory)!r}) / "ring-1", b"token")
except OSError as error:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.stdout == b"refused\n", done.stderr
    assert ring_files(directory) == []
