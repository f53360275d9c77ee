"""How many slots an index file has, found by inspection: nothing in the file says it.

A file of `length` bytes is 40 + 4 * slots + 20 * items. So the number of slots can only grow in
steps of five, and with every step all items move by one row of five words. In only one place does
all of this fit: a row of zeros (item 0, which is never used), then items that begin and end at the
log offsets that the header names, and slots that each name the newest item of their hashes. Reads
only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.formats.index_layout import (
    HEADER,
    SLOT_BYTES,
    Geometry,
    IndexHeader,
    decode_header,
)
from penstock.shared.loops.active import PageWatch

_WORD = np.dtype(">i4")
_ROW_WORDS = 5
_ROWS_AT_ONCE = 1 << 20
# This many of the newest items are compared with the slots.
_LOOKED_AT = 1 << 16
# With fewer items than this a second place could fit by chance, so all places are examined.
_FEW = 16

Words = npt.NDArray[np.int32]


def find_geometry(files: Sequence[Path], guesses: Sequence[Geometry]) -> Geometry | None:
    """The geometry of files of one length; None where their content does not tell.

    The file with the most items is examined, because each item is one more thing that has to fit. A
    guess that fits is taken without a search, and an index without items fits the first guess.
    """
    # the last is held until the words have been looked at
    header, words, _watched = max(map(_opened, files), key=lambda each: each[0].next_item)
    if header.next_item <= 1:
        return guesses[0] if guesses else None
    for guess in guesses:
        if header.next_item <= guess.items and _fits(words, header, guess.slots):
            return guess
    # if all items are in one slot they say no more than the last of them
    says_little = header.next_item <= _FEW or header.slots_in_use == 1
    found: list[int] = []
    for slots in _candidates(words, header):
        if _fits(words, header, slots):
            found.append(slots)
            # with many items the first place that fits is the right one; with few the search goes
            # on for a second one, and if there is one the answer is unknown
            if not says_little or len(found) > 1:
                break
    if not found or says_little and len(found) > 1:
        return None
    return Geometry(found[0], (len(words) - found[0]) // _ROW_WORDS)


def _opened(path: Path) -> tuple[IndexHeader, Words, PageWatch | None]:
    """The header, slots and items as one array of words, mapped, and the watch on its pages.

    A file without room for one slot is like one without items. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = take_descriptor(lambda: os.open(path, flags))
    try:
        size = os.fstat(handle).st_size
        if size < HEADER.size + SLOT_BYTES:
            return IndexHeader(), np.empty(0, _WORD), None
        mapped = take_descriptor(lambda: mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ))
    finally:
        os.close(handle)
    watched = PageWatch(mapped)
    words = np.frombuffer(mapped, _WORD, (size - HEADER.size) // SLOT_BYTES, HEADER.size)
    return decode_header(mapped), words, watched


def _candidates(words: Words, header: IndexHeader) -> Iterator[int]:
    """Numbers of slots for which the first and the last item are where the header says.

    Rows are compared in pieces, as arrays: a file of the default geometry has 20 million of them.
    Each comparison is done only for the rows that have passed the one before.
    """
    count = header.next_item - 1
    odd = len(words) % _ROW_WORDS
    rows = words[odd:].reshape(-1, _ROW_WORDS)
    begin, end = (
        np.frombuffer(offset.to_bytes(8, "big", signed=True), _WORD)
        for offset in (header.begin_offset, header.end_offset)
    )
    for low in range(0, len(rows) - count, _ROWS_AT_ONCE):
        high = min(low + _ROWS_AT_ONCE, len(rows) - count)
        last = rows[low + count : high + count]
        # if item 0 is in row `at`, item k is in row at + k, and odd + 5 * at slots come before it
        at = low + np.flatnonzero((last[:, 1] == end[0]) & (last[:, 2] == end[1]))
        first = rows[at + 1]
        at = at[(first[:, 1] == begin[0]) & (first[:, 2] == begin[1]) & (first[:, 4] == 0)]
        at = at[(rows[at] == 0).all(axis=1)]
        slots = odd + _ROW_WORDS * at
        hashes = rows[at + count, 0].astype(np.int64)
        at_slot = np.where((hashes >= 0) & (slots > 0), hashes % np.maximum(slots, 1), 0)
        yield from slots[(slots > 0) & (hashes >= 0) & (words[at_slot] == count)].tolist()


def _fits(words: Words, header: IndexHeader, slots: int) -> bool:
    """Whether slots and the newest items name each other, and the header's count of used slots is
    right."""
    count = header.next_item - 1
    first = max(count - _LOOKED_AT, 0) + 1
    start = slots + _ROW_WORDS * first
    items = words[start : slots + _ROW_WORDS * (count + 1)]
    if len(items) != _ROW_WORDS * (count + 1 - first):
        return False
    rows = items.reshape(-1, _ROW_WORDS)
    hashes = rows[:, 0].astype(np.int64)
    if (hashes < 0).any() or int(np.count_nonzero(words[:slots])) != header.slots_in_use:
        return False
    # each slot once, with the newest of its items
    targets, from_behind = np.unique((hashes % slots)[::-1], return_index=True)
    newest = count - from_behind
    return bool((words[:slots][targets] == newest).all())
