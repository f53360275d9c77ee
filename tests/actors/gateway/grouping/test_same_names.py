"""Clients of one name on several connections, as Java's are that broadcast on one host."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from penstock.client import Producer
from penstock.remoting.codes import Request, Response

WAIT_S = 60
CLIENT = "10.0.0.1@DEFAULT"
WAITS = 2
VERSION = 5


@pytest.fixture
def topic(gateway: Any, peer: Any, request: pytest.FixtureRequest) -> str:
    """A topic of one queue, with one message."""
    name = f"t{abs(hash(request.node.name))}"
    with Producer(gateway.produce) as producer:
        producer.create_topic(name, 1)
        producer.send(name, b"1").result(WAIT_S)
    asker, until = peer(), time.monotonic() + WAIT_S
    # what is acknowledged is in its queue a moment later
    while asker.ask(Request.GET_MAX_OFFSET, {"topic": name, "queueId": 0}).fields["offset"] != "1":
        assert time.monotonic() < until
    return name


def answer_of(client: Any, *asked: Any) -> Any:
    """The answer, past what the gateway pushes meanwhile."""
    number = client.send(*asked)
    while (heard := client.hear()).opaque != number or not heard.is_response:
        assert heard.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
    return heard


def beat(client: Any, topic: str, model: str, group: str = "") -> None:
    subscription = {"topic": topic, "subString": "*", "subVersion": VERSION}
    consumer = {
        "groupName": group or f"g{topic}",
        "messageModel": model,
        "subscriptionDataSet": [subscription],
    }
    body = msgspec.json.encode({"clientID": CLIENT, "consumerDataSet": [consumer]})
    assert answer_of(client, Request.HEART_BEAT, {}, body).code == Response.SUCCESS


def pulled(client: Any, topic: str, version: int = VERSION) -> int:
    """How a pull is answered that goes by what heartbeats say."""
    fields = {
        "consumerGroup": f"g{topic}",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": WAITS,
        "commitOffset": 0,
        "suspendTimeoutMillis": 1000,
        "subscription": "",
        "subVersion": version,
    }
    code: int = answer_of(client, Request.PULL_MESSAGE, fields).code
    return code


@pytest.mark.parametrize("model", ["BROADCASTING", "CLUSTERING"])
def test_of_two_clients_of_one_name_both_have_messages(peer: Any, topic: str, model: str) -> None:
    one, two = peer(), peer()
    beat(one, topic, model)
    for last in (two, one):
        beat(last, topic, model)
        assert [pulled(one, topic), pulled(two, topic)] == [Response.SUCCESS] * 2


def test_who_pulls_for_its_group_with_a_later_subscription_than_the_group_has_is_told_so(
    peer: Any, topic: str
) -> None:
    one, two = peer(), peer()
    for each in (one, two):
        beat(each, topic, "BROADCASTING")
    assert pulled(one, topic, VERSION + 1) == Response.SUBSCRIPTION_NOT_LATEST


def test_nobody_pulls_for_a_group_by_what_it_wants_of_another_topic(peer: Any, topic: str) -> None:
    beat(peer(), "another", "BROADCASTING", f"g{topic}")
    assert pulled(peer(), topic) == Response.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize("ends", [0, 1])
def test_when_one_of_two_clients_of_a_name_ends_the_other_one_still_has_messages(
    peer: Any, topic: str, ends: int
) -> None:
    both, asker = [peer(), peer()], peer()
    for each in both:
        beat(each, topic, "BROADCASTING")

    def told() -> int:
        """How many clients an operator is told of."""
        answer = asker.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": f"g{topic}"})
        return len(msgspec.json.decode(answer.body)["connectionSet"])

    assert told() == 2
    both[ends].socket.close()
    until = time.monotonic() + WAIT_S
    while told() != 1:
        assert time.monotonic() < until
    assert pulled(both[1 - ends], topic) == Response.SUCCESS
