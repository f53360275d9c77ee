"""A topic grows and shrinks while producers and a group use it, and nothing is lost or hidden."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client import GroupConsumer, Producer
from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.local_offsets import HOME_VARIABLE
from penstock.client.topic_scaling import TopicScaling
from penstock.errors import BrokerTimeout, StoreUnavailable

TOPIC, GROUP = "elastic", "workers"
WAIT_S = 60


class Load:
    """A producer that sends until it is told to stop, and a member that handles what comes."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._stopping, self._sent_all = threading.Event(), threading.Event()
        self.sent: set[bytes] = set()
        self.seen: list[bytes] = []
        self.failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(each,))
            for each in (self._send, self._handle)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # the test says so
            self.failed.append(error)

    def _send(self) -> None:
        number = 0
        while not self._stopping.is_set():
            # a producer of its own: it knows the topic as it is now
            with Producer(self._broker.produce) as producer:
                for _ in range(5):
                    bodies = [b"%d" % (number + each) for each in range(20)]
                    for future in [producer.send(TOPIC, body) for body in bodies]:
                        future.result(WAIT_S)
                    self.sent |= set(bodies)
                    number += len(bodies)
        self._sent_all.set()

    def _handle(self) -> None:
        with GroupConsumer(
            store=self._broker.store, group=GROUP, topics=TOPIC, start="first"
        ) as consumer:
            until = time.monotonic() + WAIT_S
            while not (self._sent_all.is_set() and self.sent <= set(self.seen)):
                assert time.monotonic() < until, f"{len(self.sent - set(self.seen))} are missing"
                for message in consumer.poll(0.1):
                    self.seen.append(bytes(message.body))
                consumer.commit()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert self.failed == []


def scaling(broker: Any, producer: Producer, wanted: int, **options: Any) -> Any:
    with GroupAdmin(store=broker.store) as admin:
        return TopicScaling(producer, admin, TOPIC, wanted, settle_s=0.5, **options).run()


def test_a_topic_grows_and_shrinks_under_load_and_nothing_is_lost(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, 4)
        load = Load(broker)
        try:
            for wanted in (6, 2, 4):
                said = scaling(broker, producer, wanted, timeout_s=WAIT_S)
                assert (said.read_queues, said.write_queues) == (wanted, wanted)
        finally:
            load.stop()
    assert load.sent and load.sent == set(load.seen)
    assert len(load.seen) == len(set(load.seen)), "and nobody has had one twice"


def test_queues_stay_readable_while_a_group_has_not_read_them(broker: Any) -> None:
    topic = "unread"
    with Producer(broker.produce) as producer, GroupAdmin(store=broker.store) as admin:
        producer.create_topic(topic, 2)
        producer.send(topic, b"x", queue=1).result(WAIT_S)
        with pytest.raises(StoreUnavailable, match="no group reads the topic"):
            TopicScaling(producer, admin, topic, 1, settle_s=0).run()
        with GroupConsumer(store=broker.store, group="slow", topics=topic, start="first") as slow:
            found: list[Any] = []
            while not found:
                found = slow.poll(1)
            # it has been given the message, and has not said that it is done
            with pytest.raises(BrokerTimeout, match="group slow"):
                TopicScaling(producer, admin, topic, 1, settle_s=0, timeout_s=0.3).run()
            assert producer.describe_topic(topic).read_queues == 2
            slow.commit()
            said = TopicScaling(producer, admin, topic, 1, settle_s=0, timeout_s=WAIT_S).run()
            assert (said.read_queues, said.write_queues) == (1, 1)


def test_nobody_waits_for_a_group_whose_members_keep_their_places_themselves(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    topic, said = "heard-by-all", list[str]()
    with (
        Producer(broker.produce) as producer,
        GroupAdmin(store=broker.store) as admin,
        GroupConsumer(
            store=broker.store, group="all", topics=topic, start="first", broadcasting=True
        ) as everyone,
    ):
        producer.create_topic(topic, 1)
        assert not everyone.poll(0.1)  # it is a member by now, or soon

        def scale(wanted: int) -> Any:
            options: dict[str, Any] = {"timeout_s": WAIT_S, "report": said.append}
            return TopicScaling(producer, admin, topic, wanted, settle_s=0, **options).run()

        until = time.monotonic() + WAIT_S
        while not admin.describe("all").members:
            assert time.monotonic() < until
        assert scale(2).write_queues == 2
        assert not [line for line in said if "they have not" in line]
        with Producer(broker.produce) as later:  # it knows the topic as it is now
            later.send(topic, b"x", queue=1).result(WAIT_S)
        with pytest.raises(StoreUnavailable, match="only broadcasting groups read the topic"):
            scale(1)
        with GroupConsumer(
            store=broker.store, group="ordinary", topics=topic, start="first"
        ) as ordinary:
            assert ordinary.poll(WAIT_S)
            ordinary.commit()
            assert scale(1).read_queues == 1
    assert [line for line in said if "group all broadcasts" in line]
