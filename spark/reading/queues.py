"""The queues that a query may read: the protocol, and its implementation by a store's own files.

Owns what a queue must tell a plan: its ends, an offset by time, the approximate size of messages.
Only reads, and knows nothing of options.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

from penstock.shared.errors import GroupNotFound, OffsetOutOfRange
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.formats.record_layout import (
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    SMALLEST_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    fields_at,
    store_timestamp_ms,
)
from penstock.shared.names import LIGHT_QUEUE_PREFIX
from penstock.shared.next_steps import did_you_mean
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.rocketmq_json import load_document
from penstock.shared.store.topics import load_topics

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SAMPLE_ENTRIES = 512
_HEAD = fields_at(
    (AT_MAGIC, "I"), (AT_QUEUE_ID, "i"), (AT_QUEUE_OFFSET, "q"), (AT_PHYSICAL_OFFSET, "q")
)
# topic -> queue -> next offset
GroupOffsets = dict[str, dict[int, int]]


class Queue(Protocol):
    """One queue as it was when it was listed."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...

    def offset_at(self, time_ms: int) -> int:
        """The first offset stored at or after a time, else the max offset. As in RocketMQ, this is
        a bisection, which assumes that store times grow."""
        ...

    def estimate_bytes(self, start: int, stop: int) -> int:
        """The approximate size of these messages, in bytes."""
        ...

    def end_within(self, start: int, stop: int, max_bytes: int) -> int:
        """The end of the messages from `start` on that fit into `max_bytes`; at most `stop`."""
        ...

    def durable_offset(self, log_end: int | None) -> int:
        """How far a stream may read if the log is on disk up to `log_end`; None: to the end."""
        ...

    def position(self, offset: int) -> int:
        """The log offset of a message's record."""
        ...

    def stored_ms(self, offset: int) -> int | None:
        """When a message was stored, by its record, in ms since 1970; None if unknown."""
        ...


class StoreQueue:
    """A queue by its files and the records that they name."""

    def __init__(self, store: StoreDirectory, files: QueueFiles) -> None:
        self._store = store
        self._files = files
        self.topic, self.queue_id = files.topic, files.queue_id

    @property
    def min_offset(self) -> int:
        return self._files.min_offset

    @property
    def max_offset(self) -> int:
        return self._files.max_offset

    def offset_at(self, time_ms: int) -> int:
        slots = range(self.min_offset, self.max_offset)
        found = bisect_left(slots, True, key=lambda slot: self._stored_from(slot) >= time_ms)
        return self.min_offset + found

    def _stored_from(self, slot: int) -> float:
        """When the first message from there on whose store time can be read was stored."""
        times = map(self.stored_ms, range(slot, self.max_offset))
        return next((each for each in times if each is not None), inf)

    def stored_ms(self, slot: int) -> int | None:
        position = self._files.log_offset(slot)
        try:
            # not more, because a smallest record, which has all fields read here, may end a segment
            head = self._store.read_log(position, SMALLEST_RECORD_BYTES)
        except OffsetOutOfRange:
            return None
        magic, *place = _HEAD.unpack_from(head)
        # in a damaged record, other bytes would be taken for a time
        is_named = magic in TOPIC_LENGTH_BYTES and place == [self.queue_id, slot, position]
        return store_timestamp_ms(head, 0) if is_named else None

    def position(self, slot: int) -> int:
        return self._files.log_offset(slot)

    def estimate_bytes(self, start: int, stop: int) -> int:
        # from samples at both ends, because a queue may have very many entries
        head = self._sizes(start, min(start + SAMPLE_ENTRIES, stop))
        tail = self._sizes(max(stop - SAMPLE_ENTRIES, start), stop)
        return int((head.mean() + tail.mean()) / 2 * (stop - start))

    def end_within(self, start: int, stop: int, max_bytes: int) -> int:
        while start < stop:
            ends = self._sizes(start, min(start + SAMPLE_ENTRIES, stop)).cumsum()
            fit = int(ends.searchsorted(max_bytes, "right"))
            start, max_bytes = start + fit, max_bytes - int(ends[fit - 1] if fit else 0)
            if fit < len(ends):
                break
        return start

    def _sizes(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        sizes = self._files.entries(start, stop)["size"].astype("i8")
        sizes[sizes == BLANK_SIZE] = 0  # such an entry stands for a lost message, and has no record
        return sizes

    def durable_offset(self, log_end: int | None) -> int:
        if log_end is None:
            return self.max_offset
        # the entries whose records begin before `log_end`
        return max(self.min_offset, min(self._files.end_before(log_end), self.max_offset))


def store_queues(store: StoreDirectory, wanted: Callable[[str], bool]) -> list[Queue]:
    """The queues of wanted topics of the store, by topic and queue id."""
    # entries of light queues name messages of other topics, which are read from those
    return [
        StoreQueue(store, files)
        for files in store.queues()
        if not files.topic.startswith(LIGHT_QUEUE_PREFIX) and wanted(files.topic)
    ]


def group_offsets(store: StoreDirectory, group: str) -> GroupOffsets:
    """A group's offsets in config/consumerOffset.json.

    Raises GroupNotFound, StoreDamaged.
    """
    saved = load_document(store.paths.consumer_offsets, ConsumerOffsets)
    rows = list(saved.rows())
    found: GroupOffsets = {}
    for name, topic, queue_id, offset in rows:
        if name == group:
            found.setdefault(topic, {})[queue_id] = offset
    if not found:
        raise GroupNotFound(
            "no group of this name has an offset in the store",
            group,
            did_you_mean(group, sorted({name for name, *_ in rows})),
        )
    return found


def known_topics(store: StoreDirectory) -> Callable[[str], int]:
    """A function: how many queues a topic has by config/topics.json, even without any message."""
    return load_topics(store.paths.topics).read_queues


def topics_of(queues: Sequence[Queue]) -> list[str]:
    return sorted({queue.topic for queue in queues})
