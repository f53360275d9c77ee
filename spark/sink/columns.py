"""The columns that the sink accepts.

A frame with any other column, or with one of another type, is refused when it is planned, before
any row is looked at. Pure.
"""

from __future__ import annotations

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

from penstock.shared.errors import ConfigError
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


def check_columns(schema: StructType, topic: str) -> None:
    """Raises ConfigError for a frame that cannot be written. `topic` is the option's."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(
                "the sink has no such column",
                field.name,
                f"select what is to be written. {did_you_mean(field.name, COLUMNS)}",
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
    """The type's name, which does not say whether a map or list may have nulls."""
    return kind.simpleString()
