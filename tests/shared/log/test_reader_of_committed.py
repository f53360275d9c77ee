"""What any actor reads of the committed log: up to damage, and not what has expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import damage_between, save_quarantine
from penstock.shared.log.reader import REST_MS, LogReader, reach_bytes, with_beats
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run

SEGMENT = 4096


@pytest.fixture
def open_log(
    make_config: Callable[..., Config], make_run: Callable[[Config], Run]
) -> Iterator[Callable[..., LogReader]]:
    """A log of two segments, whose bytes tell their places, and how it is opened."""
    config = make_config(transient_store_pool_enable=False)
    paths = StorePaths(config.store)
    paths.commit_log.mkdir(parents=True)
    run, opened = make_run(config), list[LogReader | Positions]()

    def open_it(raw: bytes, *damaged: tuple[int, int], read_only: int = 1) -> LogReader:
        for base in range(0, 2 * SEGMENT, SEGMENT):
            content = raw[base : base + SEGMENT].ljust(SEGMENT, b"\0")
            (paths.commit_log / segment_name(base)).write_bytes(content)
        found = [damage_between(paths, SEGMENT, *each, "bent")[0] for each in damaged]
        save_quarantine(paths, found, 5)
        positions = Positions(run.positions, owner="supervisor")
        for name in ("wrote", "committed"):
            positions.initialise(name, len(raw))
        positions.initialise("read_only", read_only)
        opened.extend((log := LogReader(config, run, positions), positions))
        return log

    yield open_it
    for each in opened:
        each.close()


RAW = bytes(number % 251 for number in range(2 * SEGMENT))


@pytest.mark.parametrize(
    ("start", "limit", "stop"),
    [
        (0, 50, 50),
        (0, 100, 100),
        (0, 101, 100),
        (0, 9999, 100),
        (100, 9999, 100),
        (150, 9999, 300),
        (200, 300, 300),
        (310, 9999, SEGMENT),
        (SEGMENT, 9999, 2 * SEGMENT),
    ],
)
def test_a_view_ends_before_the_next_damage_and_with_its_segment(
    open_log: Callable[..., LogReader], start: int, limit: int, stop: int
) -> None:
    log = open_log(RAW, (100, 120), (300, 310))
    assert bytes(log.view(start, limit)) == RAW[start:stop]


def test_of_a_store_that_takes_messages_no_list_of_damage_is_read(
    open_log: Callable[..., LogReader],
) -> None:
    log = open_log(RAW, (100, 120), read_only=0)
    assert not log.damaged
    assert bytes(log.view(0, 9999)) == RAW[:SEGMENT]


def test_the_store_time_is_the_record_s_own_while_it_is_there(
    open_log: Callable[..., LogReader], make_record: Callable[..., Record]
) -> None:
    raw, times = b"", {}
    for stored_ms in (1_700_000_000_001, 1_800_000_000_002, 0x0102030405060708):
        times[len(raw)] = stored_ms
        raw += encode_record(make_record(physical_offset=len(raw), store_timestamp_ms=stored_ms))
    log = open_log(raw, read_only=0)
    assert {at: log.stored_ms(at) for at in times} == times
    second = [*times][1]
    log._positions.initialise("log_start", second)
    assert [log.stored_ms(at) for at in times] == [None, *[*times.values()][1:]]
    assert log.stored_ms(2 * SEGMENT) is None, "its file is gone"


def test_a_segment_that_expires_while_it_is_opened_is_left_out_and_the_next_one_read(
    open_log: Callable[..., LogReader],
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = encode_record(make_record(physical_offset=0))
    left = SEGMENT - len(first)
    second = encode_record(make_record(physical_offset=SEGMENT))
    raw = first + BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0") + second
    log = open_log(raw, read_only=0)
    piece = log._piece

    def expire_and_read(start: int, stop: int, committed: int) -> memoryview:
        """The cleaner's turn comes after the look at where the log begins."""
        log._positions.initialise("log_start", SEGMENT)
        (log._segments.directory / segment_name(0)).unlink(missing_ok=True)
        return piece(start, stop, committed)

    monkeypatch.setattr(log, "_piece", expire_and_read)
    found = [(at, bytes(view)) for at, view in log.pieces(0, len(raw))]
    assert found == [(SEGMENT, second)]


def test_a_way_to_read_the_log_beats_once_a_piece_and_gives_the_same() -> None:
    asked, beats = [], []

    def pieces(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
        asked.append((start, stop, window_bytes))
        for at in range(start, stop):
            yield at, memoryview(b"x")

    beating = with_beats(pieces, lambda: beats.append(len(seen)))
    seen: list[int] = []
    for at, _ in beating(3, 6, 77):
        seen.append(at)
    assert (seen, beats, asked) == ([3, 4, 5], [0, 1, 2], [(3, 6, 77)])


def test_a_writer_reaches_a_frame_and_its_blanks_past_what_it_has_published(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config()
    assert reach_bytes(config) == 3 * config.max_frame_bytes


@pytest.mark.parametrize("look", ["view", "segment", "record", "pieces", "recent"])
def test_whatever_was_looked_at_is_given_back_after_a_rest(
    open_log: Callable[..., LogReader], make_record: Callable[..., Record], look: str
) -> None:
    raw = encode_record(make_record())
    log = open_log(raw, read_only=0)
    found = {
        "view": lambda: log.view(0, len(raw)),
        "segment": lambda: log.segment(0, len(raw))[: len(raw)],
        "record": lambda: log.record(0),
        "pieces": lambda: b"".join(bytes(piece) for _, piece in log.pieces(0, len(raw))),
        "recent": lambda: log.recent(0, len(raw)),
    }[look]()
    assert bytes(found) == raw
    assert not log.rest(1000) and log.rest(1001 + REST_MS)


@pytest.mark.parametrize("window_bytes", [20, 50, 110, 230, 5000])
def test_a_piece_is_a_look_at_most_or_one_record(
    open_log: Callable[..., LogReader], make_record: Callable[..., Record], window_bytes: int
) -> None:
    raw, sizes = b"", []
    for _ in range(9):
        sizes.append(len(one := encode_record(make_record(physical_offset=len(raw)))))
        raw += one
    log = open_log(raw, read_only=0)
    pieces = [bytes(piece) for _, piece in log.pieces(0, len(raw), window_bytes)]
    assert b"".join(pieces) == raw
    assert all(len(each) <= max(window_bytes, sizes[0]) for each in pieces)


@pytest.mark.parametrize(
    "damaged",
    [[], [(2, 4)], [(0, 1), (3, 4), (4, 6)], [(6, 8)], [(7, 9), (11, 12)], [(0, 12)]],
    ids=str,
)
def test_pieces_are_what_lies_between_two_offsets_without_the_damage(
    open_log: Callable[..., LogReader],
    make_record: Callable[..., Record],
    damaged: list[tuple[int, int]],
) -> None:
    """Ranges of records, of which six are in each segment, with a blank after those of the first.
    The last one of that segment is damaged together with the blank."""
    raw, starts = b"", list[int]()
    for number in range(12):
        if number == 6:
            left = SEGMENT - len(raw)
            raw += BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
        starts.append(len(raw))
        raw += encode_record(make_record(physical_offset=len(raw), body=bytes(500)))
    ends = [*starts[1:], len(raw)]
    lost = {number for first, last in damaged for number in range(first, last)}
    ranges = list[tuple[int, int]]()
    for number in lost:
        ranges.append((starts[number], ends[number]))
        # in its body: the record's lengths still add up
        raw = raw[: starts[number] + 300] + b"\x7f" + raw[starts[number] + 301 :]
    log = open_log(raw, *ranges)
    for first, start in enumerate(starts):
        for last in range(first, 13):
            stop = ends[last - 1] if last > first else start
            found = list(log.pieces(start, stop, 1300))
            whole = [number for number in range(first, last) if number not in lost]
            seen = [at for at in starts for begin, piece in found if 0 <= at - begin < len(piece)]
            assert seen == [starts[number] for number in whole]
            for begin, piece in found:
                assert bytes(piece) == raw[begin : begin + len(piece)]


def test_a_segment_that_is_missing_where_the_log_begins_has_not_expired(
    open_log: Callable[..., LogReader], make_record: Callable[..., Record]
) -> None:
    log = open_log(raw := encode_record(make_record()), read_only=0)
    (log._segments.directory / segment_name(0)).unlink()
    with pytest.raises(FileNotFoundError):
        next(log.pieces(0, len(raw)))
