"""The options of the sink. Spark ignores case in their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.connecting.where import Where
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import ConfigError, InvalidArgument
from penstock.shared.messaging.ledger import group_of
from penstock.shared.names import MAX_GROUP_CHARACTERS, check_group, check_topic
from penstock.shared.next_steps import did_you_mean
from penstock.shared.wire.introduction import Serves

# Spark's own options, which it passes along with a writer's
_SPARKS = frozenset({"checkpointlocation", "queryname"})


class SinkOptions(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The options. Exactly one of `endpoint` and `path` is given."""

    endpoint: str = ""  # the broker's, for producers: tcp://HOST:PORT
    path: str = ""  # the directory of a store whose broker runs on this machine
    topic: str = ""  # for all rows; without it the column topic has each row's own
    write_id: str = ""  # rows of a batch are stored once under this name, however often written
    batch_id: int | None = None  # with it, once for each of these numbers, which must grow
    timeout_ms: int = 30_000  # how long a broker may be away

    @property
    def where(self) -> Where:
        return Where(None, self.endpoint or None, self.path or None)

    def producer(self) -> BlockProducer:
        """A connected producer. Raises ConnectError."""
        return BlockProducer(**self.arguments("producers"))

    def arguments(self, serves: Serves) -> dict[str, Any]:
        """The arguments of a client. It waits for the broker, because each task and each commit
        makes a new client, which may meet a broker that is being restarted."""
        # if the directory does not exist, the path is wrong and no broker will come
        wait_ms = self.timeout_ms if not self.path or Path(self.path).is_dir() else 0
        return {
            "timeout_ms": self.timeout_ms,
            "wait_for_broker_ms": wait_ms,
            **self.where.arguments(serves, wait_ms),
        }


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises ConfigError or InvalidArgument for an invalid name or value."""
    names = {name.lower(): name for name in SinkOptions.__struct_encode_fields__}
    given = {name: value for name, value in given.items() if name.lower() not in _SPARKS}
    unknown = sorted(name for name in given if name.lower() not in names)
    if unknown:
        raise ConfigError(
            "the sink has no such option",
            ", ".join(unknown),
            did_you_mean(unknown[0], names.values()),
        )
    renamed = {names[name.lower()]: value for name, value in given.items()}
    try:
        options = msgspec.convert(renamed, SinkOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "the value of an option cannot be read",
            error,
            'numbers are written as in .option("timeoutMs", 30000)',
        ) from error
    if bool(options.endpoint) == bool(options.path):
        raise ConfigError(
            "both a broker's endpoint and a store are named"
            if options.path
            else "no broker is named",
            f"{options.endpoint} and {options.path}" if options.path else None,
            'name one: .option("endpoint", "tcp://127.0.0.1:20911"), or .option("path", "./store")',
        )
    if options.timeout_ms < 1:
        raise ConfigError("timeoutMs is less than 1", options.timeout_ms)
    if options.batch_id is not None and not (options.write_id and 0 <= options.batch_id < 1 << 62):
        raise ConfigError(
            "batchId is below 0, or too large" if options.write_id else "batchId has no writeId",
            options.batch_id,
            'they go together: .option("writeId", "alerts").option("batchId", batch_id)',
        )
    if options.topic:
        check_topic(options.topic)
    if options.write_id:
        _check_name(options.write_id)
    _ = options.where  # raises if the endpoint is invalid
    return options


def _check_name(write_id: str) -> None:
    """Check that the name can be a group's, because the broker keeps a writer's numbers as those of
    a group. Raises ConfigError."""
    try:
        check_group(group_of(write_id))
    except InvalidArgument as error:
        most = MAX_GROUP_CHARACTERS - len(group_of(""))
        raise ConfigError(
            "writeId cannot be a name",
            repr(write_id[:80]),
            f"use 1 to {most} ASCII letters, digits and % | - _",
        ) from error
