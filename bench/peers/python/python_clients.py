"""Python clients of other brokers, each used as its documentation says is fast.

`pip install 'penstock[peers]'` brings them. A client is imported when it is made, because most
measurements need none. The clients here block the loop that awaits them, which is theirs alone;
those made for asyncio are in `python_streams.py`.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from penstock.bench.peers.python.python_rocketmq import RocketMQWheel
from penstock.bench.peers.python.python_streams import NatsPy, RStream
from penstock.shared.errors import MissingDependency, StoreUnavailable

READ_AT_ONCE = 1000
# For Kafka: the bytes that make a request, and how long a smaller one waits for more.
BATCH_BYTES, LINGER_MS = 256 << 10, 5


class Client(Protocol):
    """One connection of one client."""

    async def send(self, bodies: list[bytes]) -> None:
        """Send these; if there are several, they are due at the same time."""
        ...

    async def settle(self) -> None:
        """Return when everything that was sent is acknowledged. Raises if a message is not."""
        ...

    async def start(self) -> None:
        """Begin to read at the beginning of the topic."""
        ...

    async def read(self, timeout_s: float) -> list[bytes]:
        """The next bodies; none if the time is over."""
        ...


class RedisStreams:
    """redis-py with hiredis: messages due together go in one pipeline, and XREAD reads."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        host, _, port = endpoint.rpartition(":")
        self._redis: Any = import_module("redis").Redis(host=host, port=int(port))
        self._topic, self._last = topic, b"0"

    async def send(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            self._redis.xadd(self._topic, {"b": bodies[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._topic, {"b": body})
        pipeline.execute()

    async def settle(self) -> None:
        """Nothing to wait for: each `send` has read its answer."""

    async def start(self) -> None:
        self._last = b"0"

    async def read(self, timeout_s: float) -> list[bytes]:
        block_ms = round(timeout_s * 1000)
        found = self._redis.xread({self._topic: self._last}, count=READ_AT_ONCE, block=block_ms)
        if not found:
            return []
        streams = found.values() if isinstance(found, dict) else (each[1] for each in found)
        entries = next(iter(streams))
        entries = entries[0] if isinstance(found, dict) else entries
        self._last = entries[-1][0]
        return [fields[b"b"] for _, fields in entries]


class ConfluentKafka:
    """confluent-kafka, on librdkafka: `produce` for each message, a delivery report for each, and
    `consume` of many at once. A message that comes alone does not linger."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        self._kafka: Any = import_module("confluent_kafka")
        self._endpoint, self._topic, self._in_flight = endpoint, topic, in_flight
        self._failed: list[object] = []
        self._unanswered = 0
        self._producer: Any = None
        self._consumer: Any = None

    def _connected(self) -> Any:
        if self._producer is None:
            settings = {
                "bootstrap.servers": self._endpoint,
                "acks": "all",
                "linger.ms": LINGER_MS if self._in_flight > 1 else 0,
                "batch.size": BATCH_BYTES,
            }
            self._producer = self._kafka.Producer(settings)
        return self._producer

    def _delivered(self, error: object, message: object) -> None:
        self._unanswered -= 1
        if error is not None:
            self._failed.append(error)

    async def send(self, bodies: list[bytes]) -> None:
        producer = self._connected()
        for body in bodies:
            producer.produce(self._topic, body, on_delivery=self._delivered)
        self._unanswered += len(bodies)
        producer.poll(0)
        while self._unanswered > self._in_flight:
            producer.poll(0.01)

    async def settle(self) -> None:
        self._connected().flush()
        if self._failed or self._unanswered:
            raise StoreUnavailable("messages were not taken", self._failed[:1] or self._unanswered)

    async def start(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        settings = {
            "bootstrap.servers": self._endpoint,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._consumer = self._kafka.Consumer(settings)
        known = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        if not known:
            raise StoreUnavailable("Kafka does not know the topic", self._topic)
        parts = [self._kafka.TopicPartition(self._topic, number, 0) for number in known]
        self._consumer.assign(parts)

    async def read(self, timeout_s: float) -> list[bytes]:
        found = self._consumer.consume(1, timeout_s)
        found += self._consumer.consume(READ_AT_ONCE, 0)
        return [message.value() for message in found if message.error() is None]


class KafkaPython:
    """kafka-python, which is all Python."""

    def __init__(self, endpoint: str, topic: str, in_flight: int) -> None:
        self._kafka: Any = import_module("kafka")
        self._endpoint, self._topic, self._in_flight = endpoint, topic, in_flight
        self._waiting: deque[Any] = deque()
        self._producer: Any = None
        self._consumer: Any = None

    async def send(self, bodies: list[bytes]) -> None:
        if self._producer is None:
            self._producer = self._kafka.KafkaProducer(
                bootstrap_servers=self._endpoint,
                acks="all",
                linger_ms=LINGER_MS if self._in_flight > 1 else 0,
                batch_size=BATCH_BYTES,
            )
        self._waiting.extend(self._producer.send(self._topic, body) for body in bodies)
        while len(self._waiting) > self._in_flight:
            self._waiting.popleft().get(60)

    async def settle(self) -> None:
        while self._waiting:
            self._waiting.popleft().get(60)

    async def start(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._kafka.KafkaConsumer(
            bootstrap_servers=self._endpoint, enable_auto_commit=False
        )
        known = self._consumer.partitions_for_topic(self._topic) or ()
        self._consumer.assign([self._kafka.TopicPartition(self._topic, each) for each in known])
        self._consumer.seek_to_beginning()

    async def read(self, timeout_s: float) -> list[bytes]:
        found = self._consumer.poll(timeout_ms=round(timeout_s * 1000), max_records=READ_AT_ONCE)
        return [record.value for records in found.values() for record in records]


CLIENTS: dict[str, Callable[[str, str, int], Client]] = {
    "redis": RedisStreams,
    "confluent-kafka": ConfluentKafka,
    "kafka-python": KafkaPython,
    "nats-py": NatsPy,
    "rstream": RStream,
    "rocketmq": RocketMQWheel,
}
_MODULES = {
    "redis": "redis",
    "confluent-kafka": "confluent_kafka",
    "kafka-python": "kafka",
    "nats-py": "nats",
    "rstream": "rstream",
    "rocketmq": "rocketmq",
}


def require(client: str) -> None:
    """Raises MissingDependency if a client is not installed."""
    if importlib.util.find_spec(_MODULES[client]) is None:
        raise MissingDependency(f"{client} is not installed", None, "pip install 'penstock[peers]'")
