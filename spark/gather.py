"""Byte strings out of one buffer into one Arrow array, copied by Arrow and not by Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]


def gather(raw: bytes | pa.Buffer, starts: Integers, sizes: Integers) -> pa.BinaryArray:
    """`raw[start : start + size]` for each, as one array. The pieces are in order and apart."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    # piece, gap, piece, ..., piece: every second element of this array is wanted
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + sizes
    buffers = [None, pa.py_buffer(bounds), raw if isinstance(raw, pa.Buffer) else pa.py_buffer(raw)]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return pieces.take(pa.array(np.arange(0, 2 * count, 2)))
