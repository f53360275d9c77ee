"""Consumer groups that go from one broker to the other and back: offsets, retries, delays."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.groups.admin import GroupAdmin
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.shared.layout import StorePaths
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.store.rocketmq_json import load_document

pytestmark = pytest.mark.takes(250)
TOPIC, QUEUES, GROUP = "orders", 4, "billing"
MESSAGES = 800
IDLE_MS = 60_000  # longer than the longest delay: who waits for what is due is not idle
WAIT_S = 60
FAIL = "fail"


def send_theirs(client: Any, place: Any, numbers: Iterable[int], **properties: str) -> None:
    """Messages whose body is their number, by the official producer."""
    wanted, receipts = place.file("wanted.jsonl"), place.file("receipts.jsonl")
    lines = [
        {
            "topic": TOPIC,
            "queue": number % QUEUES,
            "body": b64encode(b"%d" % number).decode(),
            "properties": properties,
        }
        for number in numbers
    ]
    wanted.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sent = client.ask("send", messages=wanted, receipts=receipts)
    assert sent == {"acknowledged": len(lines)}


def send_ours(place: Any, numbers: Iterable[int], **properties: str) -> None:
    with Producer(store=place.store) as producer:
        for number in numbers:
            producer.send(
                TOPIC, b"%d" % number, queue=number % QUEUES, properties=properties or None
            )
        producer.flush(WAIT_S)


def consume_theirs(client: Any, place: Any, until: int, **order: Any) -> list[dict[str, Any]]:
    """What the official consumer's handler was called with."""
    out = place.file("consumed.jsonl")
    usual = {"group": GROUP, "topics": {TOPIC: "*"}, "idle_ms": IDLE_MS, "level": 1}
    client.ask("consume", until=until, out=out, **usual | order)
    return [json.loads(line) for line in out.read_text().splitlines()]


def consume_ours(
    place: Any, count: int, judge: Callable[[Any], None] = lambda message: message.ack()
) -> list[dict[str, Any]]:
    """The next messages of the group, each given to `judge`."""
    found = []
    with GroupConsumer(store=place.store, group=GROUP, topics=TOPIC, start="first") as consumer:
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


def committed(store: Path) -> dict[tuple[str, int], int]:
    """(topic, queue) -> offset of the group, as config/consumerOffset.json has it."""
    offsets = load_document(StorePaths(store).consumer_offsets, ConsumerOffsets)
    return {
        (topic, queue): offset for group, topic, queue, offset in offsets.rows() if group == GROUP
    }


def numbers_of(rows: Iterable[dict[str, Any]]) -> set[int]:
    return {int(row["body"]) for row in rows}


def places_of(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["queue"], row["offset"]) for row in rows)


def left_of(store: Path, count: int) -> list[tuple[int, int]]:
    """The (queue, offset) of `count` messages in all that the group has not done, by its file."""
    offsets = committed(store)
    return [
        (queue, offset)
        for queue in range(QUEUES)
        for offset in range(offsets.get((TOPIC, queue), 0), count // QUEUES)
    ]


def test_a_group_goes_on_at_its_offsets_on_the_other_broker(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    record_property: Callable[[str, object], None],
) -> None:
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    send_theirs(client, place, range(MESSAGES))
    first = consume_theirs(client, place, MESSAGES // 4)
    client.ask("close")
    theirs.stop()
    left = left_of(place.store, MESSAGES)
    done = set(left_of(place.store, 0)) | {
        (q, n) for q in range(QUEUES) for n in range(MESSAGES // QUEUES)
    }
    assert set(places_of(first)) >= done - set(left), "they have done what they committed"
    assert left, "the test wants something left"

    ours = penstock(place)
    send_ours(place, range(MESSAGES, 2 * MESSAGES))
    second = places_of(consume_ours(place, len(left) // 2))
    ours.stop()
    expected = left_of(place.store, 2 * MESSAGES)
    all_left = left + [
        (q, n) for q in range(QUEUES) for n in range(MESSAGES // QUEUES, 2 * MESSAGES // QUEUES)
    ]
    assert sorted(second + expected) == sorted(all_left), "each is done here, or left"

    theirs = rocketmq(place)
    client.open(place)
    answer = client.ask("committed", group=GROUP, topic=TOPIC)
    told = {(TOPIC, int(queue)): at for queue, (at, _) in answer.items()}
    assert told == {key: at for key, at in committed(place.store).items() if key[0] == TOPIC}
    third = places_of(consume_theirs(client, place, len(expected)))
    assert third == expected
    client.ask("close")
    theirs.stop()
    assert left_of(place.store, 2 * MESSAGES) == []

    ours = penstock(place)
    with GroupAdmin(store=place.store) as admin:
        queues = [queue for queue in admin.describe(GROUP).queues if queue.topic == TOPIC]
    assert [queue.offset for queue in queues] == [queue.max_offset for queue in queues]
    ours.stop()
    record_property("messages", len(first) + len(second) + len(third))


def test_a_message_comes_again_on_the_other_broker_and_becomes_a_dead_letter_there(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    record_property: Callable[[str, object], None],
) -> None:
    good, bad = range(40), range(40, 60)
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    send_theirs(client, place, good)
    send_theirs(client, place, bad, **{FAIL: "3"})
    # level 3 is 10 s: what is given back has left the handler, and waits in the delay topic
    first = consume_theirs(client, place, len(good), level=3, settle_ms=3000)
    client.ask("close")
    theirs.stop()
    assert sorted((int(row["body"]), row["times"]) for row in first) == [
        (n, 0) for n in (*good, *bad)
    ]

    ours = penstock(place)
    again = consume_ours(place, len(bad), lambda message: message.retry(level=1))
    assert {int(row["body"]): row["times"] for row in again} == dict.fromkeys(bad, 1)
    assert {row["topic"] for row in again} == {TOPIC}
    ours.stop()

    theirs = rocketmq(place)
    client.open(place)
    third = consume_theirs(client, place, len(bad))
    times: dict[int, list[int]] = {}
    for row in third:
        times.setdefault(int(row["body"]), []).append(row["times"])
    assert times == {n: [2, 3] for n in bad}
    send_theirs(client, place, range(100, 110))
    client.ask("close")
    theirs.stop()

    ours = penstock(place)
    dead = consume_ours(place, 10, lambda message: message.retry(level=-1, reason="no account"))
    assert numbers_of(dead) == set(range(100, 110))
    ours.stop()
    theirs = rocketmq(place)
    client.open(place)
    found = place.file("letters.jsonl")
    assert client.ask("pull", queues=[[f"%DLQ%{GROUP}", 0]], out=found) == 10
    client.ask("close")
    theirs.stop()
    record_property("messages", len(first) + len(again) + len(third) + len(dead))


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_delayed_messages_are_due_on_the_other_broker_once_and_not_early(
    first: str,
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    record_property: Callable[[str, object], None],
) -> None:
    count, level, delay_ms = 60, 4, 15_000
    levels = f"1s 5s 10s {delay_ms // 1000}s"  # the last is longer than a change of brokers
    theirs = rocketmq(place, messageDelayLevel=levels)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    if first == "theirs":
        wanted, receipts = place.file("delayed.jsonl"), place.file("receipts.jsonl")
        wanted.write_text(
            "".join(
                json.dumps(
                    {
                        "topic": TOPIC,
                        "queue": n % QUEUES,
                        "body": b64encode(b"%d" % n).decode(),
                        "delay_level": level,
                    }
                )
                + "\n"
                for n in range(count)
            )
        )
        sent_ms = time.time() * 1000
        client.ask("send", messages=wanted, receipts=receipts)
    client.ask("close")
    theirs.stop()
    ours = penstock(place, message_delay_level=levels)
    if first == "ours":
        sent_ms = time.time() * 1000
        with Producer(store=place.store) as producer:
            for n in range(count):
                producer.send(TOPIC, b"%d" % n, queue=n % QUEUES, delay_level=level)
            producer.flush(WAIT_S)
        ours.stop()
        theirs = rocketmq(place, messageDelayLevel=levels)
        client.open(place)
        rows = consume_theirs(client, place, count)
        early = [row for row in rows if row["at_ms"] < sent_ms + delay_ms]
        client.ask("close")
        theirs.stop()
    else:
        rows = consume_ours(place, count)
        early = [] if time.time() * 1000 >= sent_ms + delay_ms else rows
        ours.stop()
    assert sorted(int(row["body"]) for row in rows) == list(range(count))
    assert early == []
    assert left_of(place.store, count) == []
    record_property("messages", len(rows))
