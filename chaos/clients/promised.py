"""A program that writes down what it is promised, until it is killed.

    python -m penstock.chaos.clients.promised STORE RECORDING NOTES

It ends transactions, copies a topic exactly once, and reads that topic in a group of its own that
acknowledges. A line of NOTES says what has happened, and how many flushes of the RECORDING had
succeeded by then. It is written with one call, so a kill leaves whole lines:

    half KEY FLUSHES            the half message is acknowledged
    decided KEY OUTCOME         the local transaction has ended; the broker was not told yet
    ended KEY FLUSHES           the broker has answered to the outcome
    block QUEUE END FLUSHES     a block of all inputs below END is stored
    ack QUEUE END FLUSHES       the group's member is about to acknowledge the message before END

A successor reads the lines: it is asked about transactions that its predecessors have begun.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from penstock.chaos.clients.copier import FROM, GROUP, MOST, outputs_of
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.client.sending.transaction_loop import Decision
from penstock.shared.errors import PenstockError

SOLD, SELLERS, READERS = "sold", "sellers", "readers"
QUEUES, THREADS = 2, 3
# Percentages of the transactions.
ROLLED_BACK, SILENT = 30, 10
_WAIT_MS = 60_000


class Notes:
    """The lines, of this program and of those before it."""

    def __init__(self, file: Path, flushes: Callable[[], int]) -> None:
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self.flushes = flushes
        lines = (line.split() for line in file.read_text().splitlines())
        self.decided = {words[1]: words[2] for words in lines if words[0] == "decided"}

    def note(self, *words: object) -> None:
        """Write a line; a later kill does not remove it."""
        os.write(self._handle, (" ".join(map(str, words)) + "\n").encode())

    def decide(self, key: str, outcome: Decision) -> Decision:
        """Decide how the local transaction of this key ended, unless that was decided before."""
        with self._lock:
            if key not in self.decided:
                self.decided[key] = outcome
                self.note("decided", key, outcome)
            return "commit" if self.decided[key] == "commit" else "rollback"


def recorded_flushes(recording: Path) -> Callable[[], int]:
    """Counts the flushes that have succeeded."""
    with (recording / "clock").open("rb") as file:
        clock = mmap.mmap(file.fileno(), 16, prot=mmap.PROT_READ)
    words = memoryview(clock).cast("Q")
    return lambda: words[0]


def sell(
    producer: Producer, notes: Notes, keys: Iterator[str], dice: random.Random
) -> Iterator[None]:
    """Transactions, one after the other, each with a key of its own."""
    for key in keys:
        chance = dice.randrange(100)
        transaction = producer.begin(SOLD)
        transaction.send(key.encode())
        notes.note("half", key, notes.flushes())
        if chance >= SILENT:
            wanted: Decision = "rollback" if chance < SILENT + ROLLED_BACK else "commit"
            if notes.decide(key, wanted) == "commit":
                transaction.commit()
            else:
                transaction.rollback()
            notes.note("ended", key, notes.flushes())
        yield


def copy(consumer: GroupConsumer, notes: Notes, dice: random.Random) -> Iterator[None]:
    """Blocks, one after the other."""
    while True:
        batch = consumer.poll(0.2, most=dice.randint(1, MOST))
        with consumer.exactly_once() as out:
            for message in batch:
                for topic, body in outputs_of(bytes(message.body)):
                    out.send(topic, body)
        if batch and out.stored:
            end = batch[-1].queue_offset + 1
            notes.note("block", batch[-1].queue_id, end, notes.flushes())
        yield


def read(consumer: GroupConsumer, notes: Notes) -> Iterator[None]:
    """Messages, one after the other."""
    for message in consumer:
        # first: its commit comes later
        notes.note("ack", message.queue_id, message.queue_offset + 1, notes.flushes())
        message.ack()
        yield


def feed(producer: Producer) -> Iterator[None]:
    """Inputs, numbered from the present time: an earlier program's have other numbers."""
    for number in itertools.count(time.time_ns() // 1_000_000 * 1000):
        producer.send(FROM, b"%d" % number)
        time.sleep(0.003)
        yield


def for_ever(make: Callable[[], Iterator[None]]) -> None:
    """Do it, and begin again if the broker was away for too long."""
    while True:
        try:
            for _ in make():
                pass
        except PenstockError as error:
            print(error, file=sys.stderr, flush=True)


def main(store: str, recording: str, file: str) -> None:
    notes = Notes(Path(file), recorded_flushes(Path(recording)))
    seed = time.time_ns()
    there: dict[str, Any] = {"store": store, "wait_for_broker_ms": _WAIT_MS}

    def on_check(message: Any) -> Decision:
        return notes.decide(bytes(message.body).decode(), "rollback")

    seller = Producer(**there, group=SELLERS, on_check=on_check, timeout_ms=_WAIT_MS)
    copier = GroupConsumer(**there, group=GROUP, topics=FROM, start="first")
    reader = GroupConsumer(**there, group=READERS, topics=FROM, start="first", commit_ms=20)
    feeder = Producer(**there, timeout_ms=_WAIT_MS)
    works: list[Callable[[], Iterator[None]]] = [
        lambda: copy(copier, notes, random.Random(seed)),
        lambda: read(reader, notes),
        lambda: feed(feeder),
    ]
    for number in range(THREADS):
        # outside of the loop that begins again, so that no key is used twice
        keys = map(f"{seed}.{number}-{{}}".format, itertools.count())
        works.append(partial(sell, seller, notes, keys, random.Random(seed + number)))
    threads = [threading.Thread(target=for_ever, args=(each,), daemon=True) for each in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
