"""What clients were told, and whether a store agrees: nothing is lost, doubled, disordered or
altered.

A message of the load has in its body its sender, its queue, and a number that grows with each of
the sender's messages to that queue: "<sender>/<queue>/<number>/<filler>". What a sender was told,
and what a reader saw, is stamped with the number of flushes that had succeeded by then, 0 if nobody
counts them.

A violation is a sentence; an empty list of them is a pass.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from penstock.shared.formats.record import decode_record
from penstock.shared.store.directory import StoreDirectory

SHOWN = 3
_LOST = re.compile(r"\b(\d+) messages lost,")
_TWICE = re.compile(r"\b(\d+) messages twice:")


class Sent(NamedTuple):
    """An acknowledged message, or one that a consumer has seen."""

    queue_id: int
    queue_offset: int
    digest: bytes
    flushes: int


# queue -> bodies, by queue offset
Stored = dict[int, list[bytes]]


def digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def read_stored(root: str, topic: str) -> tuple[Stored, list[str]]:
    """The bodies of a topic's messages, by its consume queues, and what is wrong."""
    stored: Stored = {}
    wrong: list[str] = []
    with StoreDirectory(root) as store:
        for queue in store.queues():
            if queue.topic != topic:
                continue
            bodies = stored.setdefault(queue.queue_id, [])
            if queue.min_offset:
                wrong.append(f"queue {queue.queue_id} begins at {queue.min_offset}")
            for entry in queue.entries(queue.min_offset, queue.max_offset):
                raw = store.read_log(int(entry["offset"]), int(entry["size"]))
                record = decode_record(raw)
                bodies.append(bytes(record.body))
                # no checksum covers them, and the load never sends zeros
                if b"\0" in record.properties:
                    wrong.append(f"queue {queue.queue_id}: properties are torn")
    return stored, wrong


def check_acknowledged(acked: Iterable[Sent], stored: Stored, whose: str) -> list[str]:
    """Check that each of these messages stands at its queue offset, with its bytes."""
    missing = []
    for each in acked:
        bodies = stored.get(each.queue_id, [])
        if each.queue_offset >= len(bodies):
            missing.append(f"queue {each.queue_id} offset {each.queue_offset} is not there")
        elif digest(bodies[each.queue_offset]) != each.digest:
            missing.append(f"queue {each.queue_id} offset {each.queue_offset} is another message")
    return [lost(len(missing), whose, missing)] if missing else []


def lost(count: int, whose: str, examples: list[str]) -> str:
    """The sentence for lost messages, from which `count_lost` reads the number."""
    return f"{count} messages lost, {whose}: {examples[:SHOWN]}"


def check_order(stored: Stored) -> list[str]:
    """Check that no message comes twice, and each sender's are in the order of their numbers."""
    wrong, twice = list[str](), list[str]()
    for queue, bodies in stored.items():
        newest: dict[bytes, int] = {}
        met: set[tuple[bytes, int]] = set()
        for offset, body in enumerate(bodies):
            parts = body.split(b"/", 3)
            if len(parts) != 4 or int(parts[1]) != queue:
                wrong.append(f"queue {queue} offset {offset}: no message of the load")
                continue
            number = int(parts[2])
            before = newest.get(parts[0], -1)
            if (parts[0], number) in met:
                twice.append(f"queue {queue} offset {offset}: {number} again")
            elif number < before:
                wrong.append(f"queue {queue} offset {offset}: {number} stands after {before}")
            newest[parts[0]] = max(number, before)
            met.add((parts[0], number))
    found = [f"{len(twice)} messages twice: {twice[:SHOWN]}"] if twice else []
    return found + ([f"{len(wrong)} messages out of order: {wrong[:SHOWN]}"] if wrong else [])


def count_lost(sentences: Iterable[str]) -> int:
    """How many messages are lost according to these violations."""
    return sum(int(found[1]) for each in sentences for found in _LOST.finditer(each))


def count_twice(sentences: Iterable[str]) -> int:
    return sum(int(found[1]) for each in sentences for found in _TWICE.finditer(each))
