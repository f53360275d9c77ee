"""Copies of messages whose time has come, packed into frames, and where they may go.

Records in one frame are grouped by queue, and each queue's are in order. If an earlier life may
have stored some of them, the writer is told. It looks for each record, because those stored then
need not be the beginning of a present frame, and stores the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.properties import LOST
from penstock.shared.formats.record_layout import AT_FLAG, AT_QUEUE_ID
from penstock.shared.layout import StorePaths
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delivered import Copy
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, RETRY_PREFIX, is_stored_topic
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import Topics, load_topics
from penstock.shared.wire.messages import QueueRun

MOST_IN_FRAME = 1000
# How often to check the file of topics.
LOOK_MS = 100


class Owner(Protocol):
    """A level, or the timers: it has put frames, and is told their outcomes."""

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its final outcome."""

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """`parts` were put in place of a frame that was refused."""


class Batch:
    """One frame of messages, with their owner's note on each."""

    __slots__ = ("owner", "copies", "notes", "settled", "due_ms")

    def __init__(self, owner: Owner, copies: list[Copy], notes: list[Any]) -> None:
        self.owner, self.copies, self.notes = owner, copies, notes
        self.settled = False
        # when the first of them is due; -1 until the timers ask
        self.due_ms = -1


def put_in_place(batches: deque[Batch], batch: Batch, parts: list[Batch]) -> None:
    """Replace one batch by others, at its place."""
    at = batches.index(batch)
    batches.remove(batch)
    for number, part in enumerate(parts):
        batches.insert(at + number, part)


def put_frames(
    sender: RecordSender,
    owner: Owner,
    copies: Sequence[tuple[Copy, Any]],
    stored_after: int,
) -> Iterator[Batch]:
    """Put copies, each with its owner's note, in order; returns the frames that this makes.

    A frame's note is the list of its copies' notes. For `stored_after` see RecordSender.put.
    """
    first, size = 0, 0
    for number, (copy, _) in enumerate(copies):
        full = size + len(copy.record) > FRAME_BYTES or number - first >= MOST_IN_FRAME
        if number > first and full:
            yield _put(sender, owner, copies[first:number], stored_after)
            first, size = number, 0
        size += len(copy.record)
    if first < len(copies):
        yield _put(sender, owner, copies[first:], stored_after)


def _put(
    sender: RecordSender, owner: Owner, copies: Sequence[tuple[Copy, Any]], stored_after: int
) -> Batch:
    groups: dict[tuple[bytes, int], list[bytes]] = {}
    for copy, _ in copies:
        groups.setdefault(copy[:2], []).append(copy.record)
    runs = [QueueRun(topic.decode(), queue, len(group)) for (topic, queue), group in groups.items()]
    raw = b"".join([record for group in groups.values() for record in group])
    batch = Batch(owner, [copy for copy, _ in copies], [note for _, note in copies])
    sender.put(runs, raw, batch, stored_after)
    return batch


class Targets:
    """Which topics and queues exist: config/topics.json, loaded again when it changes.

    Messages that wait for a deleted topic go with it. A topic that does not exist and was never
    deleted, as in a store without that file, is `missing`: somebody has to make it.
    """

    def __init__(self, paths: StorePaths, queues: QueueReader, least_queues: int) -> None:
        """`least_queues` is how many queues a missing topic gets."""
        self._file, self._deletions = paths.topics, paths.deleted_topics
        self._in_store, self._least_queues = queues, least_queues
        # the file version that was loaded; None until one could be
        self._version: tuple[int, int] | None = None
        self._looked_ms = -LOOK_MS
        self._topics = Topics()
        self._deleted: Collection[str] = ()
        # topic -> its number of queues, for topics that were asked for; and their existing queues
        self._counts: dict[str, int] = {}
        self._there: set[tuple[bytes, int]] = set()
        # topics that somebody has to make, with their numbers of queues
        self.missing: dict[str, int] = {}
        self._refused: set[str] = set()
        # topic -> how many messages had nowhere to go, since the last call of `lost`
        self._lost: Counter[str] = Counter()
        # why the last look could not load the files
        self.trouble: StoreDamaged | OSError | None = None

    @property
    def is_known(self) -> bool:
        """False until the files were loaded once: until then no message counts as lost."""
        return self._version is not None

    def look(self, now_ms: int, at_once: bool = False) -> None:
        if now_ms - self._looked_ms < LOOK_MS and not at_once:
            return
        self._looked_ms = now_ms
        try:
            self._read()
            self.trouble = None
        except (StoreDamaged, OSError) as error:
            # Topics stay as they were, and cannot change: the writer loads the file before it does.
            self.trouble = error

    def _read(self) -> None:
        version = 0, 0
        with suppress(FileNotFoundError):  # then there are no topics
            found = self._file.stat()
            version = found.st_mtime_ns, found.st_ino
        if version == self._version:
            return
        topics = load_topics(self._file)
        # loaded after the topics, because a deletion is noted before the topic goes
        names = topics.names()
        self._deleted = load_deleted_topics(self._deletions).settled(names).ends()
        self._topics, self._version = topics, version
        self._counts.clear()
        self._there.clear()
        self.missing = {each: n for each, n in self.missing.items() if each not in names}

    def others(self, copies: Sequence[Copy | None]) -> list[int]:
        """The numbers of the copies that need a closer look: all but those whose queue exists."""
        there = self._there
        return [n for n, copy in enumerate(copies) if copy is None or copy[:2] not in there]

    def place(self, copy: Copy) -> Copy | None:
        """The copy for a queue that exists or will; None if it has nowhere to go."""
        queue_id = self.queue_for(copy.topic, copy.queue_id)
        if queue_id is None or queue_id == copy.queue_id:
            return copy if queue_id is not None else None
        return moved(copy, queue_id)

    def queue_for(self, name: bytes, queue_id: int) -> int | None:
        """The queue that a message for this one goes to; None if its topic is gone.

        A topic may have fewer queues now than when the message was sent. Then it goes to one that
        is left, the same one for all messages of its queue.
        """
        topic = name.decode("utf-8", "replace")
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._count(topic)
        if count:
            if queue_id < count:
                self._there.add((name, queue_id))
            return queue_id % count
        if not self._may_be_made(topic):
            self._lost[topic] += 1
            return None
        if topic not in self.missing:
            ids = self._in_store.queues(topic)
            least = 1 if topic.startswith(RETRY_PREFIX) else self._least_queues
            wanted = max(least, queue_id + 1, max(ids, default=0) + 1)
            self.missing[topic] = min(wanted, MAX_QUEUES_PER_TOPIC)
        return queue_id

    def _count(self, topic: str) -> int:
        config = self._topics.get(topic)
        # a topic that takes no more messages from producers is still read
        return 0 if config is None else config.write_queues or config.queues

    def _may_be_made(self, topic: str) -> bool:
        if topic in self._topics.names() or topic in self._refused or topic == LOST:
            return False
        if not is_stored_topic(topic):
            return False  # a frame could not even name the topic
        return topic not in self._deleted or topic.startswith(RETRY_PREFIX)

    def give_up(self, topic: str, now_ms: int) -> bool:
        """The topic cannot be made: messages for it have nowhere to go. False if it exists now."""
        self.look(now_ms, at_once=True)
        self.missing.pop(topic, None)
        if topic in self._topics.names():
            return False
        self._refused.add(topic)
        return True

    def lost(self) -> Counter[str]:
        """How many messages have had no place since the last call, by topic."""
        found, self._lost = self._lost, Counter()
        return found


def moved(copy: Copy, queue_id: int) -> Copy:
    """The same copy for another queue."""
    raw = copy.record[:AT_QUEUE_ID] + queue_id.to_bytes(4, "big") + copy.record[AT_FLAG:]
    return Copy(copy.topic, queue_id, raw)
