"""The end of the log, where the writer appends: `wrote` and the next offset of every queue.

Owned by the writer alone. Placing, stamping and copying come before the one store to `wrote` that
makes a frame visible. It does not know who sent a frame or who waits for it.
"""

from __future__ import annotations

from penstock.shared.clock import Clock
from penstock.shared.commit_log import LogAppender, Pieces, Placed, place
from penstock.shared.config import Config
from penstock.shared.consume_queue import ENTRY
from penstock.shared.faults import crash_point
from penstock.shared.hot_loops import Stamp, dispatch
from penstock.shared.messages import StoredRun
from penstock.shared.positions import Positions
from penstock.shared.queue_table import QueueKey, QueueTable
from penstock.shared.record import store_timestamp_ms
from penstock.shared.run_directory import Run


class LogEnd:
    """Appends checked frames. A new one finds `wrote` and the queue offsets by itself."""

    def __init__(
        self, config: Config, run: Run, positions: Positions, pieces: Pieces, clock: Clock
    ) -> None:
        self._positions = positions
        self._clock = clock
        self._prop_crc = config.enabled_append_prop_crc
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._appender = LogAppender(config, run)
        self.wrote = positions["wrote"]
        if not positions["read_only"]:
            self._appender.forget_beyond(self.wrote)
        self._segment = self.wrote // self._segment_bytes
        self._offsets = _queue_offsets(run, positions, pieces)
        self._stored_ms = positions["wrote_timestamp"]
        if not positions["read_only"]:
            self._stored_ms = max(self._stored_ms, _newest_ms(positions, pieces))

    def place(self, starts: list[int], batch: bool = False) -> int:
        """The log's end after these records; they and the blanks between need room up to there."""
        last = self._placed(starts, batch)[-1]
        return last.position + starts[last.last] - starts[last.first]

    def _placed(self, starts: list[int], batch: bool) -> list[Placed]:
        if not batch:
            return place(starts, self.wrote, self._segment_bytes)
        # all or nothing of it goes into the segment, so it is placed like one record
        (whole,) = place([starts[0], starts[-1]], self.wrote, self._segment_bytes)
        return [whole._replace(last=len(starts) - 1)]

    def room(self) -> int:
        """The log offset up to which records may be put now."""
        return self._appender.room(self._positions["committed"], self._positions["allocated"])

    def prepare(self, end: int) -> None:
        """Open what the log needs up to there. Raises OSError; then nothing has changed."""
        self._appender.prepare(self.wrote, end)

    def append(
        self,
        topic: str,
        queue_id: int,
        frame: bytes,
        starts: list[int],
        host: bytes,
        batch: bool = False,
    ) -> list[StoredRun]:
        """Append the records, for which there is room, and publish them with one store."""
        crash_point("write.before_reserve")
        key = QueueKey(topic, queue_id)
        queue_offset = self._offsets.get(key, 0)
        # times do not go back along the log, even when the clock does
        stored_ms = max(self._clock.now_ms(), self._stored_ms)
        runs = []
        end = self.wrote
        for piece in self._placed(starts, batch):
            places = starts[piece.first : piece.last + 1]
            if piece.blank:
                self._appender.put_blank(piece.position - piece.blank, piece.blank)
                crash_point("write.end_of_file_blank")
            stamp = Stamp(queue_offset, stored_ms, host, self._prop_crc)
            self._appender.put_records(piece.position, frame, places, stamp)
            runs.append(StoredRun(piece.first, queue_offset, piece.position))
            queue_offset += piece.last - piece.first
            end = piece.position + places[-1] - places[0]
        crash_point("write.before_publish")
        self.wrote = end
        self._positions.publish("wrote", end)
        crash_point("write.publish")
        self._positions.publish("wrote_timestamp", stored_ms)
        self._stored_ms = stored_ms
        self._offsets[key] = queue_offset
        return runs

    def entered_segment(self) -> bool:
        """Whether the log's end has gone to another segment since this was asked last."""
        before, self._segment = self._segment, self.wrote // self._segment_bytes
        return self._segment != before

    def let_go(self, now_ms: int) -> None:
        """Close segments that are deleted."""
        self._appender.let_go(now_ms)

    def close(self) -> None:
        self._appender.close()


def _newest_ms(positions: Positions, pieces: Pieces) -> int:
    """The last record's store time: a writer may have died before it stored `wrote_timestamp`."""
    last = positions["dispatched_record"]
    start = min(last, positions["dispatched"]) if last else positions["dispatched"]
    newest_ms = 0
    for position, piece in pieces(max(start, positions["log_start"]), positions["wrote"]):
        found = dispatch(piece, position)
        if found.records:
            newest_ms = store_timestamp_ms(piece, found.last - position)
    return newest_ms


def _queue_offsets(run: Run, positions: Positions, pieces: Pieces) -> dict[QueueKey, int]:
    """Next offsets: what the reput has dispatched, and the log from there to `wrote`."""
    # first the position, then the table: the reput may go on meanwhile, and max() takes care of it
    dispatched = positions["dispatched"]
    offsets = {}
    table = QueueTable(run.queues)
    for slot, key in table.keys(0, positions["queue_count"]):
        offsets[key] = table.max_offset(slot)
    table.close()
    for position, piece in pieces(dispatched, positions["wrote"]):
        for (topic, queue_id), entries in dispatch(piece, position).runs.items():
            key = QueueKey(topic.decode(), queue_id)
            stops = [first + len(raw) // ENTRY.size for first, raw in entries]
            offsets[key] = max(offsets.get(key, 0), *stops)
    return offsets
