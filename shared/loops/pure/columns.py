"""The loops that make tables of records: bodies and properties as columns, and rows of a listing,
as lines of JSON or as cells. Pure Python.

The twin of what `compiled` has under these names, and the reference for both; `active` chooses the
one that a process uses. Places and numbers are arrays of 64-bit words, lengths are in bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum, body_crc
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BORN_TIMESTAMP,
    body_span,
    fields_at,
)
from penstock.shared.formats.record_outline import Outline, outline
from penstock.shared.loops.forms import FIELDS, Properties

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CRC_AND_BIRTH = fields_at((AT_BODY_CRC, "i"), (AT_BORN_TIMESTAMP, "q"))


def record_fields(
    raw: Buffer,
    named: tuple[Buffer, Buffer, Buffer, Buffer, Buffer],
    topics: Buffer,
    ends: Buffer,
    into: Buffer,
) -> int:
    """Where the parts of records are. Each record must be the one that is named.

    `named` has their starts in `raw`, sizes, log offsets, queue offsets and queue ids; `topics` has
    their topics one after the other, and `ends` where each ends. A single queue id, or a single
    end, counts for all. `into` takes as many words as there are records for each of these: where
    the body begins and its length, where the properties begin and their length, the body's
    checksum, the flags, the times of birth and of storing in ms.

    Returns the index of the first record that is damaged or another one, -1 if all are as named; no
    checksum is compared. Raises ValueError where the arrays do not fit together.
    """
    view = memoryview(raw)
    starts, sizes, physical, offsets, queues = map(_words, named)
    names, count = _names(bytes(memoryview(topics)), _words(ends), len(starts)), len(starts)
    if len(queues) == 1:
        queues *= count
    columns = memoryview(into)
    if {len(sizes), len(physical), len(offsets), len(queues)} - {count} or (
        columns.nbytes != 8 * FIELDS * count
    ):
        raise ValueError(f"the arrays are not of {count} records")
    made: list[tuple[int, ...]] = []
    queues_of = zip(names, queues, offsets, strict=True)
    for start, size, place, queue in zip(starts, sizes, physical, queues_of, strict=True):
        if start < 0 or size < 0 or start + size > len(view):
            return len(made)
        record = view[start : start + size]
        kind, length, _ = examine(record, 0, size, position=place, checksum=Checksum.NONE)
        if kind is not Kind.RECORD or length != size:
            return len(made)
        found = outline(record)
        if (found.topic, found.queue_id, found.queue_offset) != queue:
            return len(made)
        made.append(_fields(record, start, found))
    if made:  # an empty view cannot be cast
        columns.cast("B")[:] = array("q", chain.from_iterable(zip(*made, strict=True))).tobytes()
    return -1


def _names(topics: bytes, ends: array[int], count: int) -> list[bytes]:
    within = [0, *ends, len(topics)]
    if len(ends) not in (1, count) or within != sorted(within):
        raise ValueError(f"the topics of {count} records are not in {len(topics)} bytes")
    if len(ends) == 1:
        return [topics[: ends[0]]] * count
    return [topics[start:end] for start, end in pairwise(within[:-1])]


def _fields(record: memoryview, start: int, found: Outline) -> tuple[int, ...]:
    body_at, body_bytes = body_span(record, 0)
    properties_at = len(record) - len(found.properties)
    crc, born_ms = _CRC_AND_BIRTH.unpack_from(record)
    places = start + body_at, body_bytes, start + properties_at, len(found.properties)
    return *places, crc, found.sys_flag, born_ms, found.store_timestamp_ms


def copy_bodies(raw: Buffer, at: Buffer, sizes: Buffer, crcs: Buffer, target: Buffer) -> int:
    """Copy each body `raw[at : at + size]` after the one before; its checksum is compared.

    Returns the index of the first body with another checksum, -1 if all are sound. Raises
    ValueError for a body that is not in `raw`, and where the target is too small.
    """
    source, into, filled = memoryview(raw), memoryview(target), 0
    if into.nbytes:  # an empty view cannot be cast
        into = into.cast("B")
    for index, (body, crc) in enumerate(zip(_pieces(source, at, sizes), _words(crcs), strict=True)):
        if len(body) > len(into) - filled:
            raise ValueError(f"{len(into)} bytes do not take {filled + len(body)}")
        if not body:  # as in RocketMQ, its checksum is not compared
            continue
        if body_crc(body) != crc:
            return index
        into[filled : filled + len(body)] = body
        filled += len(body)
    return -1


def cut_properties(raw: Buffer, at: Buffer, sizes: Buffer, names: tuple[bytes, ...]) -> Properties:
    """The entries of each properties string `raw[at : at + size]`, as `decode_properties` has them,
    and where those with these names are. Raises ValueError for a string that is not in `raw`."""
    firsts, entries = array("i", [0]), 0
    pieces: tuple[list[bytes], list[bytes]] = [], []
    places = [array("i") for _ in names]
    for text in _pieces(memoryview(raw), at, sizes):
        keys = []
        for key, value in decode_properties(text).items():
            keys.append(key.encode())
            pieces[1].append(value.encode())
        for name, found in zip(names, places, strict=True):
            found.append(entries + keys.index(name) if name in keys else -1)
        pieces[0].extend(keys)
        entries += len(keys)
        firsts.append(entries)
    ends = [_ends(each).tobytes() for each in pieces]
    keyed, valued = (b"".join(each) for each in pieces)
    found_at = tuple(each.tobytes() for each in places)
    return Properties(firsts.tobytes(), ends[0], keyed, ends[1], valued, found_at)


def json_lines(records: Buffer, start: int, with_body: bool, ascii_only: bool) -> tuple[bytes, int]:
    """Lines of JSON for usual records from the one at `start` on, and where these end: at the first
    unusual record, for example one whose properties have a key twice, or at the end of all.

    The fields of a line are not decided here, but in the caller's code that makes rows of any
    record (cli/printing/records.py). That code makes the row of an unusual record. To this twin
    all records are unusual, as it could not be faster.
    """
    return b"", start


def cells(
    records: Buffer, start: int, with_body: bool, shown_time: Callable[[int], str]
) -> tuple[list[list[Any]], int]:
    """The same as cells of a table. `shown_time` makes the cell of a store time, in ms."""
    return [], start


def _pieces(raw: memoryview, at: Buffer, sizes: Buffer) -> list[memoryview]:
    starts, lengths = _words(at), _words(sizes)
    for start, size in zip(starts, lengths, strict=True):
        if start < 0 or size < 0 or start + size > len(raw):
            raise ValueError(f"{size} bytes at {start} are not in a buffer of {len(raw)}")
    return [raw[start : start + size] for start, size in zip(starts, lengths, strict=True)]


def _words(numbers: Buffer) -> array[int]:
    return array("q", bytes(memoryview(numbers)))


def _ends(pieces: Sequence[bytes]) -> array[int]:
    found, end = array("i"), 0
    for piece in pieces:
        end += len(piece)
        found.append(end)
    return found
