"""Consumer groups that go from one broker to the other and back: offsets, retries, delays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from penstock.client.groups.admin import GroupAdmin

pytestmark = pytest.mark.takes(165)
TOPIC, QUEUES, GROUP = "orders", 4, "billing"
MESSAGES = 800
FAIL = "fail"


def numbers_of(rows: Iterable[dict[str, Any]]) -> set[int]:
    return {int(row["body"]) for row in rows}


def places_of(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["queue"], row["offset"]) for row in rows)


def test_a_group_goes_on_at_its_offsets_on_the_other_broker(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    sides.send_theirs(range(MESSAGES))
    first = sides.consume_theirs(MESSAGES // 4)
    client.ask("close")
    theirs.stop()
    left = sides.left(MESSAGES)
    done = set(sides.left(0)) | {(q, n) for q in range(QUEUES) for n in range(MESSAGES // QUEUES)}
    assert set(places_of(first)) >= done - set(left), "they have done what they committed"
    assert left, "the test wants something left"

    ours = penstock(place)
    sides.send_ours(range(MESSAGES, 2 * MESSAGES))
    second = places_of(sides.consume_ours(len(left) // 2))
    ours.stop()
    expected = sides.left(2 * MESSAGES)
    all_left = left + [
        (q, n) for q in range(QUEUES) for n in range(MESSAGES // QUEUES, 2 * MESSAGES // QUEUES)
    ]
    assert sorted(second + expected) == sorted(all_left), "each is done here, or left"

    theirs = rocketmq(place)
    client.open(place)
    answer = client.ask("committed", group=GROUP, topic=TOPIC)
    told = {(TOPIC, int(queue)): at for queue, (at, _) in answer.items()}
    assert told == {key: at for key, at in sides.committed().items() if key[0] == TOPIC}
    third = places_of(sides.consume_theirs(len(expected)))
    assert third == expected
    client.ask("close")
    theirs.stop()
    assert sides.left(2 * MESSAGES) == []

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
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    good, bad = range(40), range(40, 60)
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    sides.send_theirs(good)
    sides.send_theirs(bad, properties={FAIL: "3"})
    # level 3 is 10 s: what is given back has left the handler, and waits in the delay topic
    first = sides.consume_theirs(len(good), level=3, settle_ms=3000)
    client.ask("close")
    theirs.stop()
    assert sorted((int(row["body"]), row["times"]) for row in first) == [
        (n, 0) for n in (*good, *bad)
    ]

    ours = penstock(place)
    again = sides.consume_ours(len(bad), lambda message: message.retry(level=1))
    assert {int(row["body"]): row["times"] for row in again} == dict.fromkeys(bad, 1)
    assert {row["topic"] for row in again} == {TOPIC}
    ours.stop()

    theirs = rocketmq(place)
    client.open(place)
    third = sides.consume_theirs(len(bad))
    times: dict[int, list[int]] = {}
    for row in third:
        times.setdefault(int(row["body"]), []).append(row["times"])
    assert times == {n: [2, 3] for n in bad}
    sides.send_theirs(range(100, 110))
    client.ask("close")
    theirs.stop()

    ours = penstock(place)
    dead = sides.consume_ours(10, lambda message: message.retry(level=-1, reason="no account"))
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
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    count, level, delay_ms = 60, 4, 15_000
    levels = f"1s 5s 10s {delay_ms // 1000}s"  # the last is longer than a change of brokers
    theirs = rocketmq(place, messageDelayLevel=levels)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    if first == "theirs":
        sent_ms = time.time() * 1000
        sides.send_theirs(range(count), delay_level=level)
    client.ask("close")
    theirs.stop()
    ours = penstock(place, message_delay_level=levels)
    if first == "ours":
        sent_ms = time.time() * 1000
        sides.send_ours(range(count), delay_level=level)
        ours.stop()
        theirs = rocketmq(place, messageDelayLevel=levels)
        client.open(place)
        rows = sides.consume_theirs(count)
        early = [row for row in rows if row["at_ms"] < sent_ms + delay_ms]
        client.ask("close")
        theirs.stop()
    else:
        rows = sides.consume_ours(count)
        early = [] if time.time() * 1000 >= sent_ms + delay_ms else rows
        ours.stop()
    assert sorted(int(row["body"]) for row in rows) == list(range(count))
    assert early == []
    assert sides.left(count) == []
    record_property("messages", len(rows))
