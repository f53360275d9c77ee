"""What a group of consumers does on either broker, as the tests of groups need it."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.shared.layout import StorePaths
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.store.rocketmq_json import load_document

TOPIC, QUEUES, GROUP = "orders", 4, "billing"
IDLE_MS = 60_000  # longer than the longest delay: who waits for what is due is not idle
WAIT_S = 60


class Sides:
    """The official clients and Penstock's, for one store. A message's body is its number."""

    topic, queues, group = TOPIC, QUEUES, GROUP

    def __init__(self, place: Any, client: Any) -> None:
        self._place, self._client = place, client

    def send_theirs(self, numbers: Iterable[int], topic: str = TOPIC, **more: Any) -> None:
        """By the official producer; `more` is what its orders may have besides."""
        wanted, receipts = self._place.file("wanted.jsonl"), self._place.file("receipts.jsonl")
        lines = [
            {"topic": topic, "queue": n % QUEUES, "body": b64encode(b"%d" % n).decode()} | more
            for n in numbers
        ]
        wanted.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sent = self._client.ask("send", messages=wanted, receipts=receipts)
        assert sent == {"acknowledged": len(lines)}

    def send_ours(self, numbers: Iterable[int], **more: Any) -> None:
        """By Penstock's producer; `more` are arguments of its `send`."""
        with Producer(store=self._place.store) as producer:
            for number in numbers:
                producer.send(TOPIC, b"%d" % number, queue=number % QUEUES, **more)
            producer.flush(WAIT_S)

    def consume_theirs(self, until: int, **order: Any) -> list[dict[str, Any]]:
        """What the official consumer's handler was called with."""
        out = self._place.file("consumed.jsonl")
        usual = {"group": GROUP, "topics": {TOPIC: "*"}, "idle_ms": IDLE_MS, "level": 1}
        self._client.ask("consume", until=until, out=out, **usual | order)
        return [json.loads(line) for line in out.read_text().splitlines()]

    def consume_ours(
        self, count: int, judge: Callable[[Any], None] = lambda message: message.ack()
    ) -> list[dict[str, Any]]:
        """The next messages of the group, each given to `judge`."""
        found: list[dict[str, Any]] = []
        with GroupConsumer(
            store=self._place.store, group=GROUP, topics=TOPIC, start="first"
        ) as consumer:
            until = time.monotonic() + WAIT_S
            while len(found) < count:
                assert time.monotonic() < until, f"{len(found)} of {count} came"
                for message in consumer.poll(0.5, count - len(found)):
                    found.append(
                        {
                            "topic": message.topic,
                            "queue": message.queue_id,
                            "offset": message.queue_offset,
                            "body": message.body.decode(),
                            "times": message.reconsume_times,
                        }
                    )
                    judge(message)
        return found

    def committed(self) -> dict[tuple[str, int], int]:
        """(topic, queue) -> offset of the group, as config/consumerOffset.json has it."""
        file = StorePaths(self._place.store).consumer_offsets
        rows = load_document(file, ConsumerOffsets).rows()
        return {(topic, queue): offset for group, topic, queue, offset in rows if group == GROUP}

    def left(self, count: int) -> list[tuple[int, int]]:
        """The (queue, offset) of `count` messages in all that the group has not done, by its
        file."""
        offsets = self.committed()
        return [
            (queue, offset)
            for queue in range(QUEUES)
            for offset in range(offsets.get((TOPIC, queue), 0), count // QUEUES)
        ]


@pytest.fixture
def sides(place: Any, client: Any) -> Sides:
    return Sides(place, client)
