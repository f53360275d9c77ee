"""Sends what an export has written, or any file with such columns, through a producer.

Each message goes to its topic and queue, or where its sharding key leads, in the order of the file,
so that the order within a queue is kept. Offsets, store times and unique keys are new. Only the
column `body` is required.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client.sending.producer import Producer, SendFuture
from penstock.dataframes.digest import Digest
from penstock.dataframes.reading import read_file
from penstock.shared.errors import ConfigError
from penstock.shared.formats.properties import KEYS, RESERVED, SHARDING_KEY, TAGS

# How many sends may be without a checked outcome.
_IN_FLIGHT = 4096


class Imported(NamedTuple):
    """What was sent and acknowledged."""

    rows: int
    body_sha256: str  # Digest's


def import_file(
    path: Path,
    form: str,
    producer: Producer,
    topic: str = "",
    progress: Callable[[int, int], None] = lambda rows, of: None,
) -> Imported:
    """Send every row, to `topic` if one is given, else to its own. All are acknowledged on return.
    Topics that lack a queue get it first. `progress` gets the rows sent, and how many there are.

    The file is read twice, so that nothing is sent if one row cannot be. After any other error, or
    a crash, some rows are stored, and a second import sends all of them again. Raises ConfigError,
    and what a send raises.
    """
    of, queues_needed = _look_through(path, form, topic)
    for name, queues in queues_needed.items():
        if producer.topics().get(name, 0) < queues:
            producer.create_topic(name, queues)
    digest, rows = Digest(), 0
    waiting: deque[SendFuture] = deque()
    for batch in read_file(path, form):
        digest.add(batch)
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            waiting.append(_send(producer, topic, row))
            if len(waiting) > _IN_FLIGHT:
                waiting.popleft().result()
        rows += batch.num_rows
        progress(rows, of)
    while waiting:
        waiting.popleft().result()
    return Imported(rows, digest.hexdigest())


def _send(producer: Producer, topic: str, row: dict[str, Any]) -> SendFuture:
    given = (row["properties"] or {}).items()
    properties = {name: text for name, text in given if text is not None}
    shard = properties.get(SHARDING_KEY)
    return producer.send(
        topic or row["topic"],
        row["body"] or b"",
        tags=properties.get(TAGS),
        keys=properties[KEYS].split(" ") if KEYS in properties else None,
        shard=shard,
        # a sharding key chooses the queue, so that later messages with that key go there too
        queue=None if shard is not None else row["queue_id"],
        properties={name: text for name, text in properties.items() if name not in RESERVED},
    )


def _look_through(path: Path, form: str, topic: str) -> tuple[int, dict[str, int]]:
    """How many rows there are, and how many queues each topic needs for them.

    Raises ConfigError for a row that cannot be sent.
    """
    rows, needed = 0, dict[str, int]()
    for batch in read_file(path, form):
        for place in _places(batch):
            name, queue_id = topic or place["topic"], place["queue_id"]
            if not name:
                raise ConfigError("a row has no topic", path, "name one: --topic NAME")
            if queue_id is None:  # the producer chooses
                continue
            if queue_id < 0:
                raise ConfigError("a row has no such queue_id", f"{path}: {queue_id}", "0 or more")
            needed[name] = max(needed.get(name, 0), queue_id + 1)
        rows += batch.num_rows
    return rows, needed


def _places(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each distinct pair of topic and queue."""
    table = pa.Table.from_batches([batch]).group_by(["topic", "queue_id"]).aggregate([])
    found: list[dict[str, Any]] = table.to_pylist()
    return found
