"""What the writer puts into the log: the same bytes into a segment and into the pool, wherever."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer import log_appender
from penstock.actors.writer.log_appender import LogAppender, place
from penstock.shared.config import Config
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.layout import PAGE_BYTES, segment_name
from penstock.shared.loops.forms import Stamp
from penstock.shared.loops.pure.frame import put_stamped
from penstock.shared.memory.run_directory import Run
from penstock.shared.memory.transient_store_pool import TransientStorePool

SEGMENT_BYTES, POOL_BYTES = 1 << 16, 3 * PAGE_BYTES
STAMP = Stamp(1700000001456, pack_host("192.168.7.9", 10911))


class Put:
    """An appender, and what it has put into its log or its pool."""

    def __init__(self, config: Config, run: Run) -> None:
        directory = config.store / "commitlog"
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / segment_name(0)
        self.file.write_bytes(bytes(SEGMENT_BYTES))
        self.pool = TransientStorePool(run.pool) if run.pool_enabled else None
        self.appender = LogAppender(config, run)

    def there(self, position: int, size: int) -> bytes:
        if self.pool is not None:
            return b"".join(self.pool.pieces(position, position + size))
        return self.file.read_bytes()[position : position + size]

    def close(self) -> None:
        self.appender.close()
        if self.pool is not None:
            self.pool.close()


@pytest.fixture(params=[True, False], ids=["pool", "mapped"])
def put(
    request: pytest.FixtureRequest,
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    tmp_path: Path,
) -> Put:
    config = make_config(
        mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
        transient_store_pool_bytes=POOL_BYTES,
        transient_store_pool_enable=request.param,
    )
    made = Put(config, make_run(config))
    request.addfinalizer(made.close)
    return made


@given(
    st.integers(0, 200).filter(lambda at: at % 64 <= 56),
    st.lists(st.sampled_from([1, 8, 20, 31, 32, 55, 56]), min_size=1, max_size=8),
)
def test_a_record_goes_where_a_blanks_header_has_room_after_it(
    position: int, sizes: list[int]
) -> None:
    """Compared with one record after the other, in segments of 64 bytes."""
    segment_bytes, header_bytes = 64, 8
    places, ends, at = list[int](), list[int](), position
    for size in sizes:
        if at % segment_bytes + size + header_bytes > segment_bytes:
            at += segment_bytes - at % segment_bytes
        places.append(at)
        at += size
        ends.append(at)
    starts = [0, *accumulate(sizes)]
    before = position
    for piece in place(starts, position, segment_bytes):
        assert piece.first < piece.last and piece.position == places[piece.first]
        assert piece.blank == piece.position - before
        for number in range(piece.first, piece.last):
            assert piece.position + starts[number] - starts[piece.first] == places[number]
        before = ends[piece.last - 1]
    assert before == at, "the last piece ends with the last record"


# as far from the ring's end as a frame is long, at most
NEAR_THE_END = st.integers(2 * POOL_BYTES - 2000, 2 * POOL_BYTES + 200)


@given(NEAR_THE_END, st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_records_are_stamped_wherever_the_ring_ends(
    put: Put, position: int, bodies: list[int]
) -> None:
    records = [encode_record(Record("orders", bytes([65 + at]) * n)) for at, n in enumerate(bodies)]
    frame, starts = b"".join(records), [0, *accumulate(map(len, records))]
    offsets = list(range(7, 7 + len(records)))
    put.appender.put_records(position, frame, starts, offsets, STAMP)
    expected = bytearray(len(frame))
    put_stamped(expected, frame, starts, offsets, position, STAMP)
    assert put.there(position, len(frame)) == expected


@given(NEAR_THE_END, st.binary(min_size=1, max_size=2000))
def test_bytes_stand_where_they_were_put_wherever_the_ring_ends(
    put: Put, position: int, data: bytes
) -> None:
    put.appender.put(position, data)
    assert put.there(position, len(data)) == data


@pytest.fixture
def in_memory() -> Iterator[str]:
    """A directory where a file has the blocks of its data, and none for where these are."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield directory


@pytest.mark.parametrize("ahead_bytes", [PAGE_BYTES, 5 * PAGE_BYTES, 1 << 30])
def test_what_is_stored_into_a_mapping_has_blocks_before(
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    monkeypatch: pytest.MonkeyPatch,
    in_memory: str,
    ahead_bytes: int,
) -> None:
    monkeypatch.setattr(log_appender, "AHEAD_BYTES", ahead_bytes)
    config = make_config(
        store_path_root_dir=in_memory,
        mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
        transient_store_pool_enable=False,
    )
    directory = config.store / "commitlog"
    directory.mkdir()
    files = [directory / segment_name(base) for base in (0, SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    for file in files:
        file.touch()
        os.truncate(file, SEGMENT_BYTES)
    appender = LogAppender(config, make_run(config))
    began = at = 3 * PAGE_BYTES + 100
    for stop in (at + 1, at + 3 * PAGE_BYTES, SEGMENT_BYTES + 10, 2 * SEGMENT_BYTES + 1):
        appender.prepare(at, stop)
        holes = [each for file in files for each in _holes(file)]
        assert not any(hole < stop and hole + PAGE_BYTES > began for hole in holes)
        assert 0 in holes, "what comes before the log's end is left as it is"
        at = stop
    monkeypatch.delattr(os, "posix_fallocate")
    appender.prepare(at - 1, at)  # it is asked for once
    appender.close()


def _holes(file: Path) -> list[int]:
    """The log offsets of a segment's pages that have no block."""
    base = int(file.name)
    with open(file, "r+b") as opened:
        found = []
        for at in range(0, SEGMENT_BYTES, PAGE_BYTES):
            before = os.fstat(opened.fileno()).st_blocks
            os.pwrite(opened.fileno(), b"\0", at)
            if os.fstat(opened.fileno()).st_blocks > before:
                found.append(base + at)
                _punch(opened.fileno(), at)
    return found


def _punch(handle: int, at: int) -> None:
    keep_size, punch_hole = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    place = ctypes.c_int64(at), ctypes.c_int64(PAGE_BYTES)
    assert libc.fallocate(handle, keep_size | punch_hole, *place) == 0
