"""A program that copies a topic with a change, exactly once, and that may die at any point.

    python -m penstock.chaos.clients.copier STORE SEED member|stranger

Members share the queues as a group does. A stranger reads all of them without a claim, like a
member that was taken for dead and does not know it: whatever it believes to be done, the broker's
word counts. Both run for ever, and wait for a broker that is away. `outputs_of` is what is made of
an input; the judge uses it, too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence

from penstock.client.core.blocks import Input, Queue
from penstock.client.core.message import Message
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.exactly_once import BlockOutputs, ExactlyOnce
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import BrokerTimeout, ConnectError, FlushTimeout, StoreUnavailable

FROM, TO = "copied", ("copies-even", "copies-odd")
GROUP = "copiers"
# the largest block
MOST = 20
# The number of blocks that may be under way when one ends.
AHEAD = (0, 1, 3)
_WAIT_MS = 60_000


def outputs_of(body: bytes) -> list[tuple[str, bytes]]:
    """Each input goes to one of two topics, and each third one to both."""
    number = int(body)
    made = [(TO[number % 2], b"%d=%d" % (number, number * number))]
    if not number % 3:
        made.append((TO[1 - number % 2], b"%d third" % number))
    return made


class Reading:
    """The inputs, through a plain consumer: it reads on from wherever it is told."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._at: dict[int, int] = {}
        self._consumer: Consumer | None = None
        self._waiting: list[Message] = []
        self._taken: list[Message] = []

    def take(self, most: int) -> list[Message]:
        """Up to `most` messages of one queue; none if none come soon."""
        if self._consumer is None:
            start = self._at or "earliest"
            self._consumer = Consumer(
                store=self._store, topic=FROM, start=start, wait_for_broker_ms=_WAIT_MS
            )
        if not self._waiting:
            self._waiting = self._consumer.poll(0.2)
        first = self._waiting[:1]
        taken = [each for each in self._waiting if each.queue_id == first[0].queue_id][:most]
        self._waiting = self._waiting if not taken else self._without(taken)
        self._taken += taken
        return taken

    def _without(self, taken: list[Message]) -> list[Message]:
        gone = {(each.queue_id, each.queue_offset) for each in taken}
        return [each for each in self._waiting if (each.queue_id, each.queue_offset) not in gone]

    def inputs(self) -> Mapping[Queue, Input]:
        found: dict[Queue, Input] = {}
        for each in self._taken:
            name = FROM, each.queue_id
            begin = self._at.get(each.queue_id, 0)
            found[name] = Input(begin, each.queue_offset + 1, 0)
        return found

    def on_way(self) -> list[Message]:
        taken, self._taken = self._taken, []
        for each in taken:
            self._at[each.queue_id] = each.queue_offset + 1
        return taken

    def done(self, parts: list[Message]) -> None:
        """Nothing to do: it already reads on from there."""

    def go_on(self, offsets: Mapping[Queue, int], parts: Sequence[list[Message]]) -> None:
        self._at |= {queue: offset for (_, queue), offset in offsets.items()}
        self._taken.clear()
        self._waiting.clear()
        self.close()

    def back(self) -> None:
        self.go_on({name: each.begin for name, each in self.inputs().items()}, [])

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def copy_alone(store: str, dice: random.Random) -> None:
    """Copy until the broker is gone."""
    reading = Reading(store)
    work = ExactlyOnce(
        GROUP, reading, lambda: BlockProducer(store=store, wait_for_broker_ms=_WAIT_MS)
    )
    try:
        while True:
            taken = reading.take(dice.randint(1, MOST))
            if taken:
                with BlockOutputs(work, dice.choice(AHEAD)) as out:
                    for message in taken:
                        for topic, body in outputs_of(bytes(message.body)):
                            out.send(topic, body)
    finally:
        reading.close()
        work.close()


def copy_as_member(store: str, dice: random.Random) -> None:
    """The same, sharing the queues with the group's other members."""
    with GroupConsumer(
        store=store,
        group=GROUP,
        topics=FROM,
        start="first",
        session_timeout_ms=2000,
        wait_for_broker_ms=_WAIT_MS,
    ) as consumer:
        while True:
            batch = consumer.poll(1.0, most=dice.randint(1, MOST))
            with consumer.exactly_once(dice.choice(AHEAD)) as out:
                for message in batch:
                    for topic, body in outputs_of(bytes(message.body)):
                        out.send(topic, body)


def main() -> None:
    store, seed, kind = sys.argv[1:]
    dice = random.Random(int(seed))
    copy = copy_as_member if kind == "member" else copy_alone
    while True:
        try:
            copy(store, dice)
        # after FlushTimeout the block is stored; when its inputs come again the next one notices
        except (BrokerTimeout, ConnectError, FlushTimeout, StoreUnavailable) as error:
            print(f"copier {seed}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
