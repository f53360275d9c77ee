"""What is counted of topics and groups: what the exporter and mqadmin's statsAll ask for."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.gateway.group_counts import MOST_COUNTED, MOST_PULLED, GroupCounts
from penstock.actors.gateway.rates import SAMPLE_MS
from penstock.actors.gateway.requests import topic_sums
from penstock.actors.gateway.requests.admin import topic_stats
from penstock.client import Producer
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command

WAIT_S = 60
GROUP, TOPIC, MESSAGES = "counting", "counted", 6

BODY = b"0123456789"


def counts(asker: Any, name: str, key: str) -> list[int] | int:
    """Of the last minute, hour and day; the code where there are none."""
    answer = asker.ask(Request.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    if answer.code != Response.SUCCESS:
        return int(answer.code)
    found = json.loads(answer.body)
    return [found[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")]


def await_counts(asker: Any, wanted: dict[tuple[str, str], list[int]]) -> None:
    until = time.monotonic() + WAIT_S
    while (found := {each: counts(asker, *each) for each in wanted}) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def test_what_a_group_gets_and_gives_back_is_counted(gateway: Any, peer: Any) -> None:
    asker, until = peer(), time.monotonic() + WAIT_S
    made = json.dumps({"groupName": GROUP}).encode()
    # first: the gateway counts from its own start, which the broker does not wait for
    assert asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=made).code == 0
    with Producer(gateway.produce) as producer:
        producer.create_topic(TOPIC, 1)
        for _ in range(MESSAGES):
            producer.send(TOPIC, BODY, queue=0).result(WAIT_S)
    pull = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
        "subVersion": 0,
    }  # fmt: skip
    # what is acknowledged is in its queue a moment later
    fields = {"topic": TOPIC, "queueId": 0}
    while asker.ask(Request.GET_MAX_OFFSET, fields).fields.get("offset") != str(MESSAGES):
        assert time.monotonic() < until
    answer = asker.ask(Request.PULL_MESSAGE, pull)
    assert answer.code == Response.SUCCESS
    whole = len(answer.body)
    one = int.from_bytes(answer.body[:4], "big")
    assert whole == one * MESSAGES
    offset = int.from_bytes(answer.body[28:36], "big")  # in the log, of the first one
    back = {"offset": offset, "group": GROUP, "delayLevel": 1}
    assert asker.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == Response.SUCCESS
    # it waits for its delay, which the exporter reads of all levels
    while True:
        table = json.loads(asker.ask(Request.GET_BROKER_RUNTIME_INFO).body)["table"]
        if table.get("scheduleMessageOffset_1") in ("0,1", "1,1"):
            break
        assert time.monotonic() < until, table
    key = f"{TOPIC}@{GROUP}"
    await_counts(
        asker,
        {
            ("GROUP_GET_NUMS", key): [MESSAGES] * 3,
            ("GROUP_GET_SIZE", key): [whole] * 3,
            ("SNDBCK_PUT_NUMS", key): [1] * 3,
            ("TOPIC_PUT_NUMS", TOPIC): [MESSAGES] * 3,
            ("TOPIC_PUT_SIZE", TOPIC): [whole] * 3,
        },
    )
    for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):  # of all topics and groups
        while isinstance(sums := counts(asker, name, "all"), int) or min(sums) < MESSAGES:
            assert time.monotonic() < until, (name, sums)
            time.sleep(0.05)
    for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
        assert counts(asker, name, f"{TOPIC}@nobody") == Response.SYSTEM_ERROR
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": MESSAGES}
    assert asker.ask(Request.UPDATE_CONSUMER_OFFSET, commit).code == Response.SUCCESS
    for code, more in (
        (Request.GET_CONSUME_STATS, {"consumerGroup": GROUP}),
        (Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    ):
        while True:
            said = json.loads(asker.ask(code, more).body)
            rows = said.get("consumeStatsList", [{GROUP: [said]}])
            tps = [each["consumeTps"] for row in rows for each in row.get(GROUP, [])]
            if tps and tps[0] > 0:
                break
            assert time.monotonic() < until, said


def test_what_a_topic_gets_in_a_second_is_told_with_what_its_queues_hold(
    gateway: Any, peer: Any
) -> None:
    asker, until = peer(), time.monotonic() + WAIT_S
    with Producer(gateway.produce) as producer:
        producer.create_topic("rated", 2)
        for number in range(MESSAGES):
            producer.send("rated", BODY, queue=number % 2).result(WAIT_S)
    while True:  # what is acknowledged is in its queue a moment later
        said = json.loads(asker.ask(Request.GET_TOPIC_STATS_INFO, {"topic": "rated"}).body)
        if sum(each["maxOffset"] for each in said["offsetTable"].values()) == MESSAGES:
            break
        assert time.monotonic() < until, said
    assert said["topicPutTps"] == MESSAGES / 60


def test_what_queues_hold_is_told_where_nobody_can_say_what_came_lately() -> None:
    def offset_at(slot: int, at_ms: int) -> int:
        raise OSError("its file cannot be read")

    queues = SimpleNamespace(
        queues=lambda topic: {0: 7}, range=lambda slot: (3, 3), offset_at=offset_at
    )
    services: Any = SimpleNamespace(
        topics=SimpleNamespace(routed=lambda topic: SimpleNamespace(queues=1)),
        config=SimpleNamespace(broker_name="b"),
        now_ms=lambda: 0,
        queues=queues,
    )
    call: Any = SimpleNamespace(
        command=Command(Request.GET_TOPIC_STATS_INFO, 1, {"topic": "t"}, b"")
    )
    said = json.loads(bytes(topic_stats(services, call).body))
    assert said["topicPutTps"] == 0.0
    assert [each["maxOffset"] for each in said["offsetTable"].values()] == [3]


def test_the_quietest_groups_are_forgotten_where_there_are_very_many() -> None:
    found = GroupCounts()
    for number in range(MOST_COUNTED):
        found.got("t", f"g{number}", 1, 100, 0)
    found.work(0)
    found.gave_back("t", "g0", 1)
    found.work(SAMPLE_MS)
    found.got("t", "new", 1, 100, SAMPLE_MS)
    assert found.get("t", "g1") is None, "nobody has been quiet for longer"
    found.got("t", "g" * 300, 1, 100, 0)
    assert found.get("t", "g" * 300) is None, "this can be no group"
    for group in ("g0", "g2", "new"):
        assert found.get("t", group) is not None
    assert found.tps("t", "g0") == 1 / 60 and found.tps("t", "g1") == 0


def test_where_groups_pulled_the_longest_ago_is_forgotten_where_there_are_very_many() -> None:
    found = GroupCounts()
    for number in range(MOST_PULLED + 1):
        found.pulled("t", f"g{number}", 1, number + 1)
    assert [found.pull_offset("t", f"g{each}", 1) for each in (0, 1, MOST_PULLED)] == [
        -1, 2, MOST_PULLED + 1,
    ]  # fmt: skip
    assert found.pull_offset("t", "g1", 0) == -1


def test_where_a_group_pulls_is_told_beside_where_it_has_committed(gateway: Any, peer: Any) -> None:
    asker, until = peer(), time.monotonic() + WAIT_S
    queue, group = {"topic": "in-hand", "queueId": 0}, {"consumerGroup": "handy"}
    with Producer(gateway.produce) as producer:
        producer.create_topic("in-hand", 1)
        for _ in range(MESSAGES):
            producer.send("in-hand", BODY, queue=0).result(WAIT_S)
    while asker.ask(Request.GET_MAX_OFFSET, queue).fields.get("offset") != str(MESSAGES):
        assert time.monotonic() < until

    def told() -> list[int]:
        """Where it has committed, and where it pulls."""
        table = json.loads(asker.ask(Request.GET_CONSUME_STATS, group).body)["offsetTable"]
        return [row[at] for row in table.values() for at in ("consumerOffset", "pullOffset")]

    def pull(offset: int, waits: int = 0) -> dict[str, Any]:
        return queue | group | {
            "queueOffset": offset, "maxMsgNums": 2, "sysFlag": 4 | waits, "commitOffset": 0,
            "suspendTimeoutMillis": 60_000, "subscription": "*", "subVersion": 0,
        }  # fmt: skip

    made = json.dumps({"groupName": "handy"}).encode()
    assert asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=made).code == 0
    committed = queue | group | {"commitOffset": 1}
    assert asker.ask(Request.UPDATE_CONSUMER_OFFSET, committed).code == Response.SUCCESS
    assert told() == [1, 1], "nothing is known but that"
    assert asker.ask(Request.PULL_MESSAGE, pull(1)).code == Response.SUCCESS
    assert told() == [1, 3]
    others = json.loads(asker.ask(Request.GET_BROKER_CONSUME_STATS).body)
    assert others["totalInflightDiff"] >= 2
    peer().send(Request.PULL_MESSAGE, pull(MESSAGES, waits=2))
    while told() != [1, MESSAGES]:
        assert time.monotonic() < until, "one that waits is in the queue's end"
    reset = {"group": "handy", "topic": "in-hand", "timestamp": 0}
    assert asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Response.SUCCESS
    assert told() == [0, 0]


@pytest.mark.parametrize(("count", "size"), [(0, 0), (2, 11), (3, 13), (6, 26)])
def test_beyond_what_is_looked_at_messages_are_as_long_as_the_newest(count: int, size: int) -> None:
    assert topic_sums.bytes_of(count, [2, 4, 7]) == size
