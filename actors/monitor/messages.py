"""One message, or some of a queue: by offset, time, key or id; read from the store's files.

Messages that are not committed yet are not shown. If a file does not have a message, the error says
so. A look-up by key takes a bounded part of the monitor's time, and pauses so that others are
served meanwhile.
"""

from __future__ import annotations

import binascii
import codecs
from collections.abc import Generator
from typing import Any

import msgspec

from penstock.actors.monitor.reading import Reading, Steps
from penstock.actors.monitor.topics import check_known
from penstock.shared.errors import (
    RESOURCE_EXHAUSTED,
    BrokerTimeout,
    InvalidArgument,
    MessageNotFound,
    PenstockError,
    QueueNotFound,
    StoreDamaged,
    UnreadableBody,
)
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.index.directory import index_geometry
from penstock.shared.index.lookup import IndexView, KeyQuery, find_by_id, look_up
from penstock.shared.loops.active import Message

# The most of a body that is shown; its length always is.
SHOWN_BYTES = 64 << 10
SHOWN_IN_LIST_BYTES = 256
MOST_FOUND, MOST_LISTED = 32, 100
# The time limit of a look-up: a chain of the index may be long.
LOOK_UP_MS = 2000
_ALWAYS = (1 << 62) - 1


def find_messages(reading: Reading, query: dict[str, str]) -> Steps:
    """By `id`; by `topic` and `key`; by `topic`, `queue` and `offset`; by `topic` and `time`, ms
    since 1970. Raises InvalidArgument, MessageNotFound, and errors of the files."""
    if "id" in query:
        return {"rows": [shown((yield from _by_id(reading, query)), SHOWN_BYTES)]}
    topic = check_known(reading, query.get("topic", ""))
    if "key" in query:
        found = yield from _by_key(reading, topic, query["key"], unique=False)
        if not found:
            raise MessageNotFound("no message of the topic has this key", query["key"][:100])
        return {"rows": [shown(each, SHOWN_BYTES) for each in found]}
    if "time" in query:
        return {"rows": (yield from _by_time(reading, topic, number_of(query, "time")))}
    queue_id, offset = number_of(query, "queue"), number_of(query, "offset")
    return {"rows": [shown(_at(reading, topic, queue_id, offset), SHOWN_BYTES)]}


def list_messages(reading: Reading, query: dict[str, str]) -> Steps:
    """Some messages of a topic's queue, from `offset` on, or the newest; bodies are cut short."""
    topic = check_known(reading, query.get("topic", ""))
    queue_id = number_of(query, "queue") if "queue" in query else 0
    count = min(number_of(query, "rows") if "rows" in query else 20, MOST_LISTED)
    low, high = reading.queues.range(_slot(reading, topic, queue_id))
    first = max(low, number_of(query, "offset") if "offset" in query else high - count)
    rows = []
    for offset in range(first, min(high, first + count)):
        try:
            rows.append(shown(_at(reading, topic, queue_id, offset), SHOWN_IN_LIST_BYTES))
        except PenstockError as error:  # lost with a part of the log, or expired a moment ago
            rows.append({"topic": topic, "queue": queue_id, "offset": offset, "error": str(error)})
        yield
    found = {"topic": topic, "queue": queue_id, "min_offset": low, "max_offset": high}
    return found | {"rows": rows}


def number_of(query: dict[str, str], key: str) -> int:
    text = query.get(key, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument(f"{key} is not a number", text[:40], "name one of 0 or more")
    return int(text)


def _slot(reading: Reading, topic: str, queue_id: int) -> int:
    slot = reading.queues.queues(topic).get(queue_id)
    if slot is None:
        raise QueueNotFound("this queue has had no message", f"{topic}, queue {queue_id}")
    return slot


def _at(reading: Reading, topic: str, queue_id: int, offset: int) -> Message:
    slot = _slot(reading, topic, queue_id)
    low, high = reading.queues.range(slot)
    if not low <= offset < high:
        raise MessageNotFound(
            "the queue has no such offset", offset, f"it has those from {low} to below {high}"
        )
    try:
        position, size, _ = ENTRY.unpack(reading.queues.entries(slot, offset, offset + 1))
        if size == BLANK_SIZE or reading.queues.is_damaged(position, size):
            raise MessageNotFound("the message is lost with a damaged part of the log", offset)
        return Message(bytes(reading.queues.view(position, position + size)))
    except FileNotFoundError as error:
        raise MessageNotFound("the message has just expired", offset) from error


def _by_time(
    reading: Reading, topic: str, at_ms: int
) -> Generator[None, None, list[dict[str, Any]]]:
    """The first message of each queue that was stored then or later, or why it is unknown."""
    rows = []
    for queue_id, slot in sorted(reading.queues.queues(topic).items())[:MOST_FOUND]:
        offset = None
        try:
            offset = reading.queues.offset_at(slot, at_ms)
            if offset < reading.queues.range(slot)[1]:
                rows.append(shown(_at(reading, topic, queue_id, offset), SHOWN_IN_LIST_BYTES))
        except (PenstockError, OSError) as error:  # the other queues are still listed
            if isinstance(error, OSError) and error.errno in RESOURCE_EXHAUSTED:
                raise
            failed = {"topic": topic, "queue": queue_id, "offset": offset, "error": str(error)}
            rows.append(failed)
        yield
    return rows


def _by_id(reading: Reading, query: dict[str, str]) -> Generator[None, None, Message]:
    """By an id that names a place in the log or, with a topic, one that its client chose."""
    wanted = query["id"]
    try:
        return Message(bytes(find_by_id(wanted, _log_at(reading))))
    except (InvalidArgument, MessageNotFound):
        if "topic" not in query:
            raise
    found = yield from _by_key(reading, check_known(reading, query["topic"]), wanted, unique=True)
    if not found:
        raise MessageNotFound("no message of the topic has this id", wanted[:100])
    return found[-1]


def _by_key(
    reading: Reading, topic: str, key: str, *, unique: bool
) -> Generator[None, None, list[Message]]:
    """Raises BrokerTimeout if it takes too long, without counting the turns of others."""
    if not reading.config.message_index_enable:
        raise MessageNotFound("the broker keeps no index of keys", "message_index_enable is false")
    wanted = KeyQuery(topic, key, MOST_FOUND, 0, _ALWAYS, unique).check()
    index = IndexView(reading.paths.index, index_geometry(reading.config))
    left_ms, now_ms = LOOK_UP_MS, reading.clock.monotonic_ms
    search = look_up(index.files(), wanted, _log_at(reading))
    try:
        while left_ms > 0:
            began_ms = now_ms()
            next(search)
            left_ms -= now_ms() - began_ms
            yield
    except StopIteration as end:
        return [Message(record) for record in end.value]
    finally:
        search.close()
        index.close()
    raise BrokerTimeout(
        f"the look-up took longer than {LOOK_UP_MS} ms", key[:100], "penstock query has more time"
    )


def _log_at(reading: Reading) -> Any:
    def log_at(offset: int, size: int) -> memoryview:
        positions = reading.positions
        if not positions["log_start"] <= offset < positions["committed"]:
            return memoryview(b"")
        return reading.queues.view(offset, min(offset + size, positions["committed"]))

    return log_at


def shown(message: Message, most_bytes: int) -> dict[str, Any]:
    """A message as JSON: the body as text and as JSON if it is that, and as hex."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "log_offset": message.physical_offset,
        "stored_ms": message.store_timestamp_ms,
        "born_ms": message.born_timestamp_ms,
        "tags": message.tags,
        "keys": message.keys,
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
    }
    try:
        body = bytes(message.body)
    except (UnreadableBody, StoreDamaged) as error:
        return found | {"body_error": str(error)}
    return found | _body(body, most_bytes)


def _body(body: bytes, most_bytes: int) -> dict[str, Any]:
    cut = body[:most_bytes]
    found: dict[str, Any] = {
        "body_bytes": len(body),
        "is_cut": len(cut) < len(body),
        "text": None,
        "json": None,
    }
    found["hex"] = binascii.hexlify(cut).decode()
    try:
        # in a text that was cut, the last character may be incomplete
        decoder = codecs.getincrementaldecoder("utf-8")()
        found["text"] = decoder.decode(cut, final=not found["is_cut"])
        if not found["is_cut"] and body[:1] in b'{["':
            found["json"] = msgspec.json.format(body, indent=2).decode()
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        pass  # shown only as what it is
    return found
