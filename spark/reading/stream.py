"""The streaming source: which messages each micro-batch has, so that each is in exactly one.

Spark records a batch's end before it runs the batch, and reads the same range again after a
failure. An offset here is the next message of each queue, in JSON and with a version:

    {"v": 1, "offsets": {"orders": {"0": 1200, "1": 1187}}}

The first batch's end also says where it `began`: Spark does not record where a query begins, and
asks again after a failure, when "latest" is somewhere else.

This runs on the driver; `task` has what tasks do, and `durable` what bounds a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.shared.errors import ConfigError, OffsetOutOfRange, PenstockError, StoreDamaged
from penstock.spark.plainly import plainly, rows_plainly
from penstock.spark.plan import bounds, chosen, split
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.durable import Durable
from penstock.spark.reading.options import Options, duration_ms
from penstock.spark.reading.queues import Queue
from penstock.spark.reading.rows import how_of, is_by_entries
from penstock.spark.reading.task import read_partition
from penstock.spark.reading.views import StoreView, View, open_view
from penstock.spark.shares import share

VERSION = 1
# How long the queues of a store that was not shut down in order may be shorter than what was read:
# a start rebuilds them from the log.
RECOVERY_MS = 60_000
SHORT_LOOK_S = 0.1
# Spark asks for something new every 10 ms; a broker is asked no more often than this
BROKER_LOOK_MS = 100

Offset = dict[str, Any]
Key = tuple[str, int]
Offsets = dict[Key, int]
Lag = tuple[Offsets, int, float | None]


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's view of a store; it lives as long as the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises ConfigError for an option that a stream cannot have."""
        _check(options)
        self.options = options
        self.schema = schema
        self._view: View | None = None
        self._initial: Offset | None = None
        self._target: Offsets | None = None  # the end of Trigger.AvailableNow
        self._seen: tuple[Durable, Offset] | None = None
        self._batch_ms = 0  # monotonic time at which the last batch with messages was planned
        self._rests_until_ms = 0
        self._short_ms = 0  # since when a queue has been shorter than what was read of it
        self._lag: Lag = {}, 0, 0.0

    @plainly
    def initialOffset(self) -> Offset:
        if self._initial is None:  # Spark asks twice, and "latest" may have moved in between
            view = self._look()
            queues, _ = self._queues(view)
            ranges = bounds(view, queues, self.options)
            ends = self._ends(queues, view.durable())
            begun = {_key(piece): min(piece.start, ends[_key(piece)]) for piece in ranges}
            self._initial = {**_encoded(begun), "initial": True}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        # A limit of Spark's is one number, but here there may be several, so `latestOffset` takes
        # them from the options. Any limit other than ReadAllAvailable says that they apply.
        if self.options.max_offsets_per_trigger:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.min_offsets_per_trigger:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; `start` itself if there is nothing for one."""
        if time.monotonic_ns() // 1_000_000 < self._rests_until_ms:
            return start
        view = self._look()
        durable = view.durable()
        if durable.end is not None and self._seen == (durable, start):
            self._rest()
            return start  # nothing has come since, so no queue need be looked at
        queues, whole = self._queues(view)
        started = self._started(queues, start, durable)
        while started is None and self._target is not None:
            # wait here, because "nothing for a batch" would end the query
            time.sleep(SHORT_LOOK_S)
            view = self._look()
            durable = view.durable()
            queues, whole = self._queues(view)
            started = self._started(queues, start, durable)
            # the queues were too short when the target was set
            self._target = self._ends(queues, durable)
        if started is None:
            return start
        ends = self._ends(queues, durable)
        if self._target is not None:
            ends = {key: min(end, self._target.get(key, 0)) for key, end in ends.items()}
        ends = {key: max(end, started[key]) for key, end in ends.items()}
        found = self._limited(queues, started, ends, limit)
        # shown in the query's progress
        self._lag = self._lag_after(queues, found, whole)
        end = _encoded({**_decoded(start), **found})
        is_same = end["offsets"] == start["offsets"]
        if start.get("initial"):
            return {**end, "began": start["offsets"]}
        waits = is_same and self._target is None
        if waits:
            self._rest()
        # remembered only without a lag: messages that wait for others, or for the disk, may become
        # ready by time alone
        self._seen = (durable, start) if waits and not self._lag[1] else None
        return start if is_same else end

    def reportLatestOffset(self) -> Offset:
        """The newest offsets, and how much the batch leaves unread, for the query's progress."""
        newest, messages, seconds = self._lag
        return {**_encoded(newest), "lagMessages": messages, "lagSeconds": seconds}

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        view = self._look()
        self._target = self._ends(self._queues(view)[0], view.durable())

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The same ranges whenever it is asked. Raises OffsetOutOfRange if some have expired."""
        ended = _decoded(end)
        is_first = "began" in end and start != end  # an end is the next batch's start, too
        began = _decoded({**start, "offsets": end["began"]} if is_first else start)
        # a queue that is new in this batch is read from its beginning
        moved = {key: stop for key, stop in ended.items() if stop != began.get(key, 0)}
        there = self._look().queues({topic for topic, _ in moved}.__contains__)
        queues = {(queue.topic, queue.queue_id): queue for queue in there}
        ranges = []
        for key, stop in moved.items():
            first = began.get(key, 0)
            if key not in queues:
                self._lose(key, first, "its queue is gone")
                continue
            queue = queues[key]
            if stop < first:  # the topic was created again
                first = 0
            if first < queue.min_offset:
                if key in began:
                    self._lose(key, first, f"the oldest that is left is {queue.min_offset}")
                first = min(queue.min_offset, stop)
            ranges.append(QueueRange(*key, first, stop))
        by_entries = is_by_entries(self.options, self.schema.fieldNames())
        parts = split(ranges, [*queues.values()], self.options, by_entries=by_entries)
        return [InputPartition(part) for part in parts]

    @rows_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        how = how_of(self.options)
        return read_partition(
            self.options, partition.value, self.schema, how, patience_ms=RECOVERY_MS // 2
        )

    def stop(self) -> None:
        """Close what was opened. Spark does not always call this; it then ends the process."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _look(self) -> View:
        """The view as of now. All batches share one, because connecting for each would cost a
        broker more than answering does."""
        if self._view is None:
            self._view = open_view(self.options)
        else:
            self._view.refresh()
        return self._view

    def _rest(self) -> None:
        """Ask a broker nothing for a while. Looking at files costs nobody else anything."""
        if self.options.endpoint:
            self._rests_until_ms = time.monotonic_ns() // 1_000_000 + BROKER_LOOK_MS

    def _queues(self, view: View) -> tuple[list[Queue], dict[Key, Queue]]:
        if isinstance(view, StoreView):
            view.check_queues("a stream")
        found = chosen(view, self.options, lenient=not self.options.fail_on_data_loss)
        return found, {(queue.topic, queue.queue_id): queue for queue in found}

    def _ends(self, queues: Sequence[Queue], durable: Durable) -> Offsets:
        """How far each queue may be read."""
        return {
            (queue.topic, queue.queue_id): queue.durable_offset(durable.end) for queue in queues
        }

    def _started(self, queues: Sequence[Queue], start: Offset, durable: Durable) -> Offsets | None:
        """Where the next batch begins in each queue. None while queues are being rebuilt.

        Raises OffsetOutOfRange if messages are gone that were read or were to be read.
        """
        read = _decoded(start)
        there = {(queue.topic, queue.queue_id): queue for queue in queues}
        short = [
            key
            for key, offset in read.items()
            if offset > (there[key].max_offset if key in there else 0)
        ]
        now_ms = time.monotonic_ns() // 1_000_000
        self._short_ms = (self._short_ms or now_ms) if short else 0
        if short and not durable.settled and now_ms - self._short_ms < RECOVERY_MS:
            return None
        for key in short:
            held = there[key].max_offset if key in there else 0
            self._lose(
                key,
                read[key],
                f"the queue ends at {held}: its topic was created again, or messages were lost",
            )
        begun = {}
        for key, queue in there.items():
            # a queue that is new is read from its beginning
            offset = read.get(key, queue.min_offset)
            if offset < queue.min_offset:
                self._lose(key, offset, f"the oldest that is left is {queue.min_offset}")
            begun[key] = queue.min_offset if key in short else max(offset, queue.min_offset)
        return begun

    def _lose(self, key: Key, offset: int, found: str) -> None:
        if self.options.fail_on_data_loss:
            raise OffsetOutOfRange(
                "messages that the query was to read next are gone",
                f"{key[0]}/{key[1]} from {offset}; {found}",
                'to go on with what there is: .option("failOnDataLoss", "false")',
            )

    def _limited(
        self, queues: Sequence[Queue], started: Offsets, ends: Offsets, limit: ReadLimit
    ) -> Offsets:
        """The ends of a batch that is as large as the options and Spark allow."""
        waiting = sum(ends[key] - started[key] for key in ends)
        now_ms = time.monotonic_ns() // 1_000_000
        if waiting == 0:
            return ends
        unlimited = isinstance(limit, ReadAllAvailable)
        delay_ms = duration_ms("maxTriggerDelay", self.options.max_trigger_delay)
        few = waiting < self.options.min_offsets_per_trigger
        may_wait = few and not unlimited and self._target is None and self._batch_ms > 0
        if may_wait and now_ms - self._batch_ms < delay_ms:
            return started
        self._batch_ms = now_ms
        if not unlimited and self.options.max_offsets_per_trigger:
            ends = share(started, ends, self.options.max_offsets_per_trigger)
        if not unlimited and self.options.max_bytes_per_trigger:
            ends = self._within_bytes(queues, started, ends)
        return ends

    def _within_bytes(self, queues: Sequence[Queue], started: Offsets, ends: Offsets) -> Offsets:
        there = {(queue.topic, queue.queue_id): queue for queue in queues}
        waiting = {
            key: there[key].estimate_bytes(started[key], end)
            for key, end in ends.items()
            if started[key] < end
        }
        budget = share(dict.fromkeys(waiting, 0), waiting, self.options.max_bytes_per_trigger)
        found = {
            key: there[key].end_within(started[key], end, budget[key]) if key in budget else end
            for key, end in ends.items()
        }
        if found == started:  # a single message may exceed the limit, but the query must go on
            key = max(waiting, key=lambda each: waiting[each])
            found[key] = started[key] + 1
        return found

    def _lag_after(
        self, queues: Sequence[Queue], found: Offsets, there: Mapping[Key, Queue]
    ) -> Lag:
        """The queues' ends; how many messages come after the batch; and for how many seconds the
        oldest of these has waited, None if unknown."""
        newest = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
        unread = [key for key in newest if found[key] < newest[key]]
        messages = sum(newest[key] - found[key] for key in unread)
        if not unread:
            return newest, 0, 0.0
        try:
            times = [there[key].stored_ms(found[key]) for key in unread]
        except (OffsetOutOfRange, StoreDamaged):  # an unknown lag must not end the query
            return newest, messages, None
        oldest = min((ms for ms in times if ms is not None), default=None)
        return newest, messages, None if oldest is None else max(time.time() - oldest / 1000, 0.0)


class RefusedStream(DataSourceStreamReader):
    """A reader for wrong options or a wrong schema: it answers whatever Spark asks with the error.

    If creating a reader fails, Spark 4.3 tries to stop the reader that does not exist, and the
    error of that hides the real one.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    @plainly
    def initialOffset(self) -> NoReturn:
        raise self._error

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> NoReturn:
        raise self._error

    @plainly
    def partitions(self, start: Offset, end: Offset) -> NoReturn:
        raise self._error

    @plainly
    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


def _check(options: Options) -> None:
    default = Options()
    for option, given, usual in (
        ("endingOffsets", options.ending_offsets, default.ending_offsets),
        ("endingTimestamp", options.ending_timestamp, ""),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp, ""),
    ):
        if given != usual:
            raise ConfigError(
                f"a stream has no end, and {option} was given",
                given,
                "use spark.read, or trigger(availableNow=True) to stop at what there is",
            )


def _key(piece: QueueRange) -> Key:
    return piece.topic, piece.queue_id


def _encoded(offsets: Mapping[Key, int]) -> Offset:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(queue_id)] = offset
    return {"v": VERSION, "offsets": by_topic}


def _decoded(offset: Offset) -> Offsets:
    """Raises ConfigError for an offset of another version, or of another source."""
    if offset.get("v") != VERSION:
        raise ConfigError(
            "the checkpoint has offsets that this version cannot read",
            f"version {offset.get('v')}, and not {VERSION}",
            "go on with the version that wrote it, or begin with a new checkpoint",
        )
    return {
        (topic, int(queue_id)): at
        for topic, queues in offset["offsets"].items()
        for queue_id, at in queues.items()
    }
