"""A walk over any log, read through windows of any size, is what a look at each byte says."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Segment
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind, examine
from penstock.shared.formats.record_crc import Checksum, complete_prop_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from penstock.shared.layout import segment_name
from penstock.shared.log import scan as scanning
from penstock.shared.log.scan import scan

SIZE = 3 << 12
PAGE = 1 << 12
FIRST = 5 * SIZE

_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_RECORDS = {MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big")}

Make = Callable[..., Record]
Step = tuple[int, Kind, int, bytes, str]


def _plain_walk(logs: Sequence[bytes], start: int, checksum: Checksum) -> Iterator[Step]:
    """What `scan` says, by the plain rules: all of a segment is looked at, byte by byte."""
    end, resumed = start, [_places(log, FIRST + at * SIZE) for at, log in enumerate(logs)]
    for index, log in enumerate(logs):
        base = FIRST + index * SIZE
        if base + len(log) <= start:
            continue
        at = max(start - base, 0)
        while at < len(log):
            kind, size, reason = _look(log, at, base, checksum)
            if kind in (Kind.RECORD, Kind.BLANK):
                raw = log[at : at + size] if kind is Kind.RECORD else b""
                yield base + at, kind, size, raw, reason
            else:
                later = next((each for each in resumed[index] if each > at), None)
                if kind is Kind.END and later is None:
                    break
                size = (later or len(log[at:].rstrip(b"\0")) + at or len(log)) - at
                reason = "zeros, but records follow" if kind is Kind.END else ""
                yield base + at, Kind.DAMAGED, size, b"", reason
            at += size
        end = base + at
        if at < len(log):
            if not any(any(each[:8]) for each in logs[index + 1 :]) and not any(
                resumed[index + 1 :]
            ):
                break
            reason = "zeros, but the log goes on behind them"
            yield end, Kind.DAMAGED, len(log) - at, b"", reason
    yield end, Kind.END, 0, b"", ""


def _look(log: bytes, at: int, base: int, checksum: Checksum) -> tuple[Kind, int, str]:
    found = examine(log, at, len(log), position=base + at, checksum=checksum)
    if found[2] != NO_RECORD_CRC:
        return found
    kind, size, reason = examine(log, at, len(log), position=base + at)
    return kind, size, reason or NO_RECORD_CRC


@cache
def _places(log: bytes, base: int) -> list[int]:
    """Where a walk may go on: at each whole record, and at a blank that fits the segment's end."""
    found = []
    for at in range(len(log) - 7):
        magic = log[at + 4 : at + 8]
        if magic == _BLANK and int.from_bytes(log[at : at + 4], "big") == len(log) - at:
            found.append(at)
        looked = examine(log, at, len(log), position=base + at) if magic in _RECORDS else (None,)
        if looked[0] is Kind.RECORD:
            found.append(at)
    return found


def _record(rng: random.Random, make: Make, at: int, body: bytes) -> bytearray:
    """One that may have a checksum of its own, or zeros where properties end."""
    has_crc = rng.random() < 0.5
    properties = with_prop_crc_room(rng.choice([b"", b"TAGS\x01T\x02"]), has_crc)
    magic = rng.choice([MAGIC_V1, MAGIC_V2])
    raw = bytearray(
        encode_record(make(body=body, properties=properties, physical_offset=at, magic=magic))
    )
    if has_crc:
        complete_prop_crc(raw, 0, len(raw))
    elif properties and rng.random() < 0.1:
        raw[-1] = 0
    return raw


def _piece(rng: random.Random, make: Make, at: int) -> bytes:
    """What may stand at a log offset: mostly a record, or something that looks like one."""
    body = rng.randbytes(rng.choice([0, 1, 30, 300, 1500]))
    raw = _record(rng, make, at, body)
    kind = rng.choice(("record",) * 6 + ("bent", "cut", "elsewhere", "around", "junk", "zeros"))
    if kind == "bent":
        raw[rng.choice([0, 2, 3, 5, 16, 20, 27, 30, 87, 90, len(raw) - 1])] ^= rng.choice([1, 128])
    elif kind == "cut":
        del raw[rng.randrange(len(raw)) :]
    elif kind == "elsewhere":
        return bytes(_record(rng, make, at + 1, body))
    elif kind == "around":  # a sound record, and a blank that fits nowhere, inside a damaged one
        inner = _record(rng, make, at + 88, body) + BLANK.pack(rng.randrange(400), MAGIC_BLANK)
        raw = _record(rng, make, at, bytes(inner))
        raw[rng.choice([5, 20, 27])] ^= 1
    elif kind == "junk":
        return rng.choice([b"\x7f", b"\xda\xa3\x20\xa7"]) * rng.randrange(1, 60)
    elif kind == "zeros":
        return bytes(rng.choice([1, 4, 8, 91, 1000, 2 * PAGE]))
    return bytes(raw)


def _segment(rng: random.Random, make: Make, base: int, rest: str) -> bytes:
    """One that is full up to a blank, or ends in zeros, or in no way that a writer leaves."""
    log, limit = bytearray(), rng.choice([SIZE - 200, SIZE - 200, SIZE // 2, 0])
    while len(log) < limit:
        log += _piece(rng, make, base + len(log))
    left = SIZE - len(log)
    if left >= BLANK.size and rest != "zeros":
        off = 0 if rest == "blank" else rng.choice([-1, 1])
        log += BLANK.pack(left + off, MAGIC_BLANK)
    return bytes(log.ljust(SIZE, b"\0")[:SIZE])


def _files(place: Path, logs: Sequence[bytes]) -> list[Segment]:
    """The log as files, in which pages of zeros are holes."""
    found = []
    for number, log in enumerate(logs):
        base = FIRST + number * SIZE
        path = place / segment_name(base)
        with path.open("wb") as file:
            file.truncate(len(log))
            for at in range(0, len(log), PAGE):
                if any(page := log[at : at + PAGE]):
                    file.seek(at)
                    file.write(page)
        found.append(Segment(path, base, len(log)))
    return found


def _steps(walk: Iterator[tuple[int, Kind, int, memoryview, str]]) -> list[Step]:
    """The steps, with the words alone that do not depend on how much was read at once."""
    return [
        (at, kind, size, bytes(record), reason if _is_told(kind, reason) else "")
        for at, kind, size, record, reason in walk
    ]


def _is_told(kind: Kind, reason: str) -> bool:
    return kind is not Kind.DAMAGED or reason.startswith("zeros")


@pytest.mark.parametrize("seed", range(50))
def test_any_log_read_in_any_windows_is_what_a_look_at_each_byte_says(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    rests = [rng.choice(["blank", "blank", "zeros", "off"]) for _ in range(3)]
    logs = [
        _segment(rng, make_record, FIRST + number * SIZE, rest) for number, rest in enumerate(rests)
    ]
    segments = _files(tmp_path, logs)
    monkeypatch.setattr(scanning, "WINDOW_BYTES", rng.choice([100, 128, 333, 2000, PAGE, SIZE]))
    monkeypatch.setattr(scanning, "_SHORT_STRIDE", rng.choice([64, 500]))
    monkeypatch.setattr(scanning, "_ZEROS", bytes(rng.choice([16, 100])))
    for checksum in (Checksum.BODY, Checksum.RECORD, Checksum.NONE):
        known = list(_plain_walk(logs, FIRST, checksum))
        records = [at for at, kind, _, _, _ in known if kind is Kind.RECORD]
        for start in {FIRST, *rng.sample(records, min(2, len(records)))}:
            found = _steps(scan(files := FileCache(), segments, start, checksum=checksum))
            files.close()
            assert found == list(_plain_walk(logs, start, checksum))


def test_a_sound_log_is_read_once_but_for_what_a_window_cuts_off(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, log = 1000, _sound(make_record, FIRST, SIZE - 200)
    record = len(log) // (count := len(log) // 106)
    log += BLANK.pack(SIZE - len(log), MAGIC_BLANK)
    segments = _files(tmp_path, [bytes(log.ljust(SIZE, b"\0"))])
    monkeypatch.setattr(scanning, "WINDOW_BYTES", window)
    files = FileCache()
    found = [kind for _, kind, _, _, _ in scan(files, segments, FIRST)]
    files.close()
    assert found == [Kind.RECORD] * count + [Kind.BLANK, Kind.END]
    assert files.bytes_read <= SIZE + SIZE // (window - record) * record + window


def _sound(make: Make, base: int, until: int) -> bytearray:
    log = bytearray()
    while len(log) < until:
        log += encode_record(make(body=bytes(9), physical_offset=base + len(log)))
    return log


def test_what_has_expired_since_it_was_listed_is_left_out(
    tmp_path: Path, make_record: Make
) -> None:
    logs = []
    for base in range(FIRST, FIRST + 3 * SIZE, SIZE):
        log = _sound(make_record, base, SIZE - 200)
        logs.append(bytes(log) + BLANK.pack(SIZE - len(log), MAGIC_BLANK).ljust(SIZE - len(log)))
    segments = _files(tmp_path, logs)
    segments[0].path.unlink()
    found = _steps(scan(files := FileCache(), segments, FIRST))
    files.close()
    assert found == [
        each for each in _plain_walk(logs, FIRST, Checksum.BODY) if each[0] >= FIRST + SIZE
    ]


@pytest.mark.parametrize("more", [1, 100, SIZE])
def test_a_file_that_is_too_long_hides_nothing_of_the_next_one(
    tmp_path: Path, make_record: Make, more: int
) -> None:
    logs = []
    for base in (FIRST, FIRST + SIZE):
        log = _sound(make_record, base, SIZE - 200)
        logs.append(bytes(log + BLANK.pack(SIZE - len(log), MAGIC_BLANK)).ljust(SIZE, b"\0"))
    first, second = _files(tmp_path, logs)
    os.truncate(first.path, SIZE + more)
    segments = [Segment(first.path, first.base, SIZE + more), second]
    assert _steps(scan(files := FileCache(), segments, FIRST)) == list(
        _plain_walk(logs, FIRST, Checksum.BODY)
    )
    files.close()


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_log_goes_on_after_any_number_of_files_that_lost_all_they_had(
    tmp_path: Path, make_record: Make, lost: int, is_begun: bool
) -> None:
    """The next one has lost its first record, and what is further on in it tells; or only a few of
    its first bytes are there."""
    logs = [bytes(_sound(make_record, FIRST, SIZE // 2)).ljust(SIZE, b"\0"), *[bytes(SIZE)] * lost]
    log = bytes(_sound(make_record, FIRST + len(logs) * SIZE, SIZE // 2))
    logs.append((log[:50] if is_begun else bytes(100) + log[100:]).ljust(SIZE, b"\0"))
    found = _steps(scan(files := FileCache(), _files(tmp_path, logs), FIRST))
    files.close()
    assert found == list(_plain_walk(logs, FIRST, Checksum.BODY))
    assert found[-1][0] > FIRST + (lost + 1) * SIZE


@pytest.mark.parametrize("left", [1, 3, 4, 7, 8, 50, 90, 91, 105])
def test_a_file_that_is_cut_short_after_it_was_listed_is_damaged_where_it_ends(
    tmp_path: Path, make_record: Make, left: int
) -> None:
    log = bytes(_sound(make_record, FIRST, SIZE - 200))
    whole = list(_plain_walk([log.ljust(SIZE, b"\0")], FIRST, Checksum.BODY))
    cut, kind, size, _, _ = whole[-2]
    assert (kind, size) == (Kind.RECORD, 106)
    segments = _files(tmp_path, [log.ljust(SIZE, b"\0")])
    os.truncate(segments[0].path, cut - FIRST + left)
    found = _steps(scan(files := FileCache(), segments, FIRST))
    files.close()
    assert found[: len(whole) - 2] == whole[:-2]
    assert found[-1] == (FIRST + SIZE, Kind.END, 0, b"", "")
    damage = found[len(whole) - 2 : -1]
    assert {kind for _, kind, _, _, _ in damage} == {Kind.DAMAGED}
    assert [at for at, *_ in damage] == [cut, *[at + size for at, _, size, _, _ in damage]][:-1]
    assert sum(size for _, _, size, _, _ in damage) == FIRST + SIZE - cut


def test_the_reason_says_what_a_record_claims_where_it_claims_too_much(
    tmp_path: Path, make_record: Make
) -> None:
    log = _sound(make_record, FIRST, SIZE - 200)
    log[0:4] = (SIZE + 1).to_bytes(4, "big")
    segments = _files(tmp_path, [bytes(log.ljust(SIZE, b"\0"))])
    with closing(FileCache()) as files:
        reason = next(scan(files, segments, FIRST))[4]
    assert reason == f"record of {SIZE + 1} bytes where {SIZE} are left"
    os.truncate(segments[0].path, 106 + 100)
    with closing(FileCache()) as files:
        reason = next(scan(files, segments, FIRST + 106))[4]
    assert reason == "the file has become shorter"


class Written(FileCache):
    """The log of a running broker: some bytes are there only after they were read a few times."""

    def __init__(self, late: set[int], reads: int = 1) -> None:
        super().__init__()
        self._late = dict.fromkeys(late, reads)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        raw = bytearray(super().read(path, offset, size))
        for at, left in self._late.items():
            if left and offset <= at < offset + len(raw):
                raw[at - offset] = 0
                self._late[at] -= 1
        return bytes(raw)


@pytest.mark.parametrize("window", [250, 500, 1000, 5000])
@pytest.mark.parametrize("late_bytes", [range(5, 6), range(8)], ids=["bent", "zeros"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_being_written_is_no_damage_wherever_a_window_begins(
    tmp_path: Path,
    make_record: Make,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    late_bytes: range,
    window: int,
) -> None:
    """The second record is damaged, which says nothing of those that are cut off by a window."""
    log = _sound(make_record, FIRST, SIZE - 200)
    sound = _plain_walk([bytes(log.ljust(SIZE, b"\0"))], FIRST, Checksum.BODY)
    starts = [at - FIRST for at, kind, *_ in sound if kind is Kind.RECORD]
    log[starts[1] + 5] ^= 1
    segments = _files(tmp_path, [bytes(log.ljust(SIZE, b"\0"))])
    whole = list(_plain_walk([bytes(log.ljust(SIZE, b"\0"))], FIRST, Checksum.BODY))
    # never two that follow each other, and not the last one, after which nothing tells of it
    rng = random.Random(seed)
    begun = [at for at in starts[3 + seed % 2 : -1 : 2] if rng.random() < 0.5]
    late = {at + each for at in begun for each in late_bytes}
    monkeypatch.setattr(scanning, "WINDOW_BYTES", window)
    monkeypatch.setattr(scanning, "_SHORT_STRIDE", 64)
    files = Written(late)
    assert _steps(scan(files, segments, FIRST)) == whole
    files.close()


def test_a_record_is_looked_at_again_when_the_one_after_its_window_is_there(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its window has been read twice by then, because of a damaged record."""
    monkeypatch.setattr(scanning, "WINDOW_BYTES", 5 * 106)
    log = _sound(make_record, FIRST, SIZE - 200)
    log[106 + 5] ^= 1
    files = Written({4 * 106 + 5}, reads=2)
    found = _steps(scan(files, _files(tmp_path, [bytes(log.ljust(SIZE, b"\0"))]), FIRST))
    files.close()
    assert found == list(_plain_walk([bytes(log.ljust(SIZE, b"\0"))], FIRST, Checksum.BODY))


def test_the_end_of_a_log_grows_in_a_window_that_is_read_again(
    tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_ZEROS", bytes(16))
    log = _sound(make_record, FIRST, SIZE - 200)
    for number in (1, 10):
        log[number * 106 + 5] ^= 1
    files = Written(set(range(5 * 106, SIZE)))
    found = _steps(scan(files, _files(tmp_path, [bytes(log.ljust(SIZE, b"\0"))]), FIRST))
    files.close()
    assert found == list(_plain_walk([bytes(log.ljust(SIZE, b"\0"))], FIRST, Checksum.BODY))


def test_a_record_that_is_written_at_the_tail_of_a_segment_that_is_left_then_is_not_passed_over(
    tmp_path: Path, make_record: Make
) -> None:
    """The walk stands at the log's end, and meanwhile the writer begins the next segment."""
    logs, tails = [], []
    for base in (FIRST, FIRST + SIZE):
        log = _sound(make_record, base, SIZE - 200)
        tails.append(len(log) - len(encode_record(make_record(body=bytes(9)))))
        logs.append(bytes(log) + BLANK.pack(SIZE - len(log), MAGIC_BLANK).ljust(SIZE - len(log)))
    segments = _files(tmp_path, logs)
    files = Written({*range(tails[0], SIZE)})
    assert _steps(scan(files, segments, FIRST)) == list(_plain_walk(logs, FIRST, Checksum.BODY))
    files.close()
