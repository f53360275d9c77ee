"""The pool: a ring that is, for every offset within reach, the log itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.memory.transient_store_pool import TransientStorePool, create_pool

SIZE = 4096


@given(
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=25),
)
def test_what_was_written_and_not_yet_taken_reads_as_one_log(
    tmp_path_factory: pytest.TempPathFactory, start: int, steps: list[tuple[int, int]]
) -> None:
    """Writer and committer take turns, as far as each may go; the model is a plain bytearray."""
    file = tmp_path_factory.mktemp("pool") / "pool"
    create_pool(file, SIZE)
    pool, other = TransientStorePool(file, writable=True), TransientStorePool(file)
    log = bytearray()
    wrote = committed = start
    pieces: list[memoryview] = []
    for number, (wanted, taken) in enumerate(steps):
        data = bytes([number + 1]) * min(wanted, committed + SIZE - wrote)
        pool.write(wrote, data)
        log += data
        wrote += len(data)
        pieces = other.pieces(committed, wrote)
        assert b"".join(pieces) == log[committed - start :]
        assert len(pieces) == 1 + (committed % SIZE + wrote - committed > SIZE)
        committed = min(wrote, committed + taken)
        assert b"".join(other.pieces(committed, wrote)) == log[committed - start :]
    # what was taken stays until it is written over
    low = max(start, wrote - SIZE)
    assert b"".join(other.pieces(low, wrote)) == log[low - start :]
    del pieces
    pool.close()
    other.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_written_across_the_wrap(tmp_path: Path, kind: type) -> None:
    create_pool(tmp_path / "pool", SIZE)
    pool = TransientStorePool(tmp_path / "pool", writable=True)
    pool.write(SIZE - 3, kind(b"abcdef"))
    assert [bytes(piece) for piece in pool.pieces(SIZE - 3, SIZE + 3)] == [b"abc", b"def"]
    assert [bytes(piece) for piece in pool.pieces(SIZE, SIZE + 2)] == [b"de"]
    pool.close()
    assert (tmp_path / "pool").read_bytes()[:3] == b"def"


def test_only_the_writer_can_write(tmp_path: Path) -> None:
    create_pool(tmp_path / "pool", SIZE)
    pool = TransientStorePool(tmp_path / "pool")
    assert pool.size == SIZE
    with pytest.raises(TypeError):
        pool.write(0, b"x")
    pool.close()


def test_the_memory_is_there_from_the_start_and_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "pool"
    create_pool(file, 1 << 20)
    assert file.stat().st_blocks * 512 >= 1 << 20
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_pool(file, SIZE)


def test_a_pool_that_finds_no_memory_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        create_pool(tmp_path / "pool", 1 << 60)
