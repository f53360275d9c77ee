"""Which messages of a stretch of the log are stored, by UNIQ_KEY: how a retry finds its first copy.

Built from the log itself when the first retry comes, so there is nothing to keep up in ordinary
traffic and nothing to lose in a crash. It covers [low, high) and grows with the log while retries
come. While it is built the writer stands still, so it takes no record apart: it notes where each
key's bytes are, and looks at the record around them when that key is asked for. It does not know
where the bytes of the log are: a reader is passed in.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.shared.commit_log import Pieces
from penstock.shared.errors import OffsetOutOfRange, PenstockError
from penstock.shared.properties import UNIQ_KEY
from penstock.shared.pure_walk import walk
from penstock.shared.record import MAGIC_V1, MAGIC_V2
from penstock.shared.record_outline import unique_key as key_of

# What is looked through at most.
MAX_BYTES = 1 << 30

_KEY_BYTES = 32  # of a longer one so many are noted
_KEY = re.compile(UNIQ_KEY.encode() + b"\x01([^\x02]{%d}|[^\x02]*)" % _KEY_BYTES)
_MAGIC_LEAD = MAGIC_V1.to_bytes(4, "big")[:3]
_NEAR_BYTES = 4096

assert MAGIC_V2.to_bytes(4, "big").startswith(_MAGIC_LEAD), "both versions are found by it"


class RetryIndex:
    """UNIQ_KEY -> (queue offset, physical offset) of the messages in [low, high)."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        # a key, or its beginning -> where its bytes are; those of a body may look the same
        self._noted: dict[bytes, int] = {}
        self._noted_again: dict[bytes, list[int]] = {}
        self._views: list[memoryview] = []
        self._starts: list[int] = []
        self._low = self._high = -1

    def cover(self, low: int, high: int) -> None:
        """Extend the index to hold at least [low, high). Both lie between records.

        Raises OffsetOutOfRange for a stretch that is none, or longer than is looked through, and
        what the pieces raise where no record begins; then the index is empty.
        """
        if not 0 <= high - low <= MAX_BYTES or low < 0:
            raise OffsetOutOfRange(
                f"a retry came after {MAX_BYTES} more bytes had been stored",
                f"log offset {low}, the log ends at {high}",
                "whether it is stored is not known; look for it: penstock query unique-key "
                "TOPIC UNIQ_KEY",
            )
        try:
            if self._low < 0:
                self._low = self._high = low
            if low < self._low:
                self._add(low, self._low)
                self._low = low
            if high > self._high:
                self._add(self._high, high)
                self._high = high
        except PenstockError:
            self.forget()  # one producer's wrong offset is no other producer's
            raise

    def find(self, unique_key: bytes) -> tuple[int, int] | None:
        """Where the message with this key is; None when it is not in what is covered."""
        noted = unique_key[:_KEY_BYTES]
        if not noted or noted not in self._noted:
            return None
        for at in (self._noted[noted], *self._noted_again.get(noted, ())):
            index = bisect_right(self._starts, at) - 1
            found = _record_around(self._views[index], self._starts[index], at, unique_key)
            if found is not None:
                return found
        return None

    def beginning(
        self, frame: bytes | memoryview, starts: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Where the first records of a frame are, up to the first that is not in what is covered.

        A frame is stored with one store to `wrote`, or cut from behind by a power failure: what is
        there of it is its beginning.
        """
        view = memoryview(frame)
        for at, stop in pairwise(starts):
            found = self.find(key_of(view[at:stop]))
            if found is None:
                return
            yield found

    def forget(self) -> None:
        """Free the memory; the next `cover` builds it again."""
        self._noted.clear()
        self._noted_again.clear()
        self._views.clear()
        self._starts.clear()
        self._low = self._high = -1

    def _add(self, low: int, high: int) -> None:
        for position, piece in self._pieces(low, high):
            index = bisect_right(self._starts, position)
            self._starts.insert(index, position)
            self._views.insert(index, piece)
            note = self._noted.setdefault
            for match in _KEY.finditer(piece):
                at = position + match.start()
                if note(match[1], at) != at:
                    self._noted_again.setdefault(match[1], []).append(at)


def _record_around(
    piece: memoryview, position: int, at: int, unique_key: bytes
) -> tuple[int, int] | None:
    """(queue offset, physical offset) of the record that has this key, and has it at `at`."""
    stop = at - position
    near = _NEAR_BYTES
    while True:
        start = max(0, stop - near)
        before = bytes(piece[start:stop])
        lead = before.rfind(_MAGIC_LEAD)
        while lead >= 0:
            begin = start + lead - 4
            # a body may hold the same bytes, but not with this very offset; walk compares it
            record = next(walk(piece[begin:], position + begin), None) if begin >= 0 else None
            if record is not None and begin + record.size > stop:
                if key_of(piece[begin : begin + record.size]) == unique_key:
                    return record.queue_offset, record.position
                return None
            lead = before.rfind(_MAGIC_LEAD, 0, lead)
        if start == 0:
            return None
        near *= 16
