"""The loops of whoever makes a table of records: bodies and properties as columns, and rows of a
listing, as lines of JSON or as cells. Pure Python.

The twin of what `compiled` has under these names, and the reference for both; `active` chooses the
one that a process uses. Places and numbers are arrays of 64-bit words, lengths are in bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record_crc import body_crc
from penstock.shared.loops.forms import Properties

if TYPE_CHECKING:
    from typing_extensions import Buffer


def copy_bodies(raw: Buffer, at: Buffer, sizes: Buffer, crcs: Buffer, target: Buffer) -> int:
    """Copy each body `raw[at : at + size]` after the one before, its checksum compared.

    The index of the first body that has another checksum, -1 where all are sound. Raises
    ValueError for a body that is not in `raw`, and where the target is too small.
    """
    source, into, filled = memoryview(raw), memoryview(target), 0
    if into.nbytes:  # what is empty cannot be cast
        into = into.cast("B")
    for index, (body, crc) in enumerate(zip(_pieces(source, at, sizes), _words(crcs), strict=True)):
        if len(body) > len(into) - filled:
            raise ValueError(f"{len(into)} bytes do not take {filled + len(body)}")
        if not body:  # of which no checksum is compared, as in RocketMQ
            continue
        if body_crc(body) != crc:
            return index
        into[filled : filled + len(body)] = body
        filled += len(body)
    return -1


def cut_properties(raw: Buffer, at: Buffer, sizes: Buffer, names: tuple[bytes, ...]) -> Properties:
    """The entries of each properties string `raw[at : at + size]`, as `decode_properties` has them,
    and where those of these names are. Raises ValueError for one that is not in `raw`."""
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
    """Lines of JSON of the usual ones of some records, from the one at `start` on; and where the
    first begins that is unusual, as one is whose properties have a key twice, or the records end.

    Which fields a line has is not said here but where rows are made of any record, by whoever asks
    (cli/printing/records.py). It makes that of an unusual one; and all of them here, where none is
    usual, as this could not be faster.
    """
    return b"", start


def cells(
    records: Buffer, start: int, with_body: bool, shown_time: Callable[[int], str]
) -> tuple[list[list[Any]], int]:
    """The same as cells of a table. `shown_time` makes the one of a store time, in ms."""
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
