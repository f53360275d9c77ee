"""`penstock trace`: what became of a message, asked of a broker and of the files it leaves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer

pytestmark = pytest.mark.takes(15)

Command = Callable[..., subprocess.CompletedProcess[str]]
Trace = Callable[..., Any]
# so far off that no test is slow enough for it
LATER_S = 3600


class Shop(NamedTuple):
    """What was told to those who sent."""

    store: Path
    endpoint: str
    unique_key: str
    message_id: str


@pytest.fixture(scope="module")
def shop(start_shared_broker: Callable[..., Any]) -> Shop:
    """Messages that went each way: given back and dead, delayed, recalled, and half."""
    broker = start_shared_broker()
    with Producer(store=broker.store, group="shop", on_check=lambda message: "unknown") as producer:
        producer.create_topic("orders", 2)
        receipt = producer.send("orders", b"1", keys="failing k1", tags="new", queue=0).result(60)
        producer.send("orders", b"2", keys="later", delay=LATER_S, queue=1).result(60)
        recalled = producer.send("orders", b"3", keys="recalled", delay=LATER_S, queue=1)
        producer.recall(recalled.result(60)).result(60)
        producer.send("orders", b"4", keys="soon", delay=0.05, queue=1).result(60)
        for key in ("committed", "rolled-back", "open"):
            transaction = producer.begin("orders")
            transaction.send(b"5", keys=key)
            if key == "committed":
                transaction.commit()
            elif key == "rolled-back":
                transaction.rollback()
    seen = set()
    with GroupConsumer(
        store=broker.store, group="billing", topics={"orders": "new"}, start="first",
        client_id="till-1",
    ) as consumer:  # fmt: skip
        for message in consumer:
            assert message.keys == "failing k1", "the others have no tag"
            if not message.reconsume_times:
                message.retry(delay=0.05, reason="no account")
            else:
                message.retry(level=-1, reason="still none")
                break
    with GroupConsumer(
        store=broker.store, group="mailing", topics="orders", start="first"
    ) as consumer:
        for message in consumer:
            seen.add(message.keys)
            message.ack()
            if seen >= {"failing k1", "soon", "committed"}:
                break
    there = f"tcp://127.0.0.1:{broker.consume.rsplit(':', 1)[1]}"
    return Shop(broker.store, there, receipt.unique_key, receipt.message_id)


@pytest.fixture
def trace(command: Command) -> Trace:
    """Trace something; the one message that is found."""

    def run(text: str, *more: object) -> Any:
        done = command("trace", text, *more, "-o", "json")
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        return json.loads(line)

    return run


def _states(record: Any) -> dict[str, str]:
    return {each["group"]: each["state"] for each in record["groups"]}


def test_a_key_a_unique_key_and_an_id_lead_to_the_whole_way_of_a_message(
    trace: Trace, shop: Shop
) -> None:
    found = trace("k1", "--store", shop.store)
    assert found == trace(shop.unique_key, "--store", shop.store)
    assert found == trace(shop.message_id, "--store", shop.store, "--topic", "orders")
    assert (found["topic"], found["keys"], found["tags"]) == ("orders", "failing k1", "new")
    first, delayed, retry, letter = found["records"]
    assert [each["kind"] for each in found["records"]] == [
        "message",
        "delayed",
        "retry",
        "dead letter",
    ]
    assert (first["file"], first["file_offset"]) == ("commitlog/00000000000000000000", 0)
    assert first["message_id"] == shop.message_id
    assert {each["disk"] for each in found["records"]} == {"flushed"}
    assert first["readable"] and not delayed["readable"]
    assert (delayed["outcome"], delayed["led_to"]) == ("delivered", retry["physical_offset"])
    assert delayed["due_ms"] <= retry["stored_ms"]
    assert retry["says"] == {
        "reconsume_times": 1,
        "reason": "no account",
        "member": "till-1",
        "origin_topic": "orders",
        "origin_message_id": shop.message_id,
    }
    assert (letter["says"]["reconsume_times"], letter["says"]["reason"]) == (2, "still none")


def test_a_group_is_said_to_have_had_what_its_retries_prove(trace: Trace, shop: Shop) -> None:
    first, delayed, retry, letter = trace("k1", "--store", shop.store)["records"]
    billing, mailing = first["groups"]
    assert (billing["group"], billing["state"]) == ("billing", "acknowledged")
    assert billing["given_back_as"] == delayed["physical_offset"]
    (had,) = billing["had"]
    assert had["member"] == "till-1" and not had["lasts"]
    assert first["stored_ms"] <= had["since_ms"] <= had["until_ms"]
    # its members, who would know what it leaves out, have gone
    assert (mailing["state"], mailing["given_back_as"]) == ("acknowledged or filtered", None)
    assert retry["groups"][0]["given_back_as"] == letter["physical_offset"]
    assert letter["groups"] == []


def test_members_their_filter_and_what_comes_first_are_told_while_they_are_there(
    trace: Trace, shop: Shop
) -> None:
    with GroupConsumer(
        store=shop.store, group="waiting", topics={"orders": "none"}, start="first"
    ) as consumer:
        while consumer.poll(0.05) or not consumer.committed.get(("orders", 0)):
            pass
        (record,) = trace("k1", "--store", shop.store)["records"][:1]
        assert _states(record)["waiting"] == "filtered"
    with Producer(store=shop.store) as producer:
        producer.create_topic("piling", 1)
        for number in range(3):
            producer.send("piling", b"%d" % number, keys=f"pile-{number}").result(60)
    with GroupConsumer(
        store=shop.store, group="slow", topics="piling", start="first", client_id="slow-one"
    ) as consumer:
        consumer.poll(10)
        (record,) = trace("pile-2", "--store", shop.store)["records"]
        (slow,) = record["groups"]
        assert (slow["state"], slow["offset"], slow["before"]) == ("with a member", 0, 2)
        assert slow["member"] == "slow-one" and slow["held_ms"] >= 0
    (record,) = trace("pile-2", "--store", shop.store)["records"]
    assert _states(record) == {"slow": "waiting"}


@pytest.mark.parametrize(
    ("key", "outcomes"),
    [
        ("later", ["waiting"]),
        ("recalled", ["recalled", None]),
        ("soon", ["delivered", None]),
        ("committed", ["committed", None]),
        ("rolled-back", ["rolled back"]),
        ("open", ["open"]),
    ],
)
def test_what_waits_is_told_with_what_came_of_it(
    trace: Trace, shop: Shop, key: str, outcomes: list[str | None]
) -> None:
    records = trace(key, "--store", shop.store)["records"]
    assert [each["outcome"] for each in records] == outcomes
    assert records[0]["says"]["for_topic"] == "orders"
    if key == "later":
        assert records[0]["due_ms"] == records[0]["stored_ms"] + LATER_S * 1000
    if records[0]["kind"] == "half message":
        assert records[0]["says"]["producer_group"] == "shop"


def test_by_endpoint_what_the_disk_has_is_not_known(
    trace: Trace, command: Command, shop: Shop
) -> None:
    here = trace("k1", "--store", shop.store)["records"]
    there = trace("k1", "--endpoint", shop.endpoint)["records"]
    assert [each["outcome"] for each in there] == [each["outcome"] for each in here]
    assert [each["groups"] for each in there] == [each["groups"] for each in here]
    assert {each["disk"] for each in there} == {each["file"] for each in there} == {None}
    assert "flushed or not: unknown" in command("trace", "k1", "--endpoint", shop.endpoint).stdout
    half = trace("rolled-back", "--endpoint", shop.endpoint)["records"][0]
    assert half["outcome"] == "rolled back"


def test_on_a_terminal_it_reads_as_a_story(command: Command, shop: Shop) -> None:
    said = command("trace", "k1", "--store", shop.store).stdout
    assert "  1  message: orders, queue 0, offset 0, stored 20" in said
    assert "for %RETRY%billing, queue 0, due 20" in said and "delivered, as 3" in said
    assert "given back once, the last time by till-1: no account" in said
    assert "given back 2 times, the last time by till-1: still none" in said
    assert "group billing: given back, as 2; acknowledged, its offset is " in said
    assert ", member till-1 had it between 20" in said


def test_what_is_not_there_is_no_message(command: Command, shop: Shop) -> None:
    for text in ("nothing", "00" * 16):
        done = command("trace", text, "--store", shop.store)
        assert done.returncode == 1 and f"no message has this key or id: {text}" in done.stderr
    done = command("trace", "k1", "--topic", "others", "--store", shop.store)
    assert done.returncode == 1


@pytest.mark.parametrize("killed", [False, True])
def test_the_files_that_a_broker_leaves_tell_the_same(
    trace: Trace,
    command: Command,
    broker_in: Callable[..., Any],
    tmp_path: Path,
    killed: bool,
) -> None:
    broker = broker_in(tmp_path)
    store = broker.store
    with Producer(store=store, group="shop") as producer:
        for number in range(3):
            producer.send("orders", b"%d" % number, keys=f"k{number}", queue=0).result(60)
        with producer.transaction("orders") as transaction:
            transaction.send(b"x", keys="half")
    with GroupConsumer(store=store, group="billing", topics="orders", start="first") as group:
        for message in group:
            if message.keys == "k0":
                message.ack()
                group.commit()
                break
    running = [trace(key, "--store", store) for key in ("k0", "k2", "half")]
    assert len(running[0]["records"][0]["groups"][0]["had"]) == 1
    broker.kill() if killed else broker.stop()
    k0, k2, half = (trace(key, "--store", store) for key in ("k0", "k2", "half"))
    assert _states(k0["records"][0]) == {"billing": "acknowledged or filtered"}
    assert k0["records"][0]["groups"][0]["had"] == [], "no file says it"
    billing = k2["records"][0]["groups"][0]
    assert (billing["state"], billing["offset"], billing["before"]) == ("waiting", 1, 1)
    assert half["records"][0]["outcome"] == "committed"
    disk = {each["disk"] for found in (k0, k2, half) for each in found["records"]}
    assert disk == ({None} if killed else {"flushed"})
    for before, after in zip(running, (k0, k2, half), strict=True):
        for was, now in zip(before["records"], after["records"], strict=True):
            same = ("kind", "physical_offset", "file", "readable", "outcome", "led_to", "says")
            assert [was[name] for name in same] == [now[name] for name in same]
    assert "its members are unknown" in command("trace", "k2", "--store", store).stdout
