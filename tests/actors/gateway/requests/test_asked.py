"""Queries by key, request and reply, and what clients ask before they consume, over sockets."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from penstock.client import Producer
from penstock.remoting.codes import POP, Request, Response
from penstock.remoting.command import RESPONSE_FLAG, Command, encode_command
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import Record, decode_record

WAIT_S = 60
MOST_MS = (1 << 63) - 1


def records(body: bytes | memoryview) -> list[Record]:
    found, at = [], 0
    while at < len(body):
        found.append(decode_record(body, at))
        at += found[-1].total_size
    return found


def query(topic: str, key: str, most: int = 32, **more: object) -> dict[str, object]:
    times = {"beginTimestamp": 0, "endTimestamp": MOST_MS}
    return {"topic": topic, "key": key, "maxNum": most} | times | more


def test_messages_are_found_by_their_keys(gateway: Any, peer: Any) -> None:
    with Producer(gateway.produce) as producer:
        receipts = [
            producer.send("keyed", b"%d" % n, queue=0, keys=["all", f"k{n}"]).result(WAIT_S)
            for n in range(4)
        ]
    asker = peer()
    answer = asker.ask(Request.QUERY_MESSAGE, query("keyed", "all"))
    assert [each.body for each in records(answer.body)] == [b"0", b"1", b"2", b"3"]
    assert abs(int(answer.fields["indexLastUpdateTimestamp"]) / 1000 - time.time()) < 600
    assert int(answer.fields["indexLastUpdatePhyoffset"]) >= receipts[-1].physical_offset
    answer = asker.ask(Request.QUERY_MESSAGE, query("keyed", "all", most=2))
    assert [each.body for each in records(answer.body)] == [b"2", b"3"], "the newest"
    stored_ms = records(answer.body)[-1].store_timestamp_ms
    late = query("keyed", "k1", beginTimestamp=stored_ms + 10_000)
    assert asker.ask(Request.QUERY_MESSAGE, late).code == Response.QUERY_NOT_FOUND
    # the extra field is not in each client's fixed ones, and 32 is how many may come by it
    unique = query("keyed", receipts[1].unique_key, 0, _UNIQUE_KEY_QUERY="true")
    assert [each.body for each in records(asker.ask(Request.QUERY_MESSAGE, unique).body)] == [b"1"]
    by_word = query("keyed", "k1", _UNIQUE_KEY_QUERY="true")
    assert asker.ask(Request.QUERY_MESSAGE, by_word).code == Response.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    "changes",
    [{"key": "no such"}, {"topic": "no-such"}, {"topic": "../x"}, {"key": ""}, {"maxNum": -1}]
    + [{"beginTimestamp": 5, "endTimestamp": 4}, {"beginTimestamp": -(1 << 63)}],
)
def test_what_no_message_can_have_is_not_found(peer: Any, changes: dict[str, object]) -> None:
    answer = peer().ask(Request.QUERY_MESSAGE, query("keyed", "none") | changes)
    assert answer.code == Response.QUERY_NOT_FOUND and answer.remark
    assert "indexLastUpdateTimestamp" in answer.fields


REPLY = {
    "producerGroup": "PG",
    "topic": "C_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1700000000123,
    "flag": 0,
}
SHORT = dict(zip("abcdefghi", (*REPLY.values(), ""), strict=True))


def reply_properties(client: str) -> str:
    found = {"REPLY_TO_CLIENT": client, "CORRELATION_ID": "4711", "MSG_TYPE": "reply"}
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items())


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("taken", [Response.SUCCESS, Response.SYSTEM_ERROR])
def test_a_reply_is_pushed_to_the_client_that_has_asked(
    peer: Any, taken: Response, is_short: bool
) -> None:
    client = f"asker{taken}{is_short}"
    asker, replier = peer(), peer()
    body = {"clientID": client, "producerDataSet": [{"groupName": "PG-asks"}]}
    assert asker.ask(Request.HEART_BEAT, body=msgspec.json.encode(body)).code == 0
    properties = reply_properties(client)
    code, fields = Request.SEND_REPLY_MESSAGE, REPLY | {"properties": properties}
    if is_short:
        code, fields = Request.SEND_REPLY_MESSAGE_V2, SHORT | {"i": properties}
    number = replier.send(code, fields, b"yes")
    pushed = asker.hear()
    assert pushed.code == Request.PUSH_REPLY_MESSAGE_TO_CLIENT and not pushed.is_oneway
    assert (pushed.body, pushed.fields["topic"]) == (b"yes", "C_REPLY_TOPIC")
    assert pushed.fields["bornTimestamp"] == "1700000000123"
    assert {"bornHost", "storeHost", "storeTimestamp"} < pushed.fields.keys()
    assert "maxReconsumeTimes" not in pushed.fields
    named = decode_properties(pushed.fields["properties"].encode())
    assert named["CORRELATION_ID"] == "4711" and named["PUSH_REPLY_TIME"].isdigit()
    answer = Command(taken, pushed.opaque, flag=RESPONSE_FLAG)
    asker.socket.sendall(encode_command(answer))
    answer = replier.hear()
    assert (answer.opaque, answer.code) == (number, taken)
    # and stored, whatever became of the push
    found = replier.ask(
        Request.VIEW_MESSAGE_BY_ID, {"offset": int(answer.fields["msgId"][-16:], 16)}
    )
    assert [each.body for each in records(found.body)] == [b"yes"]


def test_a_reply_to_a_client_that_is_not_there_is_stored_and_its_sender_told(peer: Any) -> None:
    replier = peer()
    for properties in (reply_properties("nobody"), ""):
        answer = replier.ask(Request.SEND_REPLY_MESSAGE, REPLY | {"properties": properties}, b"x")
        assert answer.code == Response.SYSTEM_ERROR and answer.remark
        assert int(answer.fields["queueOffset"]) >= 0


def test_a_reply_whose_client_goes_away_meanwhile_is_answered(peer: Any) -> None:
    asker, replier = peer(), peer()
    body = {"clientID": "goes", "producerDataSet": [{"groupName": "PG-asks"}]}
    assert asker.ask(Request.HEART_BEAT, body=msgspec.json.encode(body)).code == 0
    fields = REPLY | {"properties": reply_properties("goes")}
    replier.send(Request.SEND_REPLY_MESSAGE, fields, b"x")
    assert asker.hear().code == Request.PUSH_REPLY_MESSAGE_TO_CLIENT
    asker.socket.close()
    assert replier.hear().code == Response.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        ({"topic": "t", "subString": "a > 5", "expressionType": "SQL92"}, Response.SUCCESS),
        ({"topic": "t", "subString": "a >", "expressionType": "SQL92"}, 23),
        ({"topic": "t", "subString": "A || B", "expressionType": "TAG"}, Response.SUCCESS),
        (None, Response.SUCCESS),
    ],
)
def test_a_filter_is_checked_before_a_client_joins(
    peer: Any, subscription: dict[str, str] | None, code: int
) -> None:
    body = {"clientId": "c", "group": "g", "subscriptionData": subscription, "namespace": None}
    answer = peer().ask(Request.CHECK_CLIENT_CONFIG, body=msgspec.json.encode(body))
    assert answer.code == code, answer.remark


def assigned(asker: Any, topic: str, client: str, **more: str) -> list[int]:
    body = {
        "topic": topic,
        "consumerGroup": f"g-{topic}",
        "clientId": client,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    } | more
    number = asker.send(Request.QUERY_ASSIGNMENT, body=msgspec.json.encode(body))
    while (answer := asker.hear()).opaque != number or not answer.is_response:
        pass
    assert answer.code == Response.SUCCESS, answer.remark
    found = json.loads(answer.body)["messageQueueAssignments"]
    assert {each["mode"] for each in found} <= {"PULL"}
    return [each["messageQueue"]["queueId"] for each in found]


def test_queues_are_assigned_where_a_client_leaves_it_to_the_broker(
    gateway: Any, peer: Any
) -> None:
    with Producer(gateway.produce) as producer:
        producer.create_topic("assigned", 5)
    peers = {name: peer() for name in ("a", "b")}
    for name, each in peers.items():
        subscriptions = [{"topic": "assigned", "subString": "*", "subVersion": 1}]
        consumer = {"groupName": "g-assigned", "subscriptionDataSet": subscriptions}
        body = {"clientID": name, "consumerDataSet": [consumer]}
        each.send(Request.HEART_BEAT, body=msgspec.json.encode(body))
    until = time.monotonic() + WAIT_S
    while [assigned(each, "assigned", name) for name, each in peers.items()] != [[0, 1, 2], [3, 4]]:
        assert time.monotonic() < until, "the second one has joined by now"
    one = peers["a"]
    assert assigned(one, "assigned", "b", strategyName="AVG_BY_CIRCLE") == [1, 3]
    assert assigned(one, "assigned", "x") == []
    assert assigned(one, "assigned", "a", strategyName="NONE") == []
    assert assigned(one, "assigned", "x", messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
    assert assigned(one, "nowhere", "a") == []


@pytest.mark.parametrize(
    ("topic", "mode", "code"),
    [
        ("t", "PULL", Response.SUCCESS),
        ("t", "POP", Response.REQUEST_CODE_NOT_SUPPORTED),
        ("%RETRY%g", "POP", Response.NO_PERMISSION),
    ],
)
def test_messages_are_had_by_pulling(peer: Any, topic: str, mode: str, code: int) -> None:
    body = {"topic": topic, "consumerGroup": "g", "mode": mode, "popShareQueueNum": 0}
    answer = peer().ask(Request.SET_MESSAGE_REQUEST_MODE, body=msgspec.json.encode(body))
    assert answer.code == code


@pytest.mark.parametrize("code", POP)
def test_who_pops_is_told_that_messages_are_had_by_pulling(peer: Any, code: int) -> None:
    answer = peer().ask(code, {"consumerGroup": "g", "topic": "t", "queueId": -1})
    assert answer.code == Response.REQUEST_CODE_NOT_SUPPORTED
    assert "not yet by POP" in answer.remark


def test_a_recall_is_refused_as_by_a_broker_that_is_not_told_to_take_it(peer: Any) -> None:
    fields = {"topic": "t", "recallHandle": "x"}
    assert peer().ask(Request.RECALL_MESSAGE, fields).code == Response.NO_PERMISSION
