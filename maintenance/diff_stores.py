"""How two stores differ: topics, queues, where these begin and end, the first different message.

Both are read as files, whether Penstock's or RocketMQ's, running or not. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from penstock.shared.errors import TopicNotFound
from penstock.shared.formats.compression import decompress
from penstock.shared.formats.properties import (
    KEYS,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    decode_properties,
)
from penstock.shared.formats.record import Record
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.topics import load_topics

# Entries of a queue that are read at once.
_ENTRIES = 4096
_SHOWN = 60
# Properties that producers and brokers set: an id, how to send it, the checksum of a record. An
# import leaves these out.
_UNSAID = RESERVED - {KEYS, SHARDING_KEY, TAGS}
Progress = Callable[[int, int], None]
Queue = tuple[str, int]


class Difference(NamedTuple):
    """One difference. If only one side has the thing, the other's value is None."""

    kind: str  # topic, queue or message
    topic: str
    queue_id: int  # -1 for a topic
    offset: int  # the message's, in A's queue; -1 for a topic or a queue
    field: str  # what differs
    a: object
    b: object


class Compared:
    """Counts what was compared so far."""

    def __init__(self) -> None:
        self.topics = self.queues = self.messages = 0


def diff_stores(
    a: StoreDirectory,
    b: StoreDirectory,
    topics: tuple[str, ...] = (),
    *,
    content: bool = False,
    compared: Compared | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[Difference]:
    """All differences; for each queue only the first different message.

    Messages are the same if their records agree in all but their place in the log. With `content`
    they are compared in order, not by offset, and only by what the sender has decided: body, flag,
    properties. So a topic that was exported and imported is the same. Raises StoreDamaged;
    OffsetOutOfRange for what a running store has deleted meanwhile; TopicNotFound for one of
    `topics` that neither store has; UnreadableBody for `content` that cannot be decompressed.
    """
    compared = compared or Compared()
    both = _declared(a, topics), _declared(b, topics)
    files = _queues(a, topics), _queues(b, topics)
    known = both[0].keys() | both[1].keys() | {topic for topic, _ in [*files[0], *files[1]]}
    if unknown := sorted(set(topics) - known):
        raise TopicNotFound("neither store has a topic of this name", unknown[0])
    for topic in sorted(both[0].keys() | both[1].keys()):
        compared.topics += 1
        here, there = (each.get(topic) for each in both)
        if here != there:
            yield Difference("topic", topic, -1, -1, "queues", here, there)
    total = sum(_count(queue) for queue in files[0].values())
    done = 0
    for topic, queue_id in sorted(files[0].keys() | files[1].keys()):
        ours, theirs = (each.get((topic, queue_id)) for each in files)
        compared.queues += 1
        before = _range(ours, content), _range(theirs, content)
        if before[0] != before[1]:
            yield Difference("queue", topic, queue_id, -1, "messages", *map(_words, before))
        if ours is not None and theirs is not None:
            for at, mine, other in _pairs(a, ours, b, theirs, content):
                compared.messages += 1
                progress(done := done + 1, total)
                if (field := _first_other(mine, other, content)) is not None:
                    yield Difference("message", topic, queue_id, at, *field)
                    break


def _declared(store: StoreDirectory, topics: tuple[str, ...]) -> dict[str, object]:
    """The queues that each topic has to write and to read, and its permission."""
    loaded = load_topics(store.paths.topics)
    others = loaded.others()
    return {
        topic: (queues, *others.get(topic, (queues, 6)))
        for topic, queues in loaded.all().items()
        if not topics or topic in topics
    }


def _queues(store: StoreDirectory, topics: tuple[str, ...]) -> Mapping[Queue, QueueFiles]:
    return {
        (each.topic, each.queue_id): each
        for each in store.queues()
        if (not topics or each.topic in topics) and _count(each)
    }


def _count(queue: QueueFiles) -> int:
    return queue.max_offset - queue.min_offset


def _range(queue: QueueFiles | None, content: bool) -> tuple[int, int]:
    """Where it begins and ends; with `content` only the number of its messages."""
    if queue is None:
        return 0, 0
    return (0, _count(queue)) if content else (queue.min_offset, queue.max_offset)


def _words(found: tuple[int, int]) -> str:
    first, end = found
    return f"{end - first} from offset {first}" if end > first else "none"


def _pairs(
    a: StoreDirectory, ours: QueueFiles, b: StoreDirectory, theirs: QueueFiles, content: bool
) -> Iterator[tuple[int, Record, Record]]:
    """The pairs to compare: (offset in A, the record there, the record in B)."""
    first = (ours.min_offset, theirs.min_offset)
    if not content:
        first = (max(first), max(first))
    count = min(ours.max_offset - first[0], theirs.max_offset - first[1])
    for done in range(0, count, _ENTRIES):
        many = min(_ENTRIES, count - done)
        starts = [at + done for at in first]
        places = [
            queue.entries(at, at + many)["offset"].tolist()
            for queue, at in zip((ours, theirs), starts, strict=True)
        ]
        for number, (here, there) in enumerate(zip(*places, strict=True)):
            yield starts[0] + number, a.record_at(here), b.record_at(there)


def _first_other(a: Record, b: Record, content: bool) -> tuple[str, object, object] | None:
    """The name of the first field that differs, and both values; None if none does."""
    ours, theirs = (_said(each) if content else _whole(each) for each in (a, b))
    for name, mine in ours.items():
        if mine != theirs[name]:
            return name, _shown(mine), _shown(theirs[name])
    return None


def _whole(record: Record) -> dict[str, object]:
    return {
        "body": record.body,
        "properties": record.properties,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "queue_offset": record.queue_offset,
        "born_timestamp_ms": record.born_timestamp_ms,
        "born_host": record.born_host,
        "store_timestamp_ms": record.store_timestamp_ms,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
    }


def _said(record: Record) -> dict[str, object]:
    """What the sender has decided."""
    properties = decode_properties(record.properties)
    properties = {name: text for name, text in properties.items() if name not in _UNSAID}
    body = decompress(record.body, record.sys_flag)
    return {"body": body, "properties": properties, "flag": record.flag}


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(value)} bytes)"
    return value
