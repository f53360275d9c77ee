"""Half messages, how they end, and the question to their producers, over sockets."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from penstock.remoting.codes import Request, Response
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import Record, decode_record

WAIT_S = 60
GROUP = "PG-transactions"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
KEY = "7F0000010001{:020d}"


def properties(number: int, group: str = GROUP, **more: str) -> str:
    found = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": KEY.format(number), "own": "kept"}
    found |= more
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items())


def send_half(
    sender: Any, topic: str, number: int, group: str = GROUP, age_ms: int = 0, **more: str
) -> dict[str, object]:
    """By what an END_TRANSACTION names it."""
    fields = {
        "producerGroup": group,
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 4,
        "bornTimestamp": int(time.time() * 1000) - age_ms,
        "flag": 7,
        "properties": properties(number, group, **more),
    }
    answer = sender.ask(Request.SEND_MESSAGE, fields, b"half %d" % number)
    assert answer.code == Response.SUCCESS, answer.remark
    assert (answer.fields["queueId"], answer.fields["transactionId"]) == ("1", KEY.format(number))
    return {
        "producerGroup": group,
        "tranStateTableOffset": answer.fields["queueOffset"],
        "commitLogOffset": int(answer.fields["msgId"][-16:], 16),
        "msgId": KEY.format(number),
        "transactionId": KEY.format(number),
    }


def end(sender: Any, half: dict[str, object], outcome: int) -> Any:
    return sender.ask(Request.END_TRANSACTION, half | {"commitOrRollback": outcome})


def visible(asker: Any, topic: str, count: int) -> list[Record]:
    """This many messages of queue 1, and no more."""
    pull = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 1,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
    }
    until = time.monotonic() + WAIT_S
    while True:
        body, found, at = asker.ask(Request.PULL_MESSAGE, pull).body, [], 0
        while at < len(body):
            found.append(decode_record(body, at))
            at += found[-1].total_size
        if len(found) == count:
            return found
        assert len(found) < count and time.monotonic() < until, found


def test_a_half_message_is_seen_once_it_is_committed(peer: Any) -> None:
    sender = peer()
    first, second = send_half(sender, "half", 1), send_half(sender, "half", 2)
    visible(sender, "half", 0)
    assert end(sender, second, COMMIT).code == Response.SUCCESS
    (found,) = visible(sender, "half", 1)
    assert (found.body, found.flag, found.queue_id, found.sys_flag) == (b"half 2", 7, 1, 8)
    assert found.prepared_transaction_offset == second["commitLogOffset"]
    named = decode_properties(found.properties)
    assert (named["own"], named["__transactionId__"]) == ("kept", KEY.format(2))
    assert end(sender, first, ROLLBACK).code == Response.SUCCESS
    # what is said twice is done once, and what was decided stays
    assert end(sender, second, COMMIT).code == Response.SUCCESS
    answer = end(sender, first, COMMIT)
    assert answer.code == Response.SYSTEM_ERROR and "rollback" in answer.remark
    visible(sender, "half", 1)


@pytest.mark.parametrize(
    "changes",
    [{"producerGroup": "other"}, {"tranStateTableOffset": 10**6}, {"commitLogOffset": 1}],
)
def test_what_names_no_half_message_ends_none(peer: Any, changes: dict[str, object]) -> None:
    sender = peer()
    half = send_half(sender, "unnamed", 3)
    answer = end(sender, half | changes, COMMIT)
    assert answer.code == Response.SYSTEM_ERROR and answer.remark
    # only one that does not know yet has no answer
    assert end(sender, half, 4).code == Response.SYSTEM_ERROR
    visible(sender, "unnamed", 0)
    assert end(sender, half, ROLLBACK).code == Response.SUCCESS


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize(
    ("immunity", "age_ms", "is_late"),
    [("1", 5000, True), ("", 5000, False), ("3600", 5000, False), ("soon", 5000, True)],
)
def test_when_its_time_without_checks_is_over_a_transaction_ends_by_a_check_alone(
    peer: Any, immunity: str, age_ms: int, is_late: bool, outcome: int
) -> None:
    sender, topic = peer(), f"late{immunity}{outcome}"
    more = {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity} if immunity else {}
    half = send_half(sender, topic, 5, "PG-late", age_ms, **more)
    answer = end(sender, half, outcome)
    assert answer.code == (Response.ILLEGAL_OPERATION if is_late else Response.SUCCESS)
    if is_late:
        visible(sender, topic, 0)
        said = half | {"fromTransactionCheck": "true"}
        assert end(sender, said, outcome).code == Response.SUCCESS
    visible(sender, topic, 1 if outcome == COMMIT else 0)


def test_a_producer_that_does_not_know_yet_is_asked_until_it_does(peer: Any) -> None:
    """Not the one that has sent it: any of its group, over the connection of its heartbeats."""
    group = "PG-asked"
    sender, other, stranger = peer(), peer(), peer()
    for whose, client, name in ((other, "other", group), (stranger, "stranger", "PG-strange")):
        body = {"clientID": client, "producerDataSet": [{"groupName": name}]}
        assert whose.ask(Request.HEART_BEAT, body=msgspec.json.encode(body)).code == 0
    half = send_half(sender, "asked", 4, group)
    # as in RocketMQ this has no answer
    sender.send(Request.END_TRANSACTION, half | {"commitOrRollback": UNKNOWN})
    assert sender.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    for outcome in (UNKNOWN, COMMIT):
        asked = other.hear()
        assert asked.code == Request.CHECK_TRANSACTION_STATE and asked.is_oneway
        assert int(asked.fields["tranStateTableOffset"]) == int(str(half["tranStateTableOffset"]))
        assert int(asked.fields["commitLogOffset"]) == half["commitLogOffset"]
        assert asked.fields["transactionId"] == asked.fields["msgId"] == KEY.format(4)
        record = decode_record(asked.body)
        assert (record.topic, record.queue_id, record.body) == ("asked", 1, b"half 4")
        # as C++ writes it, one way
        said = half | {"commitOrRollback": outcome, "fromTransactionCheck": 1}
        other.send(Request.END_TRANSACTION, said, flag=2)
    visible(sender, "asked", 1)
    stranger.send(Request.GET_BROKER_CLUSTER_INFO)
    assert stranger.hear().is_response, "nobody has asked it"


def test_a_message_that_is_marked_and_is_no_half_message_is_refused(peer: Any) -> None:
    fields = {
        "producerGroup": GROUP,
        "topic": "marked",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 4,
        "bornTimestamp": 0,
        "flag": 0,
    }
    assert peer().ask(Request.SEND_MESSAGE, fields, b"x").code == Response.MESSAGE_ILLEGAL
