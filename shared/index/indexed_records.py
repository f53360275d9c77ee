"""Which records an index file has with all their keys, and which of these may have a given key.

For callers that would read many records to find a few: they need not read records that are in the
index under other hashes only. So nothing is trusted that could hide a record. Items are read as one
array, without slots and chains, up to the first that does not follow its predecessor, as in a torn
page. Nothing is said of a record without items, or before the first one, or after the last: its
keys may have been put while no index was kept, or into a file that is gone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.shared.index.index_file import IndexFile

Ints = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)


class IndexedRecords(NamedTuple):
    """Log offsets in ascending order; a record with several items occurs several times.

    `offsets` has all records whose keys are all in the file. `candidates` has those of them with a
    key of one of the hashes; it may be another key with the same hash.
    """

    offsets: Ints
    candidates: Ints

    def may_match(self, records: Ints) -> npt.NDArray[np.bool_]:
        """Which records, given by log offset, have to be read: candidates, and those that the file
        does not have."""
        if not len(self.offsets):
            return np.ones(len(records), np.bool_)
        places = np.searchsorted(self.offsets, records)
        found = self.offsets[np.minimum(places, len(self.offsets) - 1)]
        unknown: npt.NDArray[np.bool_] = found != records
        return unknown | np.isin(records, self.candidates)


def indexed_records(file: IndexFile, hashes: Ints, log_end: int) -> IndexedRecords:
    """What a file has of the log below `log_end`. The arrays stay when the file is closed."""
    # an item is written before the header counts it
    stop = min(file.header.next_item, file.whole_items(log_end))
    items = file.items[1:stop]
    offsets = items["offset"].astype(np.int64)
    # if the first page of items was lost, its zeros would be taken for the log's first records
    if not len(offsets) or offsets[0] != file.header.begin_offset:
        return IndexedRecords(_NONE, _NONE)
    # the first and the last record may have other keys in the file before or after, or nowhere, as
    # a writer may end between two keys
    inner = slice(
        int(np.searchsorted(offsets, offsets[0], "right")),
        int(np.searchsorted(offsets, offsets[-1], "left")),
    )
    has_hash = np.isin(items["hash"][inner].astype(np.int64), hashes)
    return IndexedRecords(offsets[inner], np.unique(offsets[inner][has_hash]))
