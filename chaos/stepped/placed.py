"""Messages of a store, each with the bytes of the log that hold it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.chaos.history import Sent, digest
from penstock.chaos.load import TOPIC
from penstock.shared.store.directory import StoreDirectory

Key = tuple[str, int, int]  # topic, queue, offset


class Placed(NamedTuple):
    """A message of the original store, and the log bytes that hold it."""

    topic: str
    sent: Sent
    position: int
    end: int

    @property
    def is_load(self) -> bool:
        return self.topic == TOPIC

    @property
    def key(self) -> Key:
        return self.topic, self.sent.queue_id, self.sent.queue_offset


def read_placed(root: Path) -> list[Placed]:
    """Every message that a whole store holds, including those that wait for their time."""
    found = []
    with StoreDirectory(root) as store:
        for queue in store.queues():
            entries = queue.entries(queue.min_offset, queue.max_offset)
            for number, entry in enumerate(entries, queue.min_offset):
                at, size = int(entry["offset"]), int(entry["size"])
                sent = Sent(queue.queue_id, number, digest(bytes(store.record_at(at).body)), 0)
                found.append(Placed(queue.topic, sent, at, at + size))
    return found
