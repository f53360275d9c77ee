"""The offsets of groups that work exactly once: a frame that moves them is stored if they are where
it says, and otherwise not at all.

    check() -> append -> moved()          of a frame that is a block's outputs and offsets
    turn()                                find the values after a start, save them from time to time

The truth is the log: the last record of OFFSETS_TOPIC that names a queue of a group has its value.
So a crash loses nothing: a new writer starts from the saved values and reads the records after
them. Until it has done so, it turns such frames away, and producers send them again. A store
without such records pays nothing. This file knows neither sockets nor who waits for a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from penstock.shared.config import Config
from penstock.shared.errors import (
    BrokerBusy,
    InvalidMessage,
    OffsetsMoved,
    PenstockError,
    StoreDamaged,
    StoreUnavailable,
)
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import decode_record
from penstock.shared.layout import StorePaths
from penstock.shared.log.reader import Pieces
from penstock.shared.loops.active import QueueNumbers, by_queue, dispatch
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.messaging.ledger import Ledgers
from penstock.shared.messaging.offsets_record import (
    ANY,
    NONE,
    OFFSETS_QUEUE,
    OffsetsMove,
    read_body,
)
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.next_steps import look_at
from penstock.shared.process.actor import Stage
from penstock.shared.process.retry import Retry
from penstock.shared.queue.deleted_topics import NONE as NO_TOPICS
from penstock.shared.queue.deleted_topics import DeletedTopics
from penstock.shared.queue.open_files import ConsumeQueueFiles
from penstock.shared.store.saved_offsets import Offsets, SavedOffsets, load_offsets, save_offsets

# Values in all, one for each queue of each topic of each group.
MAX_VALUES = 200_000
# A Spark writer is remembered at least this long after its last batch.
LEDGER_KEPT_MS = 24 * 3_600_000
# Values are saved after this many records, or this long after the first: a start reads the rest.
SAVE_RECORDS, SAVE_MS = 10_000, 60_000
# While the values are being found, a frame may come again after this time.
LOADING_MS = 20
# Bounds the value of an error.
_TOLD_CHARACTERS = 400
# Records to look at in one step, and entries of their queue to read at once.
_AT_ONCE, _ENTRIES_AT_ONCE = 64, 128
_KEY = QueueKey(OFFSETS_TOPIC, OFFSETS_QUEUE)


class ExactOffsets:
    """The present values, and those that are being saved."""

    def __init__(
        self,
        stage: Stage,
        pieces: Pieces,
        record: Callable[[int], memoryview],
        gone: Callable[[], DeletedTopics],
    ) -> None:
        """`pieces` and `record` read the log: see LogReader. `gone` has the deleted topics: a new
        topic of such a name begins its queues at 0, and no group has a value in it."""
        self._gone = gone
        self._seen_gone, self._ends = NO_TOPICS, dict[str, int]()
        self._file = StorePaths(stage.config.store).exact_offsets
        self._log = _OffsetsLog(stage.config, stage.run, stage.positions, pieces, record)
        self._positions = stage.positions
        self._clock = stage.clock
        self._disk = stage.disk
        self._report = stage.report
        self._offsets: Offsets = {}
        self._ledgers = Ledgers()
        self._count = 0
        self._next = 0  # queue offset of the next record of the topic
        self._found = 0  # and when this process started
        self._loading: Iterator[None] | None = None
        self._retry = Retry(stage.clock)
        # why the values cannot be read; None once they can
        self._refusal: PenstockError | None = None
        # since the last save: number of records; when the first came; its log offset
        self._records = self._first_ms = self._unsaved = 0
        # encoded values to save, and the log offset that the disk must have reached first
        self._saving: tuple[bytes, int] | None = None

    def begin(self, next_offset: int) -> None:
        """Begin to find the values. The topic's next record has this queue offset."""
        self._found = next_offset
        if next_offset or self._file.exists():
            self._loading = self._load()
        else:
            self._publish()

    def turn(self) -> int:
        """Find or save values, by one step; returns how many steps were done."""
        self._forget_deleted()
        if self._loading is not None:
            return self._find()
        if self._saving is not None:
            return self._save(*self._saving)
        if self._records and not self._refusal:
            waited_ms = self._clock.monotonic_ms() - self._first_ms
            if self._records >= SAVE_RECORDS or waited_ms >= SAVE_MS:
                self.prepare_to_save(self._positions["wrote"])
        return 0

    def _find(self) -> int:
        """Find values, by one step. After an OSError (the disk may be full) it tries again."""
        if self._loading is None or self._retry.waits:
            return 0
        what = "the offsets of groups that work exactly once cannot be read"
        try:
            next(self._loading)
        except StopIteration:
            self._loading = None
            if self._refusal is not None:
                self._report("the offsets of groups that work exactly once are read")
            self._refusal = None
        except StoreDamaged as error:
            self._loading = None
            self._refusal = StoreDamaged(what, error, error.hint)
            self._report(f"{what}: {error}")
        except OSError as error:
            self._loading = self._load()
            self._retry.put_off()
            if self._refusal is None:
                self._report(f"{what}: {error}; trying again")
            self._refusal = StoreUnavailable(what, error, look_at(self._file))
        return 1

    # --- frames ---

    def check(self, move: OffsetsMove) -> None:
        """Check that a frame may be stored now. Raises OffsetsMoved; BrokerBusy while values are
        being found; StoreDamaged or StoreUnavailable if they cannot be, or are too many."""
        self._forget_deleted()
        if self._refusal is not None:
            raise self._refusal
        if self._loading is not None:
            raise BrokerBusy(
                "the offsets of groups that work exactly once are being read",
                None,
                "the block is not stored, end it again later",
                retry_after_ms=LOADING_MS,
            )
        new, told, length = 0, dict[str, dict[int, int]](), 0
        group = self._offsets.get(move.group, {})
        for topic, queues in move.topics.items():
            present = group.get(topic, {})
            for queue, (before, to) in queues.items():
                value = present.get(queue, NONE)
                new += value == NONE != to
                if before not in (value, ANY) and length < _TOLD_CHARACTERS:
                    length += 0 if topic in told else len(topic) + 8
                    length += len(f'"{queue}":{value},')
                    told.setdefault(topic, {})[queue] = value
        if told:
            raise OffsetsMoved(
                f"the offsets of group {move.group} are not where the block begins",
                msgspec.json.encode(told).decode(),
                "the block's inputs are done, or come again: go on at the present offsets",
            )
        if (missing := self._count + new - MAX_VALUES) > 0:
            before_ms = self._clock.now_ms() - LEDGER_KEPT_MS
            gone = self._ledgers.forget(self._offsets, missing, before_ms, move.group)
            self._count -= len(gone)
            self._records += bool(gone)  # save, or the next start reads them from the file
        if self._count + new > MAX_VALUES:
            raise StoreUnavailable(
                "groups that work exactly once have as many queues as are kept",
                MAX_VALUES,
                "delete groups that nobody uses, which penstock groups ls names: penstock groups "
                "rm GROUP; it names no writers of Spark, each kept for a day after a batch: give "
                "them one writeId, and each batch a batchId",
            )

    def will_move(self, position: int) -> None:
        """A frame will be stored at this log offset. Call this first: the only record of a value
        must not expire, and `unsaved_offsets` keeps the log from there on."""
        if not self._unsaved:
            self._unsaved, self._first_ms = max(position, 1), self._clock.monotonic_ms()
            self._publish()

    def moved(self, move: OffsetsMove, queue_offset: int, stored_ms: int) -> None:
        """The frame is stored; this is its last record's queue offset, and its store time."""
        self._next = queue_offset + 1
        self._records += 1
        group = self._offsets.setdefault(move.group, {})
        for topic, queues in move.topics.items():
            present = group.setdefault(topic, {})
            self._count -= len(present)
            for queue, (_, to) in queues.items():
                if to == NONE:
                    present.pop(queue, None)
                else:
                    present[queue] = to
            self._count += len(present)
            if not present:
                del group[topic]
        self._ledgers.moved(move.group, group, stored_ms)
        if not group:
            del self._offsets[move.group]

    def _forget_deleted(self) -> None:
        """Drop the values of topics that were deleted."""
        gone = self._gone()
        if gone is self._seen_gone:
            return
        before, self._seen_gone, self._ends = self._ends, gone, gone.ends()
        new = {topic for topic, end in self._ends.items() if before.get(topic) != end}
        for group, topics in list(self._offsets.items()):
            for topic in topics.keys() & new:
                self._count -= len(topics.pop(topic))
                # save, or the file brings them back once the deletion is forgotten
                self._records = max(self._records, 1)
            if not topics:
                del self._offsets[group]

    # --- after a start ---

    def _load(self) -> Iterator[None]:
        saved = load_offsets(self._file)
        self._next = min(saved.queue_offset, self._found)
        self._offsets = {
            group: kept for group in saved.offsets if (kept := self._kept(saved, group))
        }
        is_older = self._offsets != saved.offsets
        self._ledgers.load(self._offsets, saved.ledgers, self._clock.now_ms())
        self._records = 0
        self._count = sum(
            len(queues) for group in self._offsets.values() for queues in group.values()
        )
        if self._next < saved.queue_offset:
            # The log was cut below the saved offset, and will assign these queue offsets again.
            again = self._saved(saved.log_offset)
            with self._disk:
                save_offsets(self._file, msgspec.json.encode(again))
        # Until the later records are counted: the oldest of them may begin right at this offset.
        self._unsaved, self._first_ms = max(saved.log_offset, 1), self._clock.monotonic_ms()
        self._publish()
        for number, found in enumerate(self._log.records(self._next)):
            if found is not None and found[0] >= self._next:
                self._next = found[0] + 1
                self._note(*found)
            if found is None or not number % _AT_ONCE:
                yield
        self._records += is_older
        if not self._records:
            self._unsaved = 0
            self._publish()

    def _note(self, queue_offset: int, record: memoryview) -> None:
        try:
            found = decode_record(record)
            move = read_body(found.body)
        except (InvalidMessage, StoreDamaged) as error:  # a repair put a filler in its place
            self._report(f"record {queue_offset} of groups' offsets is passed over: {error}")
            return
        if move is not None:
            at, ends = found.physical_offset, self._ends
            topics = {
                topic: each for topic, each in move.topics.items() if at >= ends.get(topic, 0)
            }
            move = OffsetsMove(move.group, topics)
            self.moved(move, queue_offset, found.store_timestamp_ms)

    def _kept(self, saved: SavedOffsets, group: str) -> dict[str, dict[int, int]]:
        """A group's saved values, without those of topics that were deleted since the save."""
        return {
            topic: queues
            for topic, queues in saved.offsets[group].items()
            if saved.log_offset > self._ends.get(topic, -1)
        }

    # --- saving ---

    def _saved(self, log_offset: int) -> SavedOffsets:
        return SavedOffsets(self._next, log_offset, self._offsets, self._ledgers.moved_ms)

    def prepare_to_save(self, wrote: int) -> None:
        """Encode the present values; they are saved once the disk has the log up to `wrote`."""
        self._saving = msgspec.json.encode(self._saved(wrote)), wrote
        # values that move from now on have their records here or later
        self._records, self._first_ms = 0, self._clock.monotonic_ms()

    def _save(self, encoded: bytes, log_offset: int) -> int:
        if self._positions["flushed"] < log_offset:
            return 0
        self._saving = None
        try:
            with self._disk:
                save_offsets(self._file, encoded)
        except OSError as error:
            self._records = max(self._records, 1)  # so it tries again after SAVE_MS
            self._report(f"groups' exact offsets cannot be saved: {error}; trying again")
            return 1
        self._unsaved = log_offset if self._records else 0
        self._publish()
        return 1

    def _publish(self) -> None:
        self._positions.publish("unsaved_offsets", self._unsaved)

    def close(self) -> None:
        """Save the values if the disk has their records, so that the next start reads little."""
        if self._loading is None and self._refusal is None and self._records:
            self.prepare_to_save(self._positions["wrote"])
        if self._saving is not None:
            self._save(*self._saving)
        self._log.close()


class _OffsetsLog:
    """Reads the topic's only queue. `pieces` and `record` read the log: see LogReader."""

    def __init__(
        self,
        config: Config,
        run: Run,
        positions: Positions,
        pieces: Pieces,
        record: Callable[[int], memoryview],
    ) -> None:
        self._files = ConsumeQueueFiles(StorePaths(config.store), config)
        self._run = run
        self._positions = positions
        self._pieces = pieces
        self._record = record

    def records(self, first: int) -> Iterator[tuple[int, memoryview] | None]:
        """Records from queue offset `first` on, in order, each with its queue offset.

        None is a step without a record. Some records may come twice, and those in expired segments
        are left out. Raises OSError, StoreDamaged.
        """
        # the position is read before the table: what the reput adds meanwhile comes twice
        dispatched, wrote = self._positions["dispatched"], self._positions["wrote"]
        for at, position in self._queued(first):
            with suppress(FileNotFoundError):  # it has expired
                yield at, self._record(position)
        queues, name = QueueNumbers(), (OFFSETS_TOPIC.encode(), OFFSETS_QUEUE)
        for start, piece in self._pieces(dispatched, wrote):
            found = by_queue(dispatch(piece, start, queues).rows, queues)
            for offset, raw in found.get(name, ()):
                for number, entry in enumerate(ENTRY.iter_unpack(raw)):
                    at = entry[0] - start
                    yield offset + number, piece[at : at + entry[1]]
            yield None

    def _queued(self, first: int) -> Iterator[tuple[int, int]]:
        """Queue offset and log offset of each record that has an entry in the queue."""
        table = QueueTable(self._run.queues)
        try:
            count = self._positions["queue_count"]
            slot = next((at for at, key in table.keys(0, count) if key == _KEY), None)
            if slot is None:
                return
            at, end = max(first, table.min_offset(slot)), table.max_offset(slot)
        finally:
            table.close()
        while at < end:
            try:
                raw = self._files.read(_KEY, at, min(end, at + _ENTRIES_AT_ONCE))
            except FileNotFoundError:
                return  # the file has expired, so its records are before the log's start
            for position, _, _ in ENTRY.iter_unpack(raw):
                if position >= self._positions["log_start"]:
                    yield at, position
                at += 1

    def close(self) -> None:
        self._files.close()
