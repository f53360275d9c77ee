"""Any request with odd values: it is answered, its connection stays, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.actors.gateway.grouping.members import MAX_CLIENT_CHARACTERS
from penstock.actors.gateway.processors import PROCESSORS
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, encode_command
from penstock.remoting.fields import FIELDS

SHORTENED = (
    Request.SEND_MESSAGE_V2,
    Request.SEND_BATCH_MESSAGE,
    Request.SEND_REPLY_MESSAGE_V2,
)
# What fields of these names are in requests that are in order.
USUAL = {
    "topic": "odd",
    "defaultTopic": "TBW102",
    "producerGroup": "PG",
    "consumerGroup": "CG",
    "group": "CG",
    "groupName": "CG",
    "srcGroup": "CG",
    "destGroup": "CG2",
    "clientID": "odd@1",
    "clientId": "odd@1",
    "queueId": 0,
    "properties": "TAGS\x01A\x02",
    "subscription": "*",
    "expressionType": "TAG",
    "maxMsgNums": 32,
    "boundaryType": "LOWER",
    "brokerName": "b2",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "C2",
    "cluster": "C",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "attributes": "",
    "namespace": "N",
    "key": "k",
    "value": "v",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "odd",
    "msgId": "7F00000100002A9F0000000000000000",
    "commitOrRollback": 8,
    "_UNIQUE_KEY_QUERY": "false",
}  # fmt: skip
QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "odd"}
SUBSCRIPTION = {"topic": "odd", "subString": "A", "subVersion": 5, "expressionType": "TAG"}
BODIES: dict[int, Any] = {
    Request.HEART_BEAT: {
        "clientID": "odd@1",
        "producerDataSet": [{"groupName": "PG"}],
        "consumerDataSet": [
            {
                "groupName": "CG",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [SUBSCRIPTION],
            }
        ],
    },
    Request.LOCK_BATCH_MQ: {"clientId": "odd@1", "consumerGroup": "CG", "mqSet": [QUEUE]},
    Request.UNLOCK_BATCH_MQ: {"clientId": "odd@1", "consumerGroup": "CG", "mqSet": [QUEUE]},
    Request.CHECK_CLIENT_CONFIG: {
        "clientId": "odd@1",
        "group": "CG",
        "subscriptionData": SUBSCRIPTION,
    },
    Request.QUERY_ASSIGNMENT: {
        "topic": "odd",
        "consumerGroup": "CG",
        "clientId": "odd@1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
    Request.SET_MESSAGE_REQUEST_MODE: {"topic": "odd", "consumerGroup": "CG", "mode": "POP"},
    Request.UPDATE_AND_CREATE_TOPIC_LIST: {
        "topicConfigList": [
            {
                "topicName": "odd",
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "perm": 6,
                "order": False,
                "attributes": {"+message.type": "NORMAL"},
            }
        ]
    },
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        "groupName": "CG",
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "consumeEnable": True,
    },
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {
        "groupConfigList": [{"groupName": "CG", "retryMaxTimes": 16}]
    },
    Request.REGISTER_BROKER: {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
            "topicConfigTable": {
                "odd": {"topicName": "odd", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0},
                "odd2": {"topicName": "odd2", "writeQueueNums": 4},
            },
        },
    },
    Request.REGISTER_TOPIC_IN_NAMESRV: {
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ]
    },
    Request.QUERY_DATA_VERSION: {"counter": 1, "stateVersion": 0, "timestamp": 1},
}  # fmt: skip
PROPERTIES = [
    f"{name}\x01{value}\x02"
    for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TRAN_MSG", "REAL_QID", "UNIQ_KEY")
    for value in ("²", "-1", "0", "3", "true", "9" * 30, "1" * 5000, '"\\\n', "٣", "nan")
]
NUMBERS = [0, 1, -1, 8, 1 << 31, -(1 << 31), (1 << 31) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63)]
NUMBERS += [1 << 64, 10**30, 1.5]
TEXTS = [
    "", "²", "-1", "nan", "inf", "null", "true", "0x10", "1e3", " 1 ", "\0", "\n", "../x", "*",
    "😀", "%RETRY%CG", "%DLQ%CG", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
    "%RETRY%", "SQL92", "MACHINE_ROOM", "CONSISTENT_HASH", "BROADCASTING", "UPPER",
    "BROKER_PUT_NUMS",
    "a" * 300, "\x01" * 40_000, "9" * 5000, '{"', "A || B", "a > 1", "odd@2", "other", "CG2",
]  # fmt: skip
ODD = st.sampled_from([*TEXTS, *NUMBERS, None, True])
ODDER = ODD | st.sampled_from([[], {}, [[]], {"": None}, [None], "\ud800"])
CODES = [*sorted(PROCESSORS), *{*map(int, Request)} - PROCESSORS.keys(), 0, -1, 200050]

# As in RocketMQ, a transaction's outcome that is not known has no answer.
ANSWERED = [code for code in CODES if code != Request.END_TRANSACTION]


def fields_of(code: int) -> list[str]:
    if code in SHORTENED:
        return [*"abcdefghijklm"]
    kind = FIELDS.get(code)
    return [*kind.__struct_encode_fields__] if kind is not None else ["topic"]


def usual(code: int, name: str) -> Any:
    if code in SHORTENED:
        kind = FIELDS[Request.SEND_MESSAGE]
        name = kind.__struct_encode_fields__["abcdefghijklm".index(name)]
    if name == "sysFlag" and code in (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE):
        return 4  # it says itself what it wants
    if name in ("brokerId", "heartbeatTimeoutMillis"):
        return {"brokerId": 0, "heartbeatTimeoutMillis": 60_000}[name]
    return USUAL.get(name, 0)


@st.composite
def headers(draw: Any, code: int) -> dict[str, Any]:
    """Of a request that is in order, with a few values that are not."""
    names = fields_of(code)
    found = {name: usual(code, name) for name in names}
    for name in names:
        if found[name] == "odd" and draw(st.booleans()):  # it has to be made first
            found[name] = f"odd{draw(st.integers(0, 999))}"
        if name in ("properties", "i") and draw(st.booleans()):
            found[name] = draw(st.sampled_from(PROPERTIES))
    for name in draw(st.lists(st.sampled_from(names), max_size=2)) if names else ():
        found[name] = draw(ODD)
    if draw(st.integers(0, 9)) == 0:
        found["more"] = draw(ODD)
    if isinstance(found.get("sysFlag"), int) and "suspendTimeoutMillis" in found:
        found["sysFlag"] &= ~2  # a pull that waits is answered later
    return found


@st.composite
def mutated(draw: Any, template: Any) -> Any:
    """The same with a few of its values replaced, or left out."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ODDER)
    if isinstance(template, dict):
        found = {key: draw(mutated(value)) for key, value in template.items()}
        return {key: value for key, value in found.items() if draw(st.integers(0, 19))}
    if isinstance(template, list):
        return [draw(mutated(each)) for each in template] * draw(st.sampled_from([1, 1, 2]))
    return template


@st.composite
def requests(draw: Any) -> tuple[int, dict[str, Any], bytes]:
    code = draw(st.sampled_from(ANSWERED))
    template = BODIES.get(code)
    if template is None:
        body = draw(st.sampled_from([b"x", b"", b"{}", b"null", bytes(30), b"\xff" * 9]))
    else:
        body = json.dumps(draw(mutated(template))).encode()
    return code, draw(headers(code)), body


def frame(code: int, fields: dict[str, Any], body: bytes, is_binary: bool) -> bytes:
    if is_binary:
        texts = {key: str(value) for key, value in fields.items() if value is not None}
        return encode_command(Command(code, 7, texts, body, is_binary=True))
    header = json.dumps({"code": code, "opaque": 7, "flag": 0, "extFields": fields}).encode()
    return b"".join(
        (len(header) + len(body) + 4).to_bytes(4, "big") if each is None else each
        for each in (None, len(header).to_bytes(4, "big"), header, body)
    )


def answer_to(peer: Any, raw: bytes) -> Any:
    peer.socket.sendall(raw)
    while not (heard := peer.hear()).is_response or heard.opaque != 7:
        pass
    return heard


@pytest.fixture
def watcher(peer: Any) -> Iterator[Any]:
    """Another client, whose connection is there from the first request to the last."""
    found = peer()
    yield found
    assert found.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


@settings(max_examples=400)
@given(requests(), st.booleans())
def test_any_request_with_odd_values_is_answered(
    watcher: Any, peer: Any, request_: tuple[int, dict[str, Any], bytes], is_binary: bool
) -> None:
    code, fields, body = request_
    answer = answer_to(peer(), frame(code, fields, body, is_binary))
    assert answer.code == Response.SUCCESS or answer.remark
    for each in (Request.GET_BROKER_CLUSTER_INFO, Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
        assert watcher.ask(each).code == Response.SUCCESS


def test_a_level_or_a_count_that_is_no_number_of_javas_ends_nobody(watcher: Any, peer: Any) -> None:
    sender, fields = peer(), {name: usual(10, name) for name in fields_of(10)}
    for number, level in enumerate(("²", "9" * 5000, "٣", "-1")):
        # of a topic that is there, and of one that has to be made first
        for topic in (f"level{number}", f"level{number}"):
            said = fields | {"topic": topic, "properties": f"DELAY\x01{level}\x02"}
            answer = answer_to(sender, frame(Request.SEND_MESSAGE, said, b"x", False))
            assert answer.code in (Response.SUCCESS, Response.MESSAGE_ILLEGAL), answer.remark
    most = (1 << 31) - 1
    said = fields | {"topic": "often", "reconsumeTimes": most}
    answer = answer_to(sender, frame(Request.SEND_MESSAGE, said, b"x", False))
    at = int(answer.fields["msgId"][16:], 16)
    body = json.dumps({"groupName": "Often"}).encode()
    code = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert answer_to(sender, frame(code, {}, body, False)).code == Response.SUCCESS
    for times in (16, most):
        back = {"offset": at, "group": "Often", "delayLevel": 0, "maxReconsumeTimes": times}
        raw = frame(Request.CONSUMER_SEND_MSG_BACK, back, b"", False)
        assert answer_to(sender, raw).code == Response.SUCCESS
    assert watcher.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_one_request_asks_for_no_more_than_others_can_wait_for(watcher: Any, peer: Any) -> None:
    asker = peer()
    groups = [{"groupName": f"G{number}", "subscriptionDataSet": []} for number in range(50_000)]
    beat = json.dumps({"clientID": "many@1", "consumerDataSet": groups}).encode()
    answer = answer_to(asker, frame(Request.HEART_BEAT, {}, beat, False))
    assert answer.code == Response.INVALID_PARAMETER, answer.remark
    one = json.dumps({"clientID": "many@1", "consumerDataSet": groups[:1]}).encode()
    assert answer_to(asker, frame(Request.HEART_BEAT, {}, one, False)).code == Response.SUCCESS
    queues = [QUEUE | {"topic": f"T{number}"} for number in range(50_000)]
    wanted = {"clientId": "many@1", "consumerGroup": "G0", "mqSet": queues}
    raw = frame(Request.LOCK_BATCH_MQ, {}, json.dumps(wanted).encode(), False)
    answer = answer_to(asker, raw)
    assert answer.code == Response.INVALID_PARAMETER, answer.remark


@pytest.mark.parametrize("said", ["producerDataSet", "consumerDataSet"])
def test_a_client_s_id_is_as_long_as_any_actor_takes_whether_it_sends_or_consumes(
    watcher: Any, peer: Any, said: str
) -> None:
    asker, group = peer(), f"long-{said}"
    groups = [{"groupName": group, "subscriptionDataSet": []}]
    refused = []
    for client_id in ("c" * (1 << 20), "c" * (MAX_CLIENT_CHARACTERS + 1), ""):
        beat = json.dumps({"clientID": client_id, said: groups}).encode()
        answer = answer_to(asker, frame(Request.HEART_BEAT, {}, beat, False))
        refused.append((answer.code, "a client's id has 1 to 255 characters" in answer.remark))
    assert refused == [(Response.INVALID_PARAMETER, True)] * 3
    if said == "producerDataSet":
        fields, code = {"producerGroup": group}, Request.GET_PRODUCER_CONNECTION_LIST
        answer = answer_to(watcher, frame(code, fields, b"", False))
        assert answer.code == Response.SYSTEM_ERROR, "none of them is kept"
    beat = json.dumps({"clientID": "c" * MAX_CLIENT_CHARACTERS, said: groups}).encode()
    assert answer_to(asker, frame(Request.HEART_BEAT, {}, beat, False)).code == Response.SUCCESS


def test_a_topic_is_made_by_a_template_that_may_be_inherited_and_by_no_other(peer: Any) -> None:
    asker = peer()
    for topic, perm in (("ordinary", 6), ("heritable", 7)):
        made = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        answer = answer_to(asker, frame(Request.UPDATE_AND_CREATE_TOPIC, made, b"", False))
        assert answer.code == Response.SUCCESS, answer.remark
    usual = {
        "producerGroup": "PG", "defaultTopicQueueNums": 1, "queueId": 0, "sysFlag": 0,
        "bornTimestamp": 0, "flag": 0, "properties": "",
    }  # fmt: skip
    for template, code in (
        ("", Response.TOPIC_NOT_EXIST),
        ("nowhere", Response.TOPIC_NOT_EXIST),
        ("ordinary", Response.TOPIC_NOT_EXIST),
        ("heritable", Response.SUCCESS),
    ):
        topic = f"by-{template}"
        said = usual | {"topic": topic, "defaultTopic": template}
        answer = answer_to(asker, frame(Request.SEND_MESSAGE, said, b"x", False))
        assert answer.code == code, (template, answer.remark)
        # what is there needs no template
        said["topic"] = "heritable"
        answer = answer_to(asker, frame(Request.SEND_MESSAGE, said, b"x", False))
        assert answer.code == Response.SUCCESS, answer.remark
