"""The properties strings of many records as one Arrow map array.

Regular strings (`key 0x01 value 0x02`, again and again) are cut at their separators, all records at
once. With one irregular string among them (an entry to skip, a key that comes twice, bytes that are
not UTF-8, no final 0x02) the batch goes through `decode_properties`, which is the reference.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.shared.formats.properties import decode_properties
from penstock.spark.gather import gather

MAP = pa.map_(pa.string(), pa.string())


def property_map(raw: pa.BinaryArray) -> pa.MapArray:
    """A map for each string, as `decode_properties` gives it. `raw` has no nulls."""
    regular = _regular_map(raw)
    if regular is not None:
        return regular
    return pa.array([list(decode_properties(text).items()) for text in raw.to_pylist()], MAP)


def value_of(maps: pa.MapArray, key: str) -> pa.StringArray:
    """The value each map has for this key; null where it has none."""
    entries = np.flatnonzero(pc.equal(maps.keys, key).to_numpy(zero_copy_only=False))
    owners = np.searchsorted(maps.offsets.to_numpy(), entries, side="right") - 1
    chosen = np.full(len(maps), -1)
    chosen[owners] = entries
    return maps.items.take(pa.array(chosen, mask=chosen < 0))


def _regular_map(raw: pa.BinaryArray) -> pa.MapArray | None:
    """The maps when all strings are regular, else None."""
    _, bounds_buffer, data = raw.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int32)[raw.offset : raw.offset + len(raw) + 1]
    text = np.frombuffer(data, np.uint8)[: bounds[-1]] if data else np.empty(0, np.uint8)
    marks = np.flatnonzero((text == 1) | (text == 2))
    middles, ends = marks[0::2], marks[1::2]
    if len(middles) != len(ends) or (text[middles] != 1).any() or (text[ends] != 2).any():
        return None
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    filled = bounds[1:] > bounds[:-1]
    closed = text[bounds[1:][filled] - 1] == 2  # else an entry would run into the next record
    if not closed.all() or (middles <= starts).any() or (ends <= middles + 1).any():
        return None
    if not len(ends):
        return pa.MapArray.from_arrays(
            np.zeros(len(raw) + 1, np.int32), pa.array([], pa.string()), pa.array([], pa.string())
        )
    try:
        keys = gather(data, starts, middles - starts).cast(pa.string())
        values = gather(data, middles + 1, ends - middles - 1).cast(pa.string())
    except pa.ArrowInvalid:
        return None  # not UTF-8
    firsts = np.searchsorted(ends, bounds).astype(np.int32)  # each record's first entry
    codes = keys.dictionary_encode()
    owners = np.repeat(np.arange(len(raw)), np.diff(firsts))
    pairs = owners * len(codes.dictionary) + codes.indices.to_numpy()
    if len(np.unique(pairs)) != len(pairs):
        return None  # a key comes twice, and the later value counts
    return pa.MapArray.from_arrays(firsts, keys, values)
