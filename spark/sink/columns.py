"""The columns that the sink takes, and from a row to the arguments of a message.

A frame with another column, or one of another type, is refused when it is planned, before any row
is looked at. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.client.core.sending.encoding import BatchMessage
from penstock.shared.errors import ConfigError, InvalidMessage
from penstock.shared.next_steps import did_you_mean

_TEXT: tuple[DataType, ...] = (StringType(),)
_WHOLE: tuple[DataType, ...] = (IntegerType(), LongType(), ShortType(), ByteType())
# The first type of each is the one that errors and docs name.
COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": _TEXT,
    "body": (BinaryType(), StringType()),
    "tags": _TEXT,
    "keys": (StringType(), ArrayType(StringType())),
    "properties": (MapType(StringType(), StringType()),),
    "queue_id": _WHOLE,
    "sharding_key": _TEXT,
    "delay_ms": _WHOLE,
    "deliver_at": (TimestampType(),),
    "delay_level": _WHOLE,
}


class Row(NamedTuple):
    """One message, as `Producer.send` has its arguments."""

    topic: str
    message: BatchMessage
    shard: str | None
    queue: int | None
    delay: timedelta | None
    deliver_at: datetime | None
    delay_level: int | None


def check_columns(schema: StructType, topic: str) -> None:
    """Raises ConfigError for a frame that cannot be written, with `topic` the option's."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(
                "the sink has no such column",
                field.name,
                f"{did_you_mean(field.name, COLUMNS)} Select what is to be written",
            )
        allowed = [each.simpleString() for each in COLUMNS[field.name]]
        if _loose(field.dataType) not in allowed:
            raise ConfigError(
                f"column {field.name} is not of a type that the sink takes",
                f"{field.dataType.simpleString()} for {' or '.join(allowed)}",
                "cast it before the write",
            )
    if "body" not in schema.names:
        raise ConfigError(
            "the frame has no column body",
            ", ".join(schema.names),
            'make one: .selectExpr("to_json(struct(*)) AS body")',
        )
    if not topic and "topic" not in schema.names:
        raise ConfigError(
            "no topic is named", None, 'name it: .option("topic", "orders"), or in a column topic'
        )


def _loose(kind: DataType) -> str:
    """The type's name; whether a map or list may have nulls is not in it."""
    return kind.simpleString()


def rows(batch: pa.RecordBatch, topic: str) -> Iterator[Row]:
    """The rows of a batch. Raises InvalidMessage for one without a body or topic."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    nothing = [None] * batch.num_rows
    values = [columns[name].to_pylist() if name in columns else nothing for name in COLUMNS]
    for own, body, tags, keys, properties, queue, shard, delay, at, level in zip(
        *values, strict=True
    ):
        if body is None:
            raise InvalidMessage(
                "the body of a row is null", None, "leave such rows out, or write an empty body"
            )
        if not (target := topic or own):
            raise InvalidMessage("the topic of a row is null", None, "fill the column topic")
        message = BatchMessage(
            body.encode() if isinstance(body, str) else body,
            tags,
            keys,
            None if properties is None else _mapping(properties),
        )
        wait = None if delay is None else timedelta(milliseconds=delay)
        yield Row(target, message, shard, queue, wait, at, level)


def _mapping(pairs: Any) -> dict[str, str]:
    """Arrow's maps are lists of pairs."""
    return dict(pairs)
