"""Consume queue entries as numpy arrays; `formats.queue_entry` does without numpy.

A start does without it, too, because the import takes longer than the rest of a start. So modules
that a start needs import this one inside the functions that use it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.shared.layout import CQ_ENTRY_BYTES

ENTRY_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

assert ENTRY_DTYPE.itemsize == CQ_ENTRY_BYTES, "one entry is 20 bytes in every form"


def entries(raw: bytes | memoryview) -> npt.NDArray[np.void]:
    """The entries in a buffer of whole entries, as a structured array (no copy).

    Raises ValueError for a buffer that ends inside an entry.
    """
    return np.frombuffer(raw, dtype=ENTRY_DTYPE)
