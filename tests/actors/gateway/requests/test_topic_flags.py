"""What a topic is marked with, by RocketMQ's words: kind of filter, unit, order."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock.remoting.codes import Request, Response
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_layout import SYS_MULTI_TAGS
from penstock.shared.messaging.topic_rules import UNIT, UNIT_SUB

WAIT_S = 60
TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
SEND = {
    "producerGroup": "PG", "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0,
    "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "TAGS\x01A\x02",
}  # fmt: skip
SHORT = dict(zip("abcdefghi", ("PG", "", "TBW102", 1, 0, 0, 1, 0, ""), strict=True))
KEYS = "topicFilterType", "topicSysFlag", "order"


def marks(asker: Any, topic: str) -> tuple[Any, ...]:
    """Kind of filter, flag and order of a topic, as its broker tells them."""
    answer = asker.ask(Request.GET_TOPIC_CONFIG, {"topic": topic})
    assert answer.code == Response.SUCCESS, answer.remark
    of_all = json.loads(asker.ask(Request.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
    found = json.loads(answer.body)
    assert found == of_all[topic]
    return tuple(found[key] for key in KEYS)


def make(asker: Any, topic: str, **more: object) -> int:
    code: int = asker.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": topic} | more).code
    return code


def test_a_topic_is_made_and_changed_with_kind_and_flag(gateway: Any, peer: Any) -> None:
    asker, names = peer(), peer(gateway.name_server)
    assert make(asker, "marked", topicFilterType="MULTI_TAG", topicSysFlag=UNIT) == 0
    assert marks(asker, "marked") == ("MULTI_TAG", UNIT, False)
    route = json.loads(names.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "marked"}).body)
    assert route["queueDatas"][0]["topicSysFlag"] == UNIT
    units = json.loads(names.ask(Request.GET_UNIT_TOPIC_LIST).body)["topicList"]
    assert "marked" in units
    several = [
        {"topicName": "marked", "topicSysFlag": UNIT_SUB},
        {"topicName": "marked-too", "topicFilterType": "MULTI_TAG", "order": True},
    ]
    body = json.dumps({"topicConfigList": several}).encode()
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == Response.SUCCESS
    assert marks(asker, "marked") == ("SINGLE_TAG", UNIT_SUB, False)
    assert marks(asker, "marked-too") == ("MULTI_TAG", 0, True)
    assert make(asker, "marked", topicFilterType="OTHER") == Response.SYSTEM_ERROR
    assert marks(asker, "marked") == ("SINGLE_TAG", UNIT_SUB, False)


@pytest.mark.parametrize("kind", ["SINGLE_TAG", "MULTI_TAG"])
def test_messages_of_a_topic_of_several_tags_have_its_bit(peer: Any, kind: str) -> None:
    asker, topic = peer(), f"bits-{kind}"
    assert make(asker, topic, topicFilterType=kind) == 0
    for code, fields in (
        (Request.SEND_MESSAGE, SEND | {"topic": topic}),
        (Request.SEND_MESSAGE_V2, SHORT | {"b": topic}),
        (Request.SEND_MESSAGE_V2, SHORT | {"b": topic}),
    ):
        sent = asker.ask(code, fields, b"body")
        assert sent.code == Response.SUCCESS, sent.remark
        offset = int(sent.fields["msgId"][16:], 16)
        stored = asker.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
        flag = decode_record(stored.body).sys_flag
        assert bool(flag & SYS_MULTI_TAGS) == (kind == "MULTI_TAG"), fields


@pytest.mark.parametrize("is_unit", [False, True])
def test_a_topic_is_of_a_unit_where_its_first_message_is(peer: Any, is_unit: bool) -> None:
    asker, topic = peer(), f"first-{is_unit}"
    asker.ask(Request.SEND_MESSAGE, SEND | {"topic": topic, "unitMode": str(is_unit).lower()})
    assert marks(asker, topic) == ("SINGLE_TAG", UNIT if is_unit else 0, False)


def test_a_topic_of_retries_is_marked_by_what_its_group_subscribes_to(peer: Any) -> None:
    asker, until = peer(), time.monotonic() + WAIT_S
    for topic, order in (("in-order", "true"), ("in-none", "false")):
        assert make(asker, topic, order=order) == 0

    def beat(topic: str, is_unit: bool = False) -> tuple[Any, ...]:
        """What its group's topic of retries is marked with then."""
        wanted = [{"topic": each} for each in (topic, "%RETRY%marking")]
        group = {
            "groupName": "marking", "unitMode": is_unit, "subscriptionDataSet": wanted,
        }  # fmt: skip
        body = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
        client = peer()
        client.send(Request.HEART_BEAT, {}, body)
        while not client.hear().is_response:
            pass  # its group has changed
        client.socket.close()
        answer = asker.ask(Request.GET_TOPIC_CONFIG, {"topic": "%RETRY%marking"})
        return tuple(json.loads(answer.body or "{}").get(key) for key in KEYS)

    for asked, wanted in (
        (("in-none",), ("SINGLE_TAG", 0, False)),
        (("in-order",), ("SINGLE_TAG", 0, True)),
        (("in-none", True), ("SINGLE_TAG", UNIT_SUB, False)),
    ):
        while beat(*asked) != wanted:  # the topic is made meanwhile
            assert time.monotonic() < until
