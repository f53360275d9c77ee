"""Copies of messages whose time has come, packed into frames, and where they may go.

Records in one frame are grouped by queue, each queue's in their order. Where an earlier life may
have stored some of them each travels alone: the writer looks for a frame's first records only, and
what was stored then need not be the beginning of what is a frame now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats.record_layout import AT_FLAG, AT_QUEUE_ID
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delivered import Copy
from penstock.shared.names import RETRY_PREFIX
from penstock.shared.store.topics import Topics, load_topics
from penstock.shared.wire.messages import QueueRun

MOST_IN_FRAME = 1000
# How often the file of topics is looked at.
LOOK_MS = 100


class Owner(Protocol):
    """A level, or the timers: it has put frames, and is told what became of them."""

    def settle(self, batch: Batch, stored: bool) -> None:
        """A frame has its outcome, which is the last word."""

    def again(self, batch: Batch, parts: list[Batch]) -> None:
        """Frames were put in the place of one that was refused."""


class Batch:
    """One frame of messages, with what their owner noted of each."""

    __slots__ = ("owner", "copies", "notes", "settled")

    def __init__(self, owner: Owner, copies: list[Copy], notes: list[Any]) -> None:
        self.owner, self.copies, self.notes = owner, copies, notes
        self.settled = False


def put_in_place(batches: deque[Batch], batch: Batch, parts: list[Batch]) -> None:
    """Put others there in the place of one."""
    at = batches.index(batch)
    batches.remove(batch)
    for number, part in enumerate(parts):
        batches.insert(at + number, part)


def put_frames(
    sender: RecordSender,
    owner: Owner,
    copies: Sequence[tuple[Copy, Any]],
    doubtful: bool,
) -> Iterator[Batch]:
    """Put copies, each with what its owner notes of it, in their order; the frames that makes.

    The note of a frame is a list of its copies' notes.
    """
    first, size = 0, 0
    for number, (copy, _) in enumerate(copies):
        full = size + len(copy.record) > FRAME_BYTES or number - first >= MOST_IN_FRAME
        if number > first and (full or doubtful):
            yield _put(sender, owner, copies[first:number], doubtful)
            first, size = number, 0
        size += len(copy.record)
    if first < len(copies):
        yield _put(sender, owner, copies[first:], doubtful)


def _put(
    sender: RecordSender, owner: Owner, copies: Sequence[tuple[Copy, Any]], doubtful: bool
) -> Batch:
    groups: dict[tuple[bytes, int], list[bytes]] = {}
    for copy, _ in copies:
        groups.setdefault(copy[:2], []).append(copy.record)
    runs = [QueueRun(topic.decode(), queue, len(group)) for (topic, queue), group in groups.items()]
    raw = b"".join([record for group in groups.values() for record in group])
    batch = Batch(owner, [copy for copy, _ in copies], [note for _, note in copies])
    sender.put(runs, raw, batch, doubtful)
    return batch


class Targets:
    """Which topics and queues there are: config/topics.json, looked at again when it changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._version: tuple[int, int] = (0, 0)
        self._looked_ms = -LOOK_MS
        self._topics = Topics()
        # retry topics that somebody has to make, before anything goes there
        self.missing: set[str] = set()

    def look(self, now_ms: int) -> None:
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return
        version = found.st_mtime_ns, found.st_ino
        if version != self._version:
            self._topics, self._version = load_topics(self._file), version
            self.missing = {topic for topic in self.missing if not self._topics.queues(topic)}

    def place(self, copy: Copy) -> Copy | None:
        """The copy for a queue that there is; None where its topic is gone.

        A topic may have fewer queues by now than when the message was sent. Its queue is then one
        that is left, the same for all that were for that queue.
        """
        topic = copy.topic.decode("utf-8", "replace")
        queues = self._topics.queues(topic)
        if copy.queue_id < queues:
            return copy
        if queues:
            return moved(copy, copy.queue_id % queues)
        if topic.startswith(RETRY_PREFIX):
            self.missing.add(topic)
            return copy
        return None


def moved(copy: Copy, queue_id: int) -> Copy:
    """The same for another queue."""
    raw = copy.record[:AT_QUEUE_ID] + queue_id.to_bytes(4, "big") + copy.record[AT_FLAG:]
    return Copy(copy.topic, queue_id, raw)
