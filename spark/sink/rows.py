"""Makes messages from a batch of Spark's: the queue of each, its properties, its size.

All rows are processed together, column by column; only what few rows have, a map of properties or a
delay, is processed row by row. Errors in a row are found here, before any row is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.core.arguments import check_keys
from penstock.client.core.delays import wanted_delay
from penstock.client.core.sending.encoding import BatchMessage, Encoder, too_large, topic_bytes
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
)
from penstock.shared.formats.java_hash import string_hashes
from penstock.shared.formats.properties import (
    KEYS,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    encode_properties,
)
from penstock.shared.loops.active import join_properties, properties_of
from penstock.shared.loops.forms import Rows

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]
Columns = Mapping[str, pa.Array]
# processed row by row, as they are null in most rows
_SELDOM = ("properties", "delay_ms", "deliver_at", "delay_level")


class BadRow(Exception):
    """A row of the batch cannot be sent."""

    def __init__(self, index: int, error: PenstockError) -> None:
        super().__init__(index, error)
        self.index, self.error = index, error


class Targets:
    """The topic and queue of each row."""

    def __init__(self, count: int) -> None:
        self.names: list[str] = []
        self.topics: Words = np.zeros(count, np.int32)
        self.queues: Words = np.zeros(count, np.int32)

    def number(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


class Messages(NamedTuple):
    """The rows of a batch as messages. `sizes` has the most bytes that each takes as a record."""

    rows: Rows
    targets: Targets
    sizes: Integers

    def by_queue(self, first: int, last: int) -> tuple[Integers, list[tuple[str, int, int]]]:
        """The order of some rows grouped by queue, and the topic, queue and count of each group."""
        topics = self.targets.topics[first:last].astype(np.int64)
        targets = topics << 32 | self.targets.queues[first:last]
        order = np.argsort(targets, kind="stable")
        targets = targets[order]
        starts = np.flatnonzero(np.diff(targets, prepend=-1))
        counts = np.diff(starts, append=len(order)).tolist()
        runs = [
            (self.targets.names[target >> 32], target & 0xFFFFFFFF, count)
            for target, count in zip(targets[starts].tolist(), counts, strict=True)
        ]
        return order + first, runs


def messages_of(
    batch: pa.RecordBatch, topic: str, producer: BlockProducer, now_ms: int
) -> Messages:
    """The messages of a batch that has rows. `topic` is the option's. Raises BadRow, and what
    `BlockProducer.route` raises."""
    columns: Columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    encoder = producer.encoder
    targets = Targets(batch.num_rows)
    _choose_topics(targets, columns, topic)
    _choose_queues(targets, columns, producer)
    # by now the broker has stated its limit of a body
    body_ends, bodies = _bodies(columns["body"], producer.max_message_bytes)
    extras = _extras(targets, columns, encoder, now_ms)
    own_ends, own = _properties(columns, extras, encoder)
    rows = Rows(
        [topic_bytes(name) for name in targets.names],
        targets.topics.data,
        targets.queues.data,
        encoder.numbers.several(now_ms, batch.num_rows),
        body_ends.data,
        bodies,
        own_ends.data,
        own,
    )
    name_bytes = np.array([len(each) for each in rows.names], np.int64)
    sizes = np.diff(body_ends).astype(np.int64) + np.diff(own_ends) + encoder.fixed_bytes
    return Messages(rows, targets, sizes + name_bytes[targets.topics])


def _bodies(column: pa.Array, limit: int) -> tuple[Words, Any]:
    if column.null_count:
        hint = "leave such rows out, or write an empty body"
        error = InvalidMessage("the body of a row is null", None, hint)
        raise BadRow(int(np.asarray(column.is_null()).argmax()), error)
    ends, data = _pieces(column)
    lengths = np.diff(ends)
    if limit and int(lengths.max()) > limit:
        index = int((lengths > limit).argmax())
        raise BadRow(index, too_large(int(lengths[index]), limit))
    return ends, data


def _choose_topics(targets: Targets, columns: Columns, topic: str) -> None:
    if topic:
        targets.names = [topic]
        return
    names = pc.fill_null(columns["topic"].cast(pa.string()), "").dictionary_encode()
    targets.names = names.dictionary.to_pylist()
    targets.topics = np.asarray(names.indices).astype(np.int32)
    if "" in targets.names:
        index = int((targets.topics == targets.names.index("")).argmax())
        error = InvalidMessage("the topic of a row is null", None, "fill the column topic")
        raise BadRow(index, error)


def _choose_queues(targets: Targets, columns: Columns, producer: BlockProducer) -> None:
    is_sharded, is_placed = _given(targets, columns, "sharding_key", "queue_id")
    both = is_sharded & is_placed
    if both.any():
        index = int(both.argmax())
        shard, queue = columns["sharding_key"][index].as_py(), columns["queue_id"][index].as_py()
        raise BadRow(
            index,
            InvalidMessage(
                "both sharding_key and queue_id choose the message's queue",
                f"{shard!r} and {queue}",
                "leave one of them null",
            ),
        )
    if is_placed.any():
        placed = np.asarray(pc.fill_null(columns["queue_id"], 0)).astype(np.int64)
    if is_sharded.any():
        shards = columns["sharding_key"].cast(pa.binary()).dictionary_encode()
        codes = np.abs(string_hashes(shards.dictionary.to_pylist()).astype(np.int64))
        places = np.asarray(pc.fill_null(shards.indices, 0))
    for number, topic in enumerate(targets.names):
        mine = targets.topics == number
        with _told_of(mine):
            producer.route(topic)
        if (here := mine & is_placed).any():
            for queue in np.unique(placed[here]).tolist():
                with _told_of(here & (placed == queue)):
                    producer.queue_for(topic, None, queue)  # raises if there is no such queue
            targets.queues[here] = placed[here]
        if (here := mine & is_sharded).any():
            targets.queues[here] = codes[places[here]] % producer.queues_of(topic)
        here = mine & ~is_placed & ~is_sharded
        targets.queues[here] = producer.turns(topic, int(here.sum()))


@contextmanager
def _told_of(rows: npt.NDArray[np.bool_]) -> Iterator[None]:
    """Raise an error about the topic or the queue of these rows as one of the first row."""
    try:
        yield
    except (InvalidArgument, TopicNotFound, QueueNotFound) as error:
        raise BadRow(int(rows.argmax()), error) from error


def _given(targets: Targets, columns: Columns, *names: str) -> list[npt.NDArray[np.bool_]]:
    """For each column, which rows have a value."""
    nothing = np.zeros(len(targets.topics), np.bool_)
    return [np.asarray(columns[name].is_valid()) if name in columns else nothing for name in names]


def _extras(
    targets: Targets, columns: Columns, encoder: Encoder, now_ms: int
) -> list[bytes] | None:
    """For each row, the properties that have no column of their own; None if no row has any. The
    target of a delayed row becomes the topic in which it waits."""
    is_given = _given(targets, columns, *_SELDOM)
    if not any(each.any() for each in is_given):
        return None
    made = [b""] * len(targets.topics)
    nothing = [None] * len(made)
    values = [_values(columns[name]) if name in columns else nothing for name in _SELDOM]
    for index in np.flatnonzero(np.logical_or.reduce(is_given)).tolist():
        pairs, delay_ms, deliver_at, level = (each[index] for each in values)
        mapping: Mapping[str, str] | None = None if pairs is None else dict(pairs)
        # not a timedelta, whose range is smaller than a bigint's
        wait_s = None if delay_ms is None else delay_ms / 1000
        try:
            delay, mapping = wanted_delay(wait_s, deliver_at, level, mapping, now_ms)
            _check_names(mapping or {})
            draft = encoder.draft(BatchMessage(b"", properties=mapping), None)
            made[index] = b"" if isinstance(draft, bytes) else draft[1]
        except InvalidMessage as error:
            raise BadRow(index, error) from error
        if delay is not None:
            topic = targets.names[targets.topics[index]]
            real = delay.properties(topic, int(targets.queues[index]))
            made[index] += encode_properties(real)
            targets.topics[index] = targets.number(delay.topic)
            targets.queues[index] = delay.queue_id
    return made


def _check_names(properties: Mapping[str, str]) -> None:
    """Raise InvalidMessage for names that a producer refuses too, but with the next step in SQL:
    rows that were read have these names among their properties."""
    if reserved := RESERVED.intersection(properties):
        names = ", ".join(f"'{name}'" for name in sorted(RESERVED))
        raise InvalidMessage(
            "a row's properties have one of RocketMQ's own names",
            min(reserved),
            "use the columns tags, keys and sharding_key; of rows that were read, write "
            f"map_filter(properties, (name, value) -> name NOT IN ({names})) AS properties",
        )


def _values(column: pa.Array) -> list[Any]:
    """The column's values; times in ms since 1970.

    A datetime cannot hold all of Spark's times, and would need the session's time zone, for which
    Java has names that Python does not have.
    """
    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist()
        return values
    times_us = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    # rounded up, so that nothing is delivered early
    return [None if each is None else -(-each // 1000) for each in times_us]


def _properties(
    columns: Columns, extras: list[bytes] | None, encoder: Encoder
) -> tuple[Words, bytes]:
    """The properties of all rows, and where each row's end."""
    texts = [
        (name, _single(column) if pa.types.is_list(column.type) else column.cast(pa.string()))
        for name, column in (
            (TAGS, columns.get("tags")),
            (SHARDING_KEY, columns.get("sharding_key")),
            (KEYS, columns.get("keys")),
        )
        if column is not None
    ]
    pieces = [(name.encode(), *_pieces(pc.fill_null(column, ""))) for name, column in texts]
    given = [(name, ends.data, data) for name, ends, data in pieces]
    count = len(columns["body"])
    given.append((b"", *_listed(extras or [], count)))
    joined = join_properties(given)
    if isinstance(joined, int):
        raise BadRow(joined, _not_a_value({name: column[joined].as_py() for name, column in texts}))
    ends = np.frombuffer(joined[0], np.int32)
    lengths = np.diff(ends)
    index = int(lengths.argmax())
    try:
        encoder.check_properties(int(lengths[index]))
    except InvalidMessage as error:
        raise BadRow(index, error) from error
    return ends, joined[1]


def _not_a_value(texts: Mapping[str, str | None]) -> InvalidMessage:
    """The error for texts of which one cannot be a property."""
    try:
        properties_of(texts.get(TAGS), texts.get(KEYS), texts.get(SHARDING_KEY), b"")
    except InvalidMessage as error:
        return error
    raise AssertionError(f"the loops do not agree about {texts}")


def _pieces(column: pa.Array) -> tuple[Words, Any]:
    """The bounds of the pieces of a column of texts or bytes without nulls, and their buffer."""
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    words = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    return words, b"" if data is None else data


def _listed(pieces: list[bytes], count: int) -> tuple[Any, bytes]:
    """Like `_pieces`, for a list that is empty or has `count` pieces."""
    ends = np.zeros(count + 1, np.int32)
    if pieces:
        ends[1:] = np.cumsum(np.fromiter(map(len, pieces), np.int32, count))
    return ends.data, b"".join(pieces)


def _single(column: pa.Array) -> pa.Array:
    """Lists of keys as one text each."""
    texts: list[str | None] = []
    for index, keys in enumerate(column.to_pylist()):
        try:
            texts.append(None if keys is None else check_keys("keys", keys))
        except InvalidMessage as error:
            raise BadRow(index, error) from error
    return pa.array(texts, pa.string())
