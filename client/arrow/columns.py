"""A consumer's poll as Arrow columns, made from the received bytes, all rows at once.

    Part -> where its records begin -> Batch -> record_columns() -> RecordBatch

If some messages are left out (by a filter, as tombstones, or past the end), the others are first
picked as messages by the rules of `poll`, and then go the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.client.arrow.decode import Batch, RecordMismatch, record_columns
from penstock.client.arrow.property_columns import Integers
from penstock.client.core.arguments import check_text, wrong_type
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Message, Part
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.formats.properties import LOST_MARK
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET, AT_QUEUE_OFFSET
from penstock.shared.loops.active import part_starts
from penstock.shared.next_steps import did_you_mean

_TIME = pa.timestamp("us", tz="UTC")
# in the order of Spark's source
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "physical_offset": pa.int64(),
        "keys": pa.string(),
        "tags": pa.string(),
        "body": pa.binary(),
        "born_timestamp": _TIME,
        "store_timestamp": _TIME,
        "properties": pa.map_(pa.string(), pa.string()),
    }
)


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns, in this order; None for all. Raises ConfigError."""
    if columns is None:
        return SCHEMA
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise wrong_type(ConfigError, "columns", columns, "a list of names of columns")
    names = list(columns)
    if not names:
        # rows without columns would lose what was read, unseen
        raise ConfigError("no column is named", "columns=[]", "leave it out for all of them")
    for name in names:
        if check_text("a name of columns", name, ConfigError) not in SCHEMA.names:
            raise ConfigError("there is no such column", name, did_you_mean(name, SCHEMA.names))
        if names.count(name) > 1:
            raise ConfigError("a column is named twice", name, "name it once")
    return pa.schema([SCHEMA.field(name) for name in names])


class Columns:
    """Makes the rows of one consumer's poll. `columns` names the wanted columns, None for all."""

    def __init__(self, columns: Sequence[str] | None, max_body_bytes: int, topic: str = "") -> None:
        """`topic` is the topic of parts; messages name their own."""
        self.schema = schema_of(columns)
        self._topic, self._max_body_bytes = topic, max_body_bytes

    def taking(self, core: ConsumerCore) -> Callable[[], list[pa.RecordBatch]]:
        """A function that takes what has come, as rows."""
        return lambda: core.take_as(self.of_part, self.of_messages)

    def of_part(self, part: Part) -> tuple[list[pa.RecordBatch], bool]:
        """The rows of a part, and whether a record may be a tombstone; if so, there are no rows.

        Raises StoreDamaged and UnreadableBody. (With `poll`, a message's `body` raises the latter.)
        """
        within = part.start, part.stop
        starts, end, marked = part_starts(
            part.payload, part.place, part.queue_id, within, LOST_MARK
        )
        if end != part.place[1]:
            part.messages(self._max_body_bytes)  # raises an error that says where
        if marked or not len(starts):
            return [], marked
        bounds = np.append(np.frombuffer(starts, np.int64), end)
        return [self._rows(self._topic, part.queue_id, part.payload, bounds)], marked

    def of_messages(self, found: Sequence[Message]) -> list[pa.RecordBatch]:
        """The rows of messages of one queue. Raises StoreDamaged and UnreadableBody."""
        if not found:
            return []
        records = [message.record for message in found]
        bounds = np.cumsum([0, *map(len, records)], dtype=np.int64)
        place = found[0].topic, found[0].queue_id
        return [self._rows(*place, b"".join(records), bounds)]

    def of_queues(self, found: Iterable[Message]) -> list[pa.RecordBatch]:
        """Like `of_messages`, for messages of several queues, in their order."""
        runs = groupby(found, lambda message: message.queue_id)
        return [rows for _, run in runs for rows in self.of_messages(list(run))]

    def together(self, made: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows as one batch, which may be empty."""
        if len(made) == 1:
            return made[0]
        whole = pa.Table.from_batches(made, self.schema).combine_chunks()
        # a column without a row has no chunk
        arrays = [each.chunk(0) if len(whole) else pa.array([], each.type) for each in whole]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def with_topics(self, rows: pa.RecordBatch, topics: list[str]) -> pa.RecordBatch:
        """Rows of retries, with the topics that they were first sent to."""
        if "topic" not in self.schema.names:
            return rows
        at = self.schema.names.index("topic")
        return rows.set_column(at, self.schema.field(at), pa.array(topics, pa.string()))

    def _rows(
        self, topic: str, queue_id: int, raw: bytes | memoryview, bounds: Integers
    ) -> pa.RecordBatch:
        starts, sizes = bounds[:-1], np.diff(bounds)
        offsets, physical = (
            np.ndarray((len(raw) - 7,), ">i8", raw, 0, (1,))[starts + at].astype(np.int64)
            for at in (AT_QUEUE_OFFSET, AT_PHYSICAL_OFFSET)
        )
        place = topic, queue_id, offsets, physical
        batch = Batch(*place, sizes, raw, starts, self._max_body_bytes)
        try:
            made = record_columns(batch)
            arrays = [made[name]() for name in self.schema.names]
        except RecordMismatch as misfit:
            start, stop = bounds[misfit.index : misfit.index + 2]
            message = Message(bytes(raw[start:stop]), self._max_body_bytes)
            _ = message.body  # if the body is at fault, this raises the same as for a message
            raise StoreDamaged(
                "a record that the broker has sent is damaged",
                f"message {offsets[misfit.index]} of {topic}/{queue_id}, "
                f"at {physical[misfit.index]}",
                "see what is wrong, on the broker's machine: penstock store verify STORE",
            ) from misfit
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
