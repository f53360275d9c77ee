"""The log for a check: stretches of usual records by the verifier's loop, the rest by `scan`.

    usual records ... | blank, damage, anything unusual: a step of a scan | usual records ... | END

Windows are read into one buffer, and the disk reads the next ones while this one is checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.maintenance.verify_loops import check
from penstock.maintenance.verify_loops.pure import BODY, OWN, Checked
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Segment
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.log.scan import Step
from penstock.shared.store.directory import StoreDirectory

# Small enough for the processor's cache, where each record is read several times.
WINDOW_BYTES = 2 << 20
# Read-ahead beyond a window: with only the next window the disk would rest before each read.
AHEAD_BYTES = 16 << 20
# If unusual records follow each other soon, a scan goes on for this long, and twice as long each
# time: it reads 8 MiB ahead, which takes too long to do for each of them.
SHORT_BYTES, LONG_BYTES = 64 << 10, 8 << 20

_COMPARED = {
    Checksum.NONE: 0,
    Checksum.BODY: BODY,
    Checksum.RECORD: OWN,
    Checksum.BOTH: BODY | OWN,
}


class Stretch(NamedTuple):
    """Usual records from log offset `position` to `end`."""

    position: int
    end: int
    checked: Checked


class Stretches:
    """One reading of the log. `queues` numbers the queues of its rows, by topic and id."""

    def __init__(
        self, store: StoreDirectory, checksum: Checksum, levels_ms: Sequence[int], keyed: bool
    ) -> None:
        self._store = store
        self._checksum = checksum
        self._asked = _COMPARED[checksum], array("q", levels_ms)
        self._keyed = keyed
        self._files = FileCache()
        self._buffer = memoryview(bytearray(WINDOW_BYTES))
        self._expected = 0  # the log offset up to which read-ahead was requested
        self.queues: dict[bytes, int] = {}

    def read(self, start: int, stop: int | None) -> Iterator[Stretch | Step]:
        """From `start`, where a record begins, to the first record at or after `stop`, which is
        left out, or to the END of the log. For one call."""
        at, more = start, 0
        try:
            while stop is None or at < stop:
                began = at
                for stretch in self._usual(at, stop):
                    yield stretch
                    at = stretch.end
                if stop is not None and at >= stop:
                    return
                more = _next_scan(more, at - began)
                until = at + more
                for step in self._store.scan_log(at, checksum=self._checksum):
                    yield step
                    at = step[0] + step[2]
                    if step[1] is Kind.END:
                        return
                    if at >= until or stop is not None and at >= stop:
                        break
        finally:
            self._files.close()

    def _usual(self, at: int, stop: int | None) -> Iterator[Stretch]:
        """Up to where something unusual stands, or there is no segment."""
        segments = self._store.segments
        for index, segment in enumerate(segments):
            # a file that is too long does not hide the beginning of the next one
            end = min([segment.end, *(each.base for each in segments[index + 1 : index + 2])])
            if end <= at:
                continue
            if segment.base > at or not self._files.exists(segment.path):
                return
            while at < end and (stop is None or at < stop):
                window = self._window(segment, at, end)
                limit = len(window) if stop is None else stop - at
                found = check(window, at, limit, *self._asked, self.queues, self._keyed)
                if found.stop:
                    yield Stretch(at, at + found.stop, found)
                at += found.stop
                # a record that does not fit into a window is unusual, too
                if at < end and not (found.is_cut and found.stop):
                    return
            if at != end:
                return

    def _window(self, segment: Segment, at: int, end: int) -> memoryview:
        """The segment's bytes from log offset `at` on; asks the disk for what comes next."""
        offset, size = at - segment.base, min(WINDOW_BYTES, end - at)
        following = max(at + size, self._expected)
        self._expected = min(at + size + AHEAD_BYTES, end)
        if following < self._expected:
            more = self._expected - following
            self._files.expect(segment.path, following - segment.base, more)
        return self._buffer[: self._files.read_into(segment.path, offset, self._buffer[:size])]


def _next_scan(last: int, usual: int) -> int:
    """For how many bytes a scan goes on after its first step: about as many as were usual."""
    if usual <= max(last, SHORT_BYTES):
        return min(max(2 * last, SHORT_BYTES), LONG_BYTES)
    return last // 2 if last > SHORT_BYTES else 0
