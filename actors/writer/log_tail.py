"""The end of the log, where the writer appends: `wrote` and the next offset of every queue.

Owned by the writer alone. It places, stamps and copies a frame's records; then one store to `wrote`
makes the frame visible. It does not know who sent a frame or who waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.actors.writer.exact_offsets import ExactOffsets
from penstock.actors.writer.frame_check import CheckedFrame
from penstock.actors.writer.log_appender import LogAppender, Placed, place
from penstock.actors.writer.system_records import Recalls
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_check import jumps
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.log.reader import Pieces
from penstock.shared.loops.active import QueueNumbers, by_queue, dispatch
from penstock.shared.loops.forms import Stamp
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.deleted_topics import NONE, DeletedTopics
from penstock.shared.wire.messages import QueueRun, StoredRun

# (topic, queue id). One is made for each run, and a named tuple takes several times as long.
_Queue = tuple[str, int]


class LogEnd:
    """Appends checked frames. A new LogEnd finds `wrote` and the queue offsets by itself."""

    def __init__(
        self,
        config: Config,
        run: Run,
        positions: Positions,
        pieces: Pieces,
        clock: Clock,
        gone: DeletedTopics = NONE,
    ) -> None:
        self._positions = positions
        self._clock = clock
        self._prop_crc = config.enabled_append_prop_crc
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._appender = LogAppender(config, run)
        self.wrote = positions["wrote"]
        if not positions["read_only"]:
            self._appender.forget_beyond(self.wrote, positions["allocated"])
        self._segment = self.wrote // self._segment_bytes
        # the last answer of `_places`: the `starts`, the log's end, and the places
        self._known: tuple[list[int], int, list[Placed]] = ([], -1, [])
        self._offsets = _next_offsets(run, positions, pieces, gone)
        self.stored_ms = positions["wrote_timestamp"]
        if not positions["read_only"]:
            self.stored_ms = max(self.stored_ms, _newest_ms(positions, pieces))

    def place(self, runs: Sequence[QueueRun], starts: list[int]) -> int:
        """The log's end after these records and their blanks: they need room up to it."""
        last = self._placed(runs, starts)[-1]
        return last.position + starts[last.last] - starts[last.first]

    def _placed(self, runs: Sequence[QueueRun], starts: list[int]) -> list[Placed]:
        of, wrote, placed = self._known
        if of is not starts or wrote != self.wrote:
            placed = self._places(runs, starts)
            self._known = starts, self.wrote, placed
        return placed

    def _places(self, runs: Sequence[QueueRun], starts: list[int]) -> list[Placed]:
        placed = place(starts, self.wrote, self._segment_bytes)
        if len(placed) == 1 and not placed[0].blank:
            return placed
        # a batch does not cross a segment's end, so it is placed like one record
        firsts: list[int] = []
        first = 0
        for run in runs:
            firsts.extend([first] if run.batch else range(first, first + run.count))
            first += run.count
        firsts.append(first)
        placed = place([starts[each] for each in firsts], self.wrote, self._segment_bytes)
        return [each._replace(first=firsts[each.first], last=firsts[each.last]) for each in placed]

    def room(self) -> int:
        """The log offset up to which records may be put now."""
        return self._appender.room(self._positions["committed"], self._positions["allocated"])

    def prepare(self, end: int) -> None:
        """Open the segments up to this log offset. Raises OSError; then nothing has changed."""
        self._appender.prepare(self.wrote, end)

    def append(
        self, runs: Sequence[QueueRun], frame: bytes | memoryview, starts: list[int], host: bytes
    ) -> list[StoredRun]:
        """Append the records, for which there is room, and publish them with one store.

        Returns where each run is; a run that crosses a segment's end is in several pieces.
        """
        crash_point("write.before_reserve")
        offsets, ends = self._queue_offsets(runs)
        # store times never decrease along the log, even when the clock goes back
        stored_ms = max(self._clock.now_ms(), self.stored_ms)
        stamp = Stamp(stored_ms, host, self._prop_crc)
        placed = self._placed(runs, starts)
        for piece in placed:
            places = starts[piece.first : piece.last + 1]
            if piece.blank:
                self._appender.put_blank(piece.position - piece.blank, piece.blank)
                crash_point("write.end_of_file_blank")
            of_piece = offsets[piece.first : piece.last]
            self._appender.put_records(piece.position, frame, places, of_piece, stamp)
        end = placed[-1].position + starts[-1] - starts[placed[-1].first]
        crash_point("write.before_publish")
        self.wrote = end
        self._positions.publish("wrote", end)
        crash_point("write.publish")
        self._positions.publish("wrote_timestamp", stored_ms)
        self.stored_ms = stored_ms
        self._offsets.update(ends)
        return _stored(runs, starts, offsets, placed)

    def _queue_offsets(self, runs: Sequence[QueueRun]) -> tuple[list[int], dict[_Queue, int]]:
        """The queue offset of each record of a frame, and its queues' next offsets after it."""
        offsets: list[int] = []
        ends: dict[_Queue, int] = {}
        for run in runs:
            key, count = (run.topic, run.queue_id), run.count
            first = ends.get(key)
            if first is None:
                first = self._offsets.get(key, 0)
            ends[key] = first + count
            if count == 1:
                offsets.append(first)
            else:
                offsets.extend(range(first, first + count))
        return offsets, ends

    def queues(self) -> Iterable[_Queue]:
        """The queues that have had messages."""
        return self._offsets.keys()

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message; 0 for a queue that has had no messages."""
        return self._offsets.get((topic, queue_id), 0)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: the queues of a later topic of its name begin at 0."""
        for key in [key for key in self._offsets if key[0] == topic]:
            del self._offsets[key]

    def entered_segment(self) -> bool:
        """Whether the log's end has entered another segment since the last call."""
        before, self._segment = self._segment, self.wrote // self._segment_bytes
        return self._segment != before

    def release_deleted(self, now_ms: int) -> None:
        """Close segments that are deleted."""
        self._appender.release_deleted(now_ms)

    def close(self) -> None:
        self._appender.close()


def _stored(
    runs: Sequence[QueueRun], starts: list[int], offsets: list[int], placed: list[Placed]
) -> list[StoredRun]:
    """Where the runs of a frame are; a run is cut where a segment ends."""
    stored = []
    if len(placed) == 1:  # the common case
        base, first = placed[0].position - starts[0], 0
        for run in runs:
            stored.append(StoredRun(first, offsets[first], base + starts[first]))
            first += run.count
        return stored
    pieces = iter(placed)
    piece = next(pieces)
    first = 0
    for run in runs:
        end = first + run.count
        while first < end:
            at = piece.position + starts[first] - starts[piece.first]
            stored.append(StoredRun(first, offsets[first], at))
            first = min(end, piece.last)
            if first == piece.last:
                piece = next(pieces, piece)
    return stored


def _newest_ms(positions: Positions, pieces: Pieces) -> int:
    """The last record's store time: a writer may have died before it published it."""
    last = positions["dispatched_record"]
    start = min(last, positions["dispatched"]) if last else positions["dispatched"]
    newest_ms = 0
    for position, piece in pieces(max(start, positions["log_start"]), positions["wrote"]):
        found = dispatch(piece, position, QueueNumbers())
        if found.records:
            newest_ms = store_timestamp_ms(piece, found.last - position)
    return newest_ms


def _next_offsets(
    run: Run, positions: Positions, pieces: Pieces, gone: DeletedTopics
) -> dict[_Queue, int]:
    """Next offsets, from what the reput has dispatched and the log from there to `wrote`.

    Messages of topics that are deleted, by `gone`, do not count.
    """
    # The position is read before the table: the reput may go on meanwhile, and max() covers that.
    dispatched = positions["dispatched"]
    # Until the reput comes to a deletion, the table has the old queues without a mark. It comes to
    # each before it dispatches what is stored later, so the log from here on has all of that.
    unmarked, ends = gone.ends(positions["forgotten_topics"]), gone.ends()
    offsets: dict[_Queue, int] = {}
    table = QueueTable(run.queues)
    for slot, key in table.keys(0, positions["queue_count"]):
        if key.topic not in unmarked and not table.is_deleted(slot):
            offsets[key] = table.max_offset(slot)
    table.close()
    queues = QueueNumbers()
    for position, piece in pieces(dispatched, positions["wrote"]):
        found = by_queue(dispatch(piece, position, queues).rows, queues)
        for (topic, queue_id), entries in found.items():
            name = topic.decode(), queue_id
            for first, raw in entries:
                if ENTRY.unpack_from(raw)[0] < ends.get(name[0], 0):
                    continue
                end = offsets.get(name, first)
                if not jumps(first, end, position, positions["log_start"]):
                    offsets[name] = max(end, first + len(raw) // ENTRY.size)
    return offsets


class FrameStore:
    """Puts checked frames at the log's end, and tells `exact` and `recalls` before and after."""

    def __init__(self, end: LogEnd, exact: ExactOffsets, recalls: Recalls, host: bytes) -> None:
        self._end, self._exact, self._recalls, self._host = end, exact, recalls, host

    def put(self, frame: CheckedFrame) -> list[StoredRun]:
        """Append the frame; returns where. Raises InvalidMessage for a recall that is too late."""
        recalls = frame.recalled_ms >= 0
        if recalls:
            self._recalls.prepare(frame.recalled_ms, self._end.wrote)
        if frame.move is not None:
            self._exact.will_move(self._end.wrote)
        appended = self._end.append(frame.runs, frame.data, frame.starts, self._host)
        if frame.move is not None:
            stored_ms = self._end.stored_ms
            self._exact.moved(frame.move, appended[-1].queue_offset, stored_ms)
        if recalls:
            self._recalls.stored(self._end.wrote)
        return appended
