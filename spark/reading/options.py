"""The options of `spark.read.format("penstock")` and of `spark.readStream`, with their defaults.

They are named after those of Spark's Kafka source wherever it has the same. Pure: no file is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from penstock.shared.errors import ConfigError
from penstock.shared.filters.message_filter import SQL92, TAG, parse_filter
from penstock.shared.names import listed
from penstock.shared.next_steps import did_you_mean

_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h)")
# Spark's own properties of a table, which it passes with the options when a table is created.
_OF_A_TABLE = {"owner", "provider"}
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class Mode(Enum):
    """What happens to a damaged record, by the names that Spark's own sources use."""

    FAILFAST = "FAILFAST"
    DROPMALFORMED = "DROPMALFORMED"
    PERMISSIVE = "PERMISSIVE"


class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a query reads. Spark ignores case in the names of options."""

    path: str = ""
    endpoint: str = ""  # instead of a path: a broker's, tcp://HOST:PORT
    subscribe: str = ""  # topics separated by commas; "": all topics
    subscribe_pattern: str = ""  # a regular expression that matches whole names
    assign: str = ""  # {"topic": [0, 1]}
    columns: str = ""  # column names separated by commas; "": all columns
    starting_offsets: str = "earliest"  # latest, group:NAME, {"topic": {"0": 17, "1": -2}}
    ending_offsets: str = "latest"
    starting_timestamp: str = ""  # store time: ms since 1970, ISO text, or -15m
    ending_timestamp: str = ""
    starting_offsets_by_timestamp: str = ""  # {"topic": {"0": 1700000000000}}
    ending_offsets_by_timestamp: str = ""
    tags: str = ""  # TagA || TagB
    sql: str = ""  # an SQL92 condition on the properties
    mode: Mode = Mode.FAILFAST
    fail_on_data_loss: bool = True
    push_filters: bool = False  # have tasks apply the query's filters
    max_offsets_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay: str = "15m"  # how long messages wait if there are fewer than the minimum
    min_partitions: int = 0
    max_records_per_partition: int = 0  # 0: only the bytes are limited
    split_bytes: int = 0  # 0: chosen so that every core gets work


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises ConfigError for an unknown name or a wrong value, and FilterError."""
    if {name.lower() for name in given} >= _OF_A_TABLE:
        # Spark 4.3 would create the table, and then plan each query on it without its options
        raise ConfigError(
            "a table of Spark's catalog does not keep the options of this source",
            given.get("path") or given.get("endpoint"),
            "make a view: CREATE TEMPORARY VIEW NAME USING penstock OPTIONS (path 'STORE')",
        )
    names = {name.lower(): name for name in Options.__struct_encode_fields__}
    unknown = sorted(name for name in given if name.lower() not in names)
    if unknown:
        raise ConfigError(
            "the data source has no such option",
            ", ".join(unknown),
            did_you_mean(unknown[0], names.values()),
        )
    renamed = {names[name.lower()]: value for name, value in given.items()}
    if "mode" in renamed:
        renamed["mode"] = renamed["mode"].strip().upper()
    try:
        options = msgspec.convert(renamed, Options, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "the value of an option cannot be read",
            error,
            'numbers are written as in .option("splitBytes", 67108864), failOnDataLoss is true or '
            f"false, mode is one of {', '.join(Mode.__members__)}",
        ) from error
    _check(options)
    return options


def _check(options: Options) -> None:
    if not options.path and not options.endpoint:
        raise ConfigError(
            "no store directory is named, and no broker",
            None,
            'name one: .option("path", "/var/lib/store"), or .option("endpoint", "tcp://HOST:PORT")'
            ". A table of Spark's catalog loses what it was made with: use CREATE TEMPORARY VIEW",
        )
    if options.endpoint:
        # see views.open_view
        from penstock.client.connecting.where import Where

        Where(None, options.endpoint, None)
    _at_most_one(options, ("path", "endpoint"))
    _names_some("subscribe", options.subscribe)
    _names_some("columns", options.columns)
    _at_most_one(options, ("subscribe", "subscribe_pattern", "assign"))
    _at_most_one(options, ("starting_timestamp", "starting_offsets_by_timestamp"))
    _at_most_one(options, ("ending_timestamp", "ending_offsets_by_timestamp"))
    _at_most_one(options, ("tags", "sql"))
    limits = [name for name in Options.__struct_fields__ if name.startswith(("min_", "max_"))]
    below = {
        name: value
        for name in (*limits, "split_bytes")
        if isinstance(value := getattr(options, name), int) and value < 0
    }
    if below:
        raise ConfigError("a limit is below 0", _named(below), "0 is no limit")
    duration_ms("maxTriggerDelay", options.max_trigger_delay)
    try:
        re.compile(options.subscribe_pattern)
    except re.error as error:
        raise ConfigError(
            "subscribePattern is no regular expression",
            f"{options.subscribe_pattern}: {error}",
            'as in .option("subscribePattern", "orders-.*")',
        ) from error
    # checked here, so that a wrong filter fails the query before any task starts
    parse_filter(SQL92 if options.sql else TAG, options.sql or options.tags)


def duration_ms(option: str, text: str) -> int:
    """A duration such as 500ms, 10s, 15m or 1h, in ms. Raises ConfigError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{option} is no duration", text, "write it like 500ms, 10s, 15m or 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def _names_some(option: str, text: str) -> None:
    # otherwise an empty list that a program has joined would mean all
    if text and not listed(text):
        raise ConfigError(f"{option} names nothing", repr(text), "leave it out for all there are")


def _at_most_one(options: Options, names: Collection[str]) -> None:
    given = {name: value for name in names if (value := getattr(options, name))}
    if len(given) > 1:
        raise ConfigError("two options say the same thing", _named(given), "leave one of them out")


def _named(values: Mapping[str, object]) -> str:
    """Fields with their values, under the names that users know."""
    wire = dict(zip(Options.__struct_fields__, Options.__struct_encode_fields__, strict=True))
    return ", ".join(f"{wire[name]} {value}" for name, value in values.items())
