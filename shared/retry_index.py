"""Which messages of a stretch of the log are stored, by UNIQ_KEY: how a retry finds its first copy.

Built from the log itself when the first retry comes, so there is nothing to keep up in ordinary
traffic and nothing to lose in a crash. It covers [low, high) and grows with the log while retries
come. It does not know where the bytes of the log are: a reader is passed in.
"""

from __future__ import annotations

from penstock.shared.commit_log import Pieces
from penstock.shared.errors import OffsetOutOfRange, PenstockError
from penstock.shared.hot_loops import unique_key_at, walk

# What is looked through at most; the writer stands still meanwhile.
MAX_BYTES = 1 << 30


class RetryIndex:
    """UNIQ_KEY -> (queue offset, physical offset) of the messages in [low, high)."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._found: dict[bytes, tuple[int, int]] = {}
        self._low = self._high = -1

    def cover(self, low: int, high: int) -> None:
        """Extend the index to hold at least [low, high). Both lie between records.

        Raises OffsetOutOfRange for a stretch that is none, or longer than is looked through, and
        what the pieces raise where no record begins; then the index is empty.
        """
        if not 0 <= high - low <= MAX_BYTES or low < 0:
            raise OffsetOutOfRange(
                f"a retry comes before {MAX_BYTES} more bytes are stored",
                f"log offset {low}, the log ends at {high}",
                "whether the message is stored is not known; look for its UNIQ_KEY",
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
        return self._found.get(unique_key) if unique_key else None

    def forget(self) -> None:
        """Free the memory; the next `cover` builds it again."""
        self._found.clear()
        self._low = self._high = -1

    def _add(self, low: int, high: int) -> None:
        for position, piece in self._pieces(low, high):
            for record in walk(piece, position):
                key = unique_key_at(piece, record.position - position, record.size)
                self._found[key] = (record.queue_offset, record.position)
