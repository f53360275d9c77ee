"""Messages of a store together with the bytes of the log that each stands in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.chaos.history import Sent, digest
from penstock.chaos.load import TOPIC
from penstock.shared.store.directory import StoreDirectory


class Placed(NamedTuple):
    """A message of the original store, and the log bytes it stands in."""

    sent: Sent
    position: int
    end: int


def read_placed(root: Path) -> list[Placed]:
    """Every message of the load that a whole store holds."""
    found = []
    with StoreDirectory(root) as store:
        for queue in store.queues():
            if queue.topic == TOPIC:
                entries = queue.entries(queue.min_offset, queue.max_offset)
                for number, entry in enumerate(entries, queue.min_offset):
                    at, size = int(entry["offset"]), int(entry["size"])
                    sent = Sent(queue.queue_id, number, digest(bytes(store.record_at(at).body)), 0)
                    found.append(Placed(sent, at, at + size))
    return found
