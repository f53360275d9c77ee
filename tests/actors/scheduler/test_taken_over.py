"""Whether another broker has delivered a message already, by what the store has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.scheduler.taken_over import Deliveries
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.messaging.delivered import Copy, taken_apart

PRECISION_MS = 1000


class Store:
    """One with two deliveries of a message, its first and its third try, and what it has of it."""

    def __init__(self, scene: Callable[..., Any]) -> None:
        self._it = scene()
        # the index has whole seconds since its first message, which the two are 0.9 s after
        self._it.put(self._record("orders", UNIQ_KEY="FIRST"))
        self._it.broker.clock.advance(900)
        self._it.put(self._record("orders", times=1), self._record("orders", times=3))
        self._it.until(lambda: len(self._it.queue()) == 3, "all")
        positions = self._it.broker.positions
        self._it.until(lambda: positions["dispatched"] == positions["wrote"], "the index")
        self.stored_ms = self._it.queue()[1].store_timestamp_ms

    @staticmethod
    def _record(topic: str, times: int = 1, body: bytes = b"body", **own: str) -> Record:
        properties = encode_properties({"UNIQ_KEY": "K"} | own)
        return Record(topic, body, properties, 1, reconsume_times=times, born_host=bytes(8))

    def has(
        self, after_ms: int = 0, until_ms: int = 1 << 60, topic: bytes = b"orders", **other: Any
    ) -> bool:
        """Whether a message that was due this long after the two were stored is there."""
        waiting = taken_apart(memoryview(encode_record(self._record("waits", **other))))
        log = self._it.actor._queues.log
        deliveries = Deliveries(self._it.broker.config, self._it.broker.positions, log, until_ms)
        try:
            return deliveries.has(waiting, Copy(topic, 1, b""), self.stored_ms + after_ms)
        finally:
            deliveries.close()

    def expire(self) -> None:
        positions = self._it.broker.positions
        positions.initialise("log_start", positions["wrote"])


@pytest.fixture
def store(scene: Callable[..., Any]) -> Store:
    return Store(scene)


def test_what_was_stored_when_a_message_was_due_or_just_before_it_is_its_copy(store: Store) -> None:
    assert store.has(-PRECISION_MS) and store.has(0)
    assert store.has(PRECISION_MS), "RocketMQ may be early by that"
    assert not store.has(PRECISION_MS + 1), "it is the copy of an earlier wait"


def test_a_copy_has_the_topic_the_key_the_try_and_the_body_of_its_message(store: Store) -> None:
    assert store.has(times=3)
    others: tuple[dict[str, Any], ...] = (
        {"times": 2},
        {"body": b"tody"},
        {"body": b"body and more"},
        {"topic": b"others"},
        {"UNIQ_KEY": "L"},
    )
    for other in others:
        assert not store.has(**other), other


def test_only_what_was_due_before_the_store_was_taken_over_is_asked_for(store: Store) -> None:
    assert store.has(until_ms=store.stored_ms)
    assert not store.has(until_ms=store.stored_ms - 1)
    assert not store.has(until_ms=-1)


def test_what_has_expired_is_no_copy_though_the_index_names_it(store: Store) -> None:
    store.expire()
    assert not store.has()
