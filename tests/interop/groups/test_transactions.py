"""Half messages that one broker has taken are ended by the other, once."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.dataframes import Store
from penstock.shared.errors import TopicNotFound
from penstock.shared.messaging.half import parse_op
from penstock.shared.messaging.system_topics import OP_TOPIC

pytestmark = pytest.mark.takes(60)

TOPIC, GROUP = "orders", "interop-transactions"
WAIT_S = 60
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
QUICK = {"transaction_check_interval_ms": 500, "transaction_time_out_ms": 500}
# what their producer says at once, and what whoever is asked later is to say
THEIRS = [
    *[(COMMIT, COMMIT)] * 10,
    *[(ROLLBACK, ROLLBACK)] * 10,
    *[(UNKNOWN, COMMIT)] * 5,
    *[(UNKNOWN, ROLLBACK)] * 5,
]
OURS = [COMMIT] * 5 + [ROLLBACK] * 5


def seen(place: Any) -> list[int]:
    with Consumer(store=place.store, topic=TOPIC, follow=False) as consumer:
        return sorted(int(message.body) for message in consumer)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.1)


def ended(place: Any) -> int:
    """How many half messages are said to be done, in the store's files."""
    with suppress(TopicNotFound):
        found = Store(place.store).to_arrow(OP_TOPIC, columns=["body"])["body"].to_pylist()
        return len({offset for body in found for offset in parse_op(body)})
    return 0


def test_open_transactions_are_ended_by_the_other_broker(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    record_property: Callable[[str, object], None],
) -> None:
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=1)
    halves, receipts = place.file("halves.jsonl"), place.file("receipts.jsonl")
    halves.write_text(
        "".join(
            json.dumps(
                {
                    "topic": TOPIC,
                    "body": b64encode(b"%d" % number).decode(),
                    "outcome": outcome,
                    "properties": {"check": check},
                }
            )
            + "\n"
            for number, (outcome, check) in enumerate(THEIRS)
        )
    )
    assert client.ask("transact", messages=halves, receipts=receipts) == len(THEIRS)
    client.ask("close")
    # It notes down what is ended every 3 s, and what is left of that when it stops is lost.
    told = sum(outcome != UNKNOWN for outcome, _ in THEIRS)
    wait_until(lambda: ended(place) == told)
    theirs.stop()

    ours = penstock(place, **QUICK)
    asked: list[int] = []

    def on_check(message: Any) -> Any:
        asked.append(int(message.body))
        return "commit" if message.properties["check"] == COMMIT else "rollback"

    committed = [n for n, (_, check) in enumerate(THEIRS) if check == COMMIT]
    rolled_back = [n for n, each in enumerate(THEIRS) if each == (UNKNOWN, ROLLBACK)]
    with Producer(store=place.store, group=GROUP, on_check=on_check) as producer:
        wait_until(lambda: set(asked) >= set(rolled_back) and seen(place) == committed)
        unknown = {n for n, (outcome, _) in enumerate(THEIRS) if outcome == UNKNOWN}
        assert set(asked) == unknown, "what was ended there is not asked for here"
    ours.stop()

    # with the usual times nobody asks before the other broker does
    ours = penstock(place)
    with Producer(store=place.store, group=GROUP) as producer:
        left = set()
        for number, check in enumerate(OURS, len(THEIRS)):
            half = producer.begin(TOPIC).send(b"%d" % number, properties={"check": check})
            left.add(half.unique_key)
    assert seen(place) == committed
    ours.stop()

    # It counts a check also where no producer is there to be asked, and gives up by that count. It
    # marks what is ended within 3 s: asked again before that, it would store a second message.
    theirs = rocketmq(
        place, transactionCheckInterval=8000, transactionTimeOut=1000, transactionCheckMax=10_000
    )
    client.open(place)
    asked_there = client.ask(
        "answer_checks", topic=TOPIC, until=len(OURS), timeout_ms=WAIT_S * 1000
    )
    assert set(asked_there) == left, "what was ended here is not asked for there"
    client.ask("close")
    theirs.stop()
    ours = penstock(place, **QUICK)
    committed += [n for n, check in enumerate(OURS, len(THEIRS)) if check == COMMIT]
    asked.clear()
    with Producer(store=place.store, group=GROUP, on_check=on_check):
        time.sleep(3)  # some rounds in which nothing is to happen
        assert seen(place) == committed and asked == []
    ours.stop()
    record_property("messages", len(THEIRS) + len(OURS))
