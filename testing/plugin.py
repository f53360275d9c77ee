"""The pytest plugin: a durable broker for a test, on a directory of the test's own.

    def test_an_order_is_billed(producer, topic, consumer):
        producer.send(topic, b"order 1").result()
        assert [message.body for message in consumer.poll(10.0)] == [b"order 1"]

    penstock            the broker: penstock.testing.Broker
    penstock_settings   override it to have other settings: a dictionary of configuration keys
    topic               the name of a topic of that broker, with four queues
    producer, consumer  of that broker; the consumer reads that topic from its beginning
    kill_actor          kills an actor by name, and returns when its successor works

Each test has its own broker, under xdist too; each worker has one process that starts them. A
broker ends with its test, or with pytest if that is killed, and its files and memory are removed.
The report of a failed test contains its broker's log.

Nothing of Penstock is imported before a test asks for a fixture: pytest loads plugins in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.client import Consumer, Producer
    from penstock.testing import Broker

QUEUES = 4
_LOG = pytest.StashKey[IO[bytes]]()


@pytest.fixture
def penstock_settings() -> dict[str, str | int | bool]:
    """Keys of `penstock config show` that differ from those of small files. Override it."""
    return {}


@pytest.fixture
def penstock(
    request: pytest.FixtureRequest, penstock_settings: dict[str, str | int | bool]
) -> Iterator[Broker]:
    """A broker on a store of this test's own; `penstock.connect()` finds this one."""
    from penstock import using
    from penstock.testing import SMALL_FILES, Broker

    with TemporaryFile() as log:
        request.node.stash[_LOG] = log
        settings = {**SMALL_FILES, **penstock_settings}
        with Broker(settings=settings, log=log) as broker, using(store=broker.store):
            yield broker


@pytest.fixture
def topic(penstock: Broker) -> str:
    """A topic of the broker."""
    name = "orders"
    with penstock.producer() as producer:
        producer.create_topic(name, QUEUES)
    return name


@pytest.fixture
def producer(penstock: Broker) -> Producer:
    """A producer of the broker."""
    return penstock.producer()


@pytest.fixture
def consumer(penstock: Broker, topic: str) -> Consumer:
    """A consumer of the topic, from its beginning."""
    return penstock.consumer(topic)


@pytest.fixture
def kill_actor(penstock: Broker) -> Callable[[str], None]:
    """Kill an actor, like a crash, and wait until its successor works."""
    return penstock.kill_actor


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's log to the report of a failed test."""
    report = yield
    log = item.stash.get(_LOG, None)
    if report.failed and log is not None and not log.closed:
        log.seek(0)
        report.sections.append(("Penstock broker", log.read().decode(errors="replace")))
    return report
