"""The official Java client against the gateway, and the same orders against a real broker.

What the client says of both is the same: statuses, queues, offsets, bodies, redelivery counts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client.group_consumer import GroupConsumer
from penstock.client.producer import Producer
from penstock.shared.process.broker_status import read_status

TOPIC, QUEUES, GROUP = "orders", 4, "billing"
IDLE_MS, WAIT_S = 60_000, 60
PLAIN, BATCH = 40, 9
TOTAL = PLAIN + 3 + BATCH + 1


def with_gateway(penstock: Callable[..., Any], place: Any) -> Any:
    """A broker that the client takes for RocketMQ's, by the ports of its place."""
    return penstock(
        place,
        produce_port=0,
        gateway_enable=True,
        gateway_port=place.port,
        gateway_name_server_port=place.name_server_port,
        broker_name="interop",
    )


def message(body: bytes, **more: Any) -> dict[str, Any]:
    return {"body": b64encode(body).decode(), **more}


def wanted() -> list[dict[str, Any]]:
    """Messages of every kind that a send can be."""
    found = [
        {"topic": TOPIC, "queue": n % QUEUES}
        | message(
            b"%d" % n,
            tags="AB"[n % 2],
            keys=[f"k{n}"],
            flag=n,
            properties={"n": str(n)} | ({"fail": "1"} if n == 8 else {}),
        )
        for n in range(PLAIN)
    ]
    found += [
        {"topic": TOPIC, "queue": 1, "compression": kind} | message(kind.encode() * 2000)
        for kind in ("LZ4", "ZSTD", "ZLIB")
    ]
    items = [{"topic": TOPIC} | message(b"batch-%d" % n) for n in range(BATCH)]
    found.append({"topic": TOPIC, "queue": 2, "items": items})
    found.append({"topic": TOPIC, "queue": 3} | message(b"late", delay_level=1))
    return found


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def consume(client: Any, place: Any, group: str, until: int, **order: Any) -> list[dict[str, Any]]:
    out = place.file("consumed.jsonl")
    usual = {"group": group, "topics": {TOPIC: "*"}, "idle_ms": IDLE_MS, "level": 1}
    client.ask("consume", until=until, out=out, **usual | order)
    return lines(out)


def obey(client: Any, place: Any) -> dict[str, Any]:
    """All that the client says, of a broker that has nothing yet."""
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    orders, receipts = place.file("send.jsonl"), place.file("sent.jsonl")
    orders.write_text("".join(json.dumps(each) + "\n" for each in wanted()))
    said: dict[str, Any] = {"sent": client.ask("send", messages=orders, receipts=receipts)}
    assert said["sent"] == {"acknowledged": len(wanted())}
    rows = lines(receipts)
    # sends that are on their way together are stored in any order, by both
    said["receipts"] = sorted((row["line"], row["status"], row["queue"]) for row in rows)
    said["places"] = sorted(
        (row["queue"], row["queue_offset"]) for row in rows if row["line"] < PLAIN
    )
    said["hosts"] = {row["message_id"][:16] for row in rows}
    # a group's topic of retries is known to a client that starts when it is there
    consume(client, place, GROUP, 0)
    rows = consume(client, place, GROUP, TOTAL)
    said["consumed"] = sorted(
        (row["topic"], row["queue"], row["body"], row["times"], row["succeeded"]) for row in rows
    )
    said["committed"] = client.ask("committed", group=GROUP, topic=TOPIC)
    queues = [[TOPIC, queue] for queue in range(QUEUES)]
    said["offsets"] = client.ask("offsets", queues=queues)
    rows = consume(client, place, "tagged", 20, topics={TOPIC: "B || C"})
    said["tagged"] = sorted((row["queue"], row["body"]) for row in rows)
    rows = consume(client, place, "in-order", TOTAL, orderly=True)
    in_order: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        in_order.setdefault(row["queue"], []).append((row["offset"], row["times"]))
    assert all(found == sorted(found) for found in in_order.values())
    said["in order"] = sorted((row["body"], row["times"]) for row in rows)
    client.ask("close")
    return said


def test_the_java_client_says_the_same_of_the_gateway_and_of_a_real_broker(
    place: Any,
    other_place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    record_property: Callable[[str, object], None],
) -> None:
    with_gateway(penstock, place)
    ours = obey(client, place)
    rocketmq(other_place)
    theirs = obey(client, other_place)
    assert ours.pop("hosts") == {f"7F000001{place.port:08X}"}
    assert theirs.pop("hosts") == {f"7F000001{other_place.port:08X}"}
    for name in theirs:
        assert ours[name] == theirs[name], name
    record_property("messages", TOTAL)


def test_javas_member_and_penstocks_own_share_the_queues_of_a_group(
    place: Any, penstock: Callable[..., Any], client: Any
) -> None:
    with_gateway(penstock, place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    with Producer(store=place.store) as producer:
        for number in range(8):
            producer.send(TOPIC, b"%d" % number, queue=number % QUEUES).result(WAIT_S)
        out = place.file("consumed.jsonl")
        order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
        client.begin("consume", until=1 << 30, idle_ms=15_000, **order)
        await_lines(out, 8)
        with GroupConsumer(store=place.store, group=GROUP, topics=TOPIC, start="first") as own:
            until = time.monotonic() + WAIT_S
            mine: list[bytes] = []
            number = 8
            # until Java's member has gone on without the queues that are this one's now
            while len(mine) < 8:
                assert time.monotonic() < until, mine
                producer.send(TOPIC, b"%d" % number, queue=number % QUEUES).result(WAIT_S)
                number += 1
                for message in own.poll(0.2):
                    mine.append(message.body)
                    message.ack()
    client.finish()
    theirs = [row["body"].encode() for row in lines(out)]
    assert {int(each) for each in [*mine, *theirs]} == set(range(number))
    assert len(mine) == len(set(mine)), "nobody else had its queues"
    assert {int(each) % QUEUES for each in theirs if int(each) >= 8}, "and it has some still"


def await_lines(file: Path, count: int) -> None:
    until = time.monotonic() + WAIT_S
    while not file.exists() or len(lines(file)) < count:
        assert time.monotonic() < until, file.read_text() if file.exists() else "nothing"
        time.sleep(0.05)


def test_javas_consumer_goes_on_when_the_gateway_is_killed(
    place: Any, penstock: Callable[..., Any], client: Any
) -> None:
    with_gateway(penstock, place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    out = place.file("consumed.jsonl")
    with Producer(store=place.store) as producer:
        for number in range(QUEUES):
            producer.send(TOPIC, b"before", queue=number).result(WAIT_S)
        order = {"group": GROUP, "topics": {TOPIC: "*"}, "level": 1, "out": out}
        client.begin("consume", until=3 * QUEUES, idle_ms=IDLE_MS, **order)
        await_lines(out, QUEUES)
        for turn in (2, 3):
            (pid,) = (
                each["pid"]
                for each in read_status(place.store)["actors"]
                if each["name"] == "gateway"
            )
            os.kill(pid, signal.SIGKILL)
            for number in range(QUEUES):
                producer.send(TOPIC, b"after", queue=number).result(WAIT_S)
            await_lines(out, turn * QUEUES)
    client.finish()
    places = {(row["queue"], row["offset"]) for row in lines(out)}
    assert places == {(queue, offset) for queue in range(QUEUES) for offset in range(3)}
