"""The properties of many records as one Arrow map array, and single values from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.shared.formats.properties import KEYS, TAGS
from penstock.shared.loops.active import cut_properties

Integers = npt.NDArray[np.int64]
MAP = pa.map_(pa.string(), pa.string())


class Properties(NamedTuple):
    """For each record a map, its keys and its tags; null if it has none."""

    maps: pa.MapArray
    keys: pa.StringArray
    tags: pa.StringArray


def property_columns(raw: bytes | memoryview, starts: Integers, sizes: Integers) -> Properties:
    """The columns of the strings `raw[start : start + size]`, read as by `decode_properties`."""
    found = cut_properties(raw, starts.data, sizes.data, (KEYS.encode(), TAGS.encode()))
    names, values = _strings(found.key_ends, found.keys), _strings(found.value_ends, found.values)
    firsts = pa.Array.from_buffers(pa.int32(), len(starts) + 1, [None, pa.py_buffer(found.firsts)])
    keys, tags = (_taken(values, places, len(starts)) for places in found.places)
    return Properties(pa.MapArray.from_arrays(firsts, names, values), keys, tags)


def _strings(ends: bytes, text: bytes) -> pa.StringArray:
    # Arrow also wants the beginning of the first piece
    bounds = pa.py_buffer(bytes(4) + ends)
    return pa.StringArray.from_buffers(len(ends) // 4, bounds, pa.py_buffer(text))


def _taken(values: pa.StringArray, places: bytes, count: int) -> pa.StringArray:
    chosen = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(places)]).to_numpy()
    return values.take(pa.array(chosen, mask=chosen < 0))
