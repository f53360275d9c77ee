"""The live log: where records go, and reading what stands partly in files, partly in the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer.log_appender import LogAppender, place
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import segment_name
from penstock.shared.log.reader import (
    LOOK_BYTES,
    LogReader,
    first_size,
    whole_records,
)
from penstock.shared.loops.pure.walk import walk
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run

ConfigMaker = Callable[..., Config]
RunMaker = Callable[[Config], Run]
RecordMaker = Callable[..., Record]
SEGMENT = 4096


# --- placing ---


def rocketmq_places(sizes: list[int], end: int, segment: int) -> list[tuple[str, int, int]]:
    """What RocketMQ appends, a record at a time: (what, position, size)."""
    done = []
    for size in sizes:
        left = segment - end % segment
        if size + 8 > left:
            done.append(("blank", end, left))
            end += left
        done.append(("record", end, size))
        end += size
    return done


@given(
    st.lists(st.integers(91, SEGMENT - 8), min_size=1, max_size=30),
    st.integers(0, 40),
    st.integers(0, SEGMENT - 8),
)
def test_records_go_where_rocketmq_would_put_them(
    sizes: list[int], segments: int, into: int
) -> None:
    end = segments * SEGMENT + into
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    done, expected_first = [], 0
    for piece in place(starts, end, SEGMENT):
        assert piece.first == expected_first < piece.last, "every record once, in order"
        expected_first = piece.last
        if piece.blank:
            done.append(("blank", piece.position - piece.blank, piece.blank))
        for i in range(piece.first, piece.last):
            at = piece.position + starts[i] - starts[piece.first]
            done.append(("record", at, sizes[i]))
    assert expected_first == len(sizes)
    assert done == rocketmq_places(sizes, end, SEGMENT)


@pytest.mark.parametrize(
    ("left", "size", "blank"), [(108, 100, 0), (107, 100, 107), (8, 100, 8), (4096, 4088, 0)]
)
def test_a_record_needs_room_for_a_blanks_header_behind_it(
    left: int, size: int, blank: int
) -> None:
    position = 2 * SEGMENT - left
    (piece,) = place([0, size], position, SEGMENT)
    assert (piece.position, piece.blank) == (position + blank, blank)


# --- reading and appending ---


class Log:
    """A log with a writer, a committer's hand and a reader, in one process."""

    def __init__(self, config: Config, run: Run, make: RecordMaker) -> None:
        self.directory = config.store / "commitlog"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.size = config.mapped_file_size_commit_log_bytes
        self._make = make
        self.positions = Positions(run.positions, owner="supervisor")
        self.add_segment()
        self.appender = LogAppender(config, run)
        self.reader = LogReader(config, run, self.positions)
        self.end = 0
        self.raw = b""

    def add_segment(self) -> None:
        count = len(list(self.directory.iterdir()))
        (self.directory / segment_name(count * self.size)).write_bytes(bytes(self.size))

    def append(self, *bodies: int) -> None:
        """Records with bodies of these lengths, as the writer puts them."""
        for length in bodies:
            record = encode_record(self._make(body=b"x" * length, physical_offset=self.end))
            (piece,) = place([0, len(record)], self.end, self.size)
            if piece.blank:
                self.appender.put_blank(self.end, piece.blank)
                self.raw += BLANK.pack(piece.blank, MAGIC_BLANK).ljust(piece.blank, b"\0")
                self.add_segment()
                record = encode_record(
                    self._make(body=b"x" * length, physical_offset=piece.position)
                )
            self.appender.put(piece.position, record)
            self.raw += record
            self.end = piece.position + len(record)
        self.positions.initialise("wrote", self.end)

    def commit(self, position: int) -> None:
        """Do what the committer does, or what the writer has done already where no pool is."""
        committed = self.positions["committed"]
        for at in range(committed, position):
            path = self.directory / segment_name(at - at % self.size)
            with path.open("r+b") as file:
                file.seek(at % self.size)
                file.write(self.raw[at : at + 1])
        self.positions.initialise("committed", position)

    def read(self, start: int = 0, window_bytes: int = LOOK_BYTES) -> list[int]:
        """The positions of the records from `start` to the log's end."""
        found = []
        for position, piece in self.reader.pieces(start, self.end, window_bytes):
            assert bytes(piece) == self.raw[position : position + len(piece)]
            found += [dispatch.position for dispatch in walk(piece, position)]
        return found

    def records(self) -> list[int]:
        """What `read` must find, from the bytes themselves."""
        at, found = 0, []
        while at < len(self.raw):
            size, magic = BLANK.unpack_from(self.raw, at)
            found += [at] if magic != MAGIC_BLANK else []
            at += size
        return found

    def close(self) -> None:
        self.appender.close()
        self.reader.close()
        self.positions.close()


@pytest.fixture(params=[True, False], ids=["pool", "no-pool"])
def log(
    request: pytest.FixtureRequest,
    make_config: ConfigMaker,
    make_run: RunMaker,
    make_record: RecordMaker,
) -> Iterator[Log]:
    config = make_config(
        transient_store_pool_enable=request.param, transient_store_pool_bytes=16384
    )
    log = Log(config, make_run(config), make_record)
    yield log
    log.close()


def test_pieces_are_all_records_wherever_their_bytes_are(log: Log) -> None:
    log.append(900, 900, 900, 900, 900, 1900, 1900)
    ends = [*log.records(), log.end]
    assert log.raw.count(MAGIC_BLANK.to_bytes(4, "big")) == 2
    for committed in ends:
        log.commit(committed)
        assert log.read() == ends[:-1], f"committed up to {committed}"


def test_pieces_may_begin_at_any_record_and_at_a_blank(log: Log) -> None:
    log.append(1900, 1900, 1900)
    first, second, third = log.records()
    log.commit(second)
    assert log.read(second) == [second, third]
    assert third % SEGMENT == 0
    blank = log.raw.index(MAGIC_BLANK.to_bytes(4, "big")) - 4
    assert log.read(blank) == [third]
    assert log.read(log.end) == []


def test_pieces_end_where_they_are_to_whatever_the_log_has_after_that(log: Log) -> None:
    log.append(900, 900, 1900, 1900, 900)
    starts = log.records()
    for committed in (0, starts[1], starts[3], log.end):
        log.commit(committed)
        for number, stop in enumerate(starts):
            pieces = list(log.reader.pieces(0, stop))
            found = [each.position for at, piece in pieces for each in walk(piece, at)]
            assert found == starts[:number]


def test_what_is_being_committed_is_still_read_where_the_writer_put_it(log: Log) -> None:
    log.append(100, 900)
    first, second = log.records()
    log.commit(second)
    with (log.directory / segment_name(0)).open("r+b") as file:
        file.seek(second)
        file.write(log.raw[second : second + 200])
        file.seek(log.end - 200)
        file.write(log.raw[log.end - 200 :])
    assert log.read() == [first, second]
    assert bytes(log.reader.record(second)) == log.raw[second:]


def test_a_record_larger_than_a_look_is_read_whole(log: Log) -> None:
    log.append(100, 2000, 100, 1500)
    for committed in (0, log.end):
        log.commit(committed)
        assert log.read(window_bytes=1024) == log.records()
        for at in log.records():
            size = int.from_bytes(log.raw[at : at + 4], "big")
            assert bytes(log.reader.record(at)) == log.raw[at : at + size]


def test_pieces_leave_out_what_has_expired(log: Log) -> None:
    log.append(1900, 1900, 1900)
    log.commit(log.end)
    log.positions.initialise("log_start", SEGMENT)
    (log.directory / segment_name(0)).unlink()
    assert log.read(0) == [SEGMENT]


@pytest.mark.parametrize("start", [1, 50, 120, 4090])
def test_pieces_refuse_to_begin_inside_a_record(log: Log, start: int) -> None:
    log.append(900, 900, 900, 900, 100)
    log.commit(log.end)
    with pytest.raises(StoreDamaged):
        list(log.reader.pieces(start, log.end))


def test_a_blank_inside_a_body_is_no_blank(log: Log, make_record: RecordMaker) -> None:
    """Whoever says where to begin may point into a body, and the body may hold anything."""
    log.append(100)
    trap = encode_record(
        make_record(body=BLANK.pack(1 << 30, MAGIC_BLANK) * 9, physical_offset=log.end)
    )
    at = log.end + trap.index(BLANK.pack(1 << 30, MAGIC_BLANK))
    log.appender.put(log.end, trap)
    log.raw += trap
    log.end += len(trap)
    log.commit(log.end)
    with pytest.raises(StoreDamaged):
        list(log.reader.pieces(at, log.end))


def test_bytes_come_back_as_they_were_put(log: Log) -> None:
    log.appender.put(4000, b"a" * 96)
    log.appender.put(5, memoryview(b"bcd"))
    log.raw = bytes(5) + b"bcd" + bytes(3992) + b"a" * 96
    log.commit(4096)
    assert bytes(log.reader.view(0, 4096)) == log.raw
    assert bytes(log.reader.view(4094, 9999)) == b"aa"
    with pytest.raises(FileNotFoundError):
        log.reader.view(4096, 4097)


def test_room_is_bounded_by_the_segments_and_by_the_ring(
    make_config: ConfigMaker, make_run: RunMaker
) -> None:
    config = make_config(transient_store_pool_bytes=8192)
    pooled = LogAppender(config, make_run(config))
    assert pooled.room(committed=1000, allocated=1 << 20) == 9192
    assert pooled.room(committed=1000, allocated=4096) == 4096
    config = make_config(transient_store_pool_enable=False)
    direct = LogAppender(config, make_run(config))
    assert direct.room(committed=1000, allocated=1 << 20) == 1 << 20
    pooled.close()
    direct.close()


def test_without_a_pool_what_a_dead_writer_left_unpublished_is_zeroed(
    make_config: ConfigMaker, make_run: RunMaker
) -> None:
    config = make_config(transient_store_pool_enable=False)
    directory = config.store / "commitlog"
    directory.mkdir(parents=True)
    paths = [directory / segment_name(i * SEGMENT) for i in range(3)]
    for path in paths:
        path.write_bytes(b"x" * SEGMENT)
    appender = LogAppender(config, make_run(config))
    appender.forget_beyond(SEGMENT + 100, 3 * SEGMENT)
    appender.close()
    assert [path.read_bytes().count(b"x") for path in paths] == [SEGMENT, 100, 0]


def test_with_a_pool_the_segments_are_left_alone(
    make_config: ConfigMaker, make_run: RunMaker
) -> None:
    config = make_config()
    directory: Path = config.store / "commitlog"
    directory.mkdir(parents=True)
    path = directory / segment_name(0)
    path.write_bytes(b"x" * SEGMENT)
    appender = LogAppender(config, make_run(config))
    appender.forget_beyond(100, SEGMENT)
    appender.close()
    assert path.read_bytes() == b"x" * SEGMENT


def test_whole_records_end_at_a_blank_a_cut_and_at_zeros(make_record: RecordMaker) -> None:
    first = encode_record(make_record(physical_offset=500))
    size = len(first)
    raw = first + encode_record(make_record(physical_offset=500 + size))
    for after in (b"", bytes(99), BLANK.pack(99, MAGIC_BLANK).ljust(99, b"\0"), raw, raw[:7]):
        assert whole_records(memoryview(raw + after), 500) == 2 * size
    assert whole_records(memoryview(raw[:-1]), 500) == size
    assert whole_records(memoryview(raw), 501) == 0
    assert whole_records(memoryview(b""), 0) == 0


def test_recent_bytes_come_from_the_pool_and_from_the_segments(log: Log) -> None:
    log.append(100, 200)
    log.commit(half := log.end)
    log.append(300, 400)
    for start, stop in ((0, half), (half, log.end), (0, log.end), (half - 50, log.end - 10)):
        assert log.reader.recent(start, stop) == log.raw[start:stop]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_copy_that_the_writer_wrote_into_meanwhile_is_not_believed(log: Log, parts: int) -> None:
    """The ring comes round while it is read, to all that is wanted or to its first half."""
    if log.reader._pool is None:
        return  # the bytes stand in the segment from the beginning
    log.append(100)
    wanted, again = log.raw, len(log.raw) // parts

    class Overtaken:
        """The pool, whose bytes are others by the time they are joined."""

        def __init__(self, pool: Any) -> None:
            self._pool = pool

        def pieces(self, start: int, stop: int) -> list[memoryview]:
            pieces: list[memoryview] = self._pool.pieces(start, stop)
            log.commit(again)
            log.appender.put(self._pool.size, b"?" * again)
            return pieces

    pool, overtaken = log.reader._pool, Overtaken(log.reader._pool)
    vars(log.reader)["_pool"] = overtaken
    assert log.reader.recent(0, len(wanted)) == wanted
    vars(log.reader)["_pool"] = pool


@pytest.mark.parametrize("size", [0, 1, 300, 70_000])
def test_a_record_says_at_its_beginning_how_long_it_is(
    make_record: Callable[..., Any], size: int
) -> None:
    raw = encode_record(make_record(body=bytes(size)))
    assert first_size(memoryview(raw)) == first_size(memoryview(raw + bytes(9))) == len(raw)
