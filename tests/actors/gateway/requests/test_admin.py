"""What operators' tools ask a broker: each request by a frame, and what is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.gateway.processors import PROCESSORS
from penstock.actors.gateway.rates import Rate
from penstock.actors.gateway.requests.admin import stored_ms
from penstock.actors.gateway.requests.groups import AT_ONCE
from penstock.actors.reput import Reput
from penstock.client import Producer
from penstock.remoting.admin import words
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, encode_command
from penstock.shared.formats.queue_entry import BLANK_ENTRY
from penstock.shared.layout import segment_name
from penstock.shared.queue.reader import QueueReader

WAIT_S = 60
BROKER = "broker-a"
MANY = 30


def key(topic: str, queue_id: int) -> str:
    return json.dumps(
        {"brokerName": BROKER, "queueId": queue_id, "topic": topic}, separators=(",", ":")
    )


def await_true(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


class Patient:
    """A connection that asks again where the coordinator was too busy to answer in time."""

    def __init__(self, peer: Any) -> None:
        self.send, self.hear, self._peer = peer.send, peer.hear, peer

    def ask(self, *request: Any) -> Command:
        while True:
            answer: Command = self._peer.ask(*request)
            if "has not answered" not in answer.remark:
                return answer


@pytest.fixture
def asker(peer: Any) -> Patient:
    return Patient(peer())


def member(peer: Any, group: str, topic: str, client: str = "c@1", **more: object) -> Any:
    """A client that is in a group, and a producer of another."""
    joined = peer()
    body = {
        "clientID": client,
        "producerDataSet": [{"groupName": f"{group}-senders"}],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {
                        "topic": topic,
                        "subString": "A || B",
                        "subVersion": 7,
                        "expressionType": "TAG",
                    }
                ],
            }
            | more
        ],
    }
    joined.send(Request.HEART_BEAT, {}, json.dumps(body).encode(), version=399)
    while not joined.hear().is_response:
        pass  # its group has changed
    return joined


def filled(gateway: Any, asker: Any, topic: str, queues: int = 2, messages: int = 4) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
    with Producer(gateway.produce) as producer:
        for number in range(messages):
            producer.send(topic, b"%d" % number, queue=number % queues, tags="A").result(WAIT_S)


def test_every_request_of_operators_has_a_processor() -> None:
    assert words.FIELDS.keys() <= PROCESSORS.keys()


def test_topics_are_made_changed_told_and_deleted(asker: Any) -> None:
    fields = {
        "topic": "made", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false",
        "attributes": "+message.type=FIFO",
    }  # fmt: skip
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
    made = json.loads(asker.ask(Request.GET_TOPIC_CONFIG, {"topic": "made"}).body)
    assert (made["readQueueNums"], made["writeQueueNums"]) == (3, 2)
    assert made["attributes"] == {"message.type": "FIFO"}
    several = [
        {"topicName": "made", "readQueueNums": 3, "writeQueueNums": 3, "perm": 4},
        {"topicName": "more", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
    ]
    body = json.dumps({"topicConfigList": several}).encode()
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == Response.SUCCESS
    answer = asker.ask(Request.GET_ALL_TOPIC_CONFIG)
    table = json.loads(answer.body)["topicConfigTable"]
    assert table["made"]["perm"] == 4 and table["more"]["writeQueueNums"] == 1
    assert table["SCHEDULE_TOPIC_XXXX"]["writeQueueNums"] == 18
    assert answer.fields["totalTopicNum"] == str(len(table))
    names = json.loads(asker.ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)["topicList"]
    assert "SCHEDULE_TOPIC_XXXX" in names and "made" not in names
    for _ in range(2):  # the second time there is none
        answer = asker.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "made"})
        assert answer.code == Response.SUCCESS, answer.remark
    answer = asker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
    assert answer.code == Response.TOPIC_NOT_EXIST
    for topic, changes in (
        ("TBW102", ""), ("bad/name", ""), ("more", "message.type=FIFO"), ("more", "-k,-k"),
    ):  # fmt: skip
        bad = fields | {"topic": topic, "attributes": changes}
        answer = asker.ask(Request.UPDATE_AND_CREATE_TOPIC, bad)
        assert answer.code == Response.INVALID_PARAMETER, (topic, answer.remark)
    assert asker.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": " "}).code == 29


@pytest.mark.parametrize(
    "changes",
    [
        *({"topic": "rmq_sys_refused"}, {"topic": "%LMQ%refused"}, {"perm": 99}),
        *({"readQueueNums": 0}, {"readQueueNums": 2000}, {"attributes": "-message.type"}),
        *({"attributes": "message.type=FIFO"}, {"attributes": "+queue.type=BatchCQ"}),
    ],
)
def test_a_topic_that_is_refused_is_not_made(asker: Any, changes: dict[str, object]) -> None:
    fields = {
        "topic": "refused", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false",
    } | changes  # fmt: skip
    answer = asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == Response.INVALID_PARAMETER, answer.remark
    answer = asker.ask(Request.GET_TOPIC_CONFIG, {"topic": fields["topic"]})
    assert answer.code == Response.TOPIC_NOT_EXIST


def test_groups_are_made_changed_told_and_deleted(asker: Any) -> None:
    said = {"groupName": "made", "retryMaxTimes": 3, "consumeBroadcastEnable": False,
            "groupRetryPolicy": {"type": "CUSTOMIZED"}, "attributes": {}}  # fmt: skip
    body = json.dumps(said).encode()
    answer = asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == Response.SUCCESS, answer.remark
    body = json.dumps({"groupConfigList": [said | {"groupName": "more"}]}).encode()
    answer = asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)
    assert answer.code == Response.SUCCESS, answer.remark
    found = json.loads(asker.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "made"}).body)
    assert (found["groupName"], found["retryMaxTimes"]) == ("made", 3)
    assert found["consumeBroadcastEnable"] is False and found["consumeEnable"] is True
    answer = asker.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {"made", "more"} <= json.loads(answer.body)["subscriptionGroupTable"].keys()
    for _ in range(2):
        answer = asker.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "made"})
        assert answer.code == Response.SUCCESS, answer.remark
    answer = asker.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "made"})
    assert answer.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"[")
    assert answer.code == Response.SYSTEM_ERROR
    answer = asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, b"{}")
    assert answer.code == Response.SYSTEM_ERROR


def test_a_place_of_a_queue_without_a_message_has_no_store_time(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(3)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    reput = broker.start(Reput)
    while reput.work():
        pass
    messages = broker.stored("orders", 0)
    with open(broker.paths.queue("orders", 0) / segment_name(0), "r+b") as file:
        file.seek(len(BLANK_ENTRY))
        file.write(BLANK_ENTRY)
    reader = QueueReader(broker.config, broker.run, broker.positions)
    services: Any = SimpleNamespace(queues=reader)
    first_ms, _, last_ms = (each.store_timestamp_ms for each in messages)
    found = [stored_ms(services, "orders", 0, offset) for offset in range(-1, 4)]
    assert found == [0, first_ms, 0, last_ms, 0] and first_ms > 1
    assert stored_ms(services, "orders", 1, 0) == stored_ms(services, "others", 0, 0) == 0
    reader.close()


def test_a_long_list_of_groups_is_set_and_of_one_that_is_refused_the_error_told(
    asker: Any,
) -> None:
    names = [f"many-{number}" for number in range(AT_ONCE + 2)]

    def set_all(*names: str) -> Any:
        body = json.dumps({"groupConfigList": [{"groupName": name} for name in names]}).encode()
        return asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)

    assert set_all(*names).code == Response.SUCCESS
    answer = asker.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert {*names} <= json.loads(answer.body)["subscriptionGroupTable"].keys()
    assert set_all("a", "no name", "b").code == Response.INVALID_PARAMETER
    assert set_all().code == Response.SUCCESS


@pytest.mark.parametrize("number", [1 << 31, 1 << 63, 1 << 64, 1 << 70])
def test_a_number_that_is_too_large_is_refused_and_the_next_request_is_served(
    gateway: Any, asker: Any, number: int
) -> None:
    groups = json.dumps({"groupName": "huge", "retryQueueNums": number}).encode()
    topics = {"topicConfigList": [{"topicName": "huge", "writeQueueNums": number}]}
    for code, body in (
        (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, groups),
        (Request.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps(topics).encode()),
    ):
        answer = asker.ask(code, {}, body)
        assert answer.code != Response.SUCCESS and answer.remark
    filled(gateway, asker, "not-huge")
    reset = {"group": "huge", "topic": "not-huge", "timestamp": -1, "queueId": 0}
    if number >= 1 << 63:
        answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"offset": number})
        assert answer.code != Response.SUCCESS and answer.remark
    assert asker.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_a_client_that_is_a_producer_of_very_many_groups_is_kept_with_some(
    peer: Any, asker: Any, gateway: Any
) -> None:
    def beat(*numbers: int) -> set[str]:
        """What is kept of these groups."""
        groups = [{"groupName": f"many-{number}"} for number in numbers]
        body = {"clientID": "many", "producerDataSet": groups, "consumerDataSet": []}
        answer = connection.ask(Request.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code == Response.SUCCESS, answer.remark
        told = json.loads(asker.ask(Request.GET_ALL_PRODUCER_INFO).body)["data"]
        return {group for group in told if group.startswith("many-")}

    connection = peer()
    first = beat(*range(64))
    assert len(first) == 64
    assert beat(*reversed(range(100))) == first, "what it is asked of stays"
    assert beat(*range(1, 100)) == first - {"many-0"} | {"many-64"}
    said = gateway.said.read_text()
    assert said.count("client 'many' is a producer of 100 groups") == 1, said


def test_a_heartbeat_says_all_groups_that_a_client_is_a_producer_of(peer: Any, asker: Any) -> None:
    client = peer()

    def beat(client_id: str, *groups: str) -> set[str]:
        """Its groups, as the broker tells them then."""
        said = {"clientID": client_id, "producerDataSet": [{"groupName": g} for g in groups]}
        body = json.dumps(said).encode()
        assert client.ask(Request.HEART_BEAT, {}, body).code == Response.SUCCESS
        told = json.loads(asker.ask(Request.GET_ALL_PRODUCER_INFO).body)["data"]
        return {group for group in told if group.startswith("beat-")}

    assert beat("p@1", "beat-a", "beat-b") == {"beat-a", "beat-b"}
    assert beat("p@1", "beat-b", "beat-c") == {"beat-b", "beat-c"}
    assert beat("p@2", "beat-c") == {"beat-c"}
    assert beat("p@2") == set()
    assert beat("p@1", "beat-a") == {"beat-a"}


def test_members_and_producers_are_told_by_how_they_are_connected(
    gateway: Any, peer: Any, asker: Any
) -> None:
    filled(gateway, asker, "told-of")
    joined = member(peer, "readers", "told-of")
    address = "%s:%d" % joined.socket.getsockname()  # noqa: UP031 - a pair
    answer = asker.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
    found = json.loads(answer.body)
    row = {"clientId": "c@1", "clientAddr": address, "language": "JAVA", "version": 399}
    assert found["connectionSet"] == [row]
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    subscribed = found["subscriptionTable"]["told-of"]
    assert (subscribed["subString"], subscribed["tagsSet"]) == ("A || B", ["A", "B"])
    assert subscribed["codeSet"] == [65, 66] and subscribed["subVersion"] == 7
    fields = {"group": "readers", "topic": "told-of"}
    answer = asker.ask(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, fields)
    assert json.loads(answer.body)["subscriptionData"]["subString"] == "A || B"
    answer = asker.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "readers-senders"})
    assert json.loads(answer.body)["connectionSet"] == [row]
    table = json.loads(asker.ask(Request.GET_ALL_PRODUCER_INFO).body)["data"]
    assert table["readers-senders"][0]["remoteIP"] == f"/{address}"
    answer = asker.ask(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "told-of"})
    assert json.loads(answer.body) == {"groupList": ["readers"]}
    joined.send(Request.UNREGISTER_CLIENT, {"clientID": "c@1", "producerGroup": "readers-senders"})
    joined.socket.close()
    await_true(
        lambda: asker.ask(
            Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}
        ).code == Response.CONSUMER_NOT_ONLINE
    )  # fmt: skip
    answer = asker.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "readers-senders"})
    assert answer.code == Response.SYSTEM_ERROR


def test_a_lite_pull_consumer_is_told_of_as_it_has_registered(
    gateway: Any, peer: Any, asker: Any
) -> None:
    filled(gateway, asker, "pulled-of")
    how = {"consumeType": "CONSUME_ACTIVELY", "consumeFromWhere": "CONSUME_FROM_TIMESTAMP"}
    joined = member(peer, "pullers", "pulled-of", **how)
    answer = asker.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "pullers"})
    found = json.loads(answer.body)
    assert {name: found[name] for name in how} == how
    joined.socket.close()


def test_offsets_of_a_group_are_set_told_and_copied(gateway: Any, asker: Any) -> None:
    filled(gateway, asker, "counted")
    body = json.dumps({"groupName": "counting"}).encode()
    asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    reset = {"group": "counting", "topic": "counted", "isForce": "true"}

    def table() -> dict[str, tuple[int, int]]:
        answer = asker.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "counting"})
        assert answer.code == Response.SUCCESS, answer.remark
        rows = json.loads(answer.body)["offsetTable"]
        return {at: (row["consumerOffset"], row["brokerOffset"]) for at, row in rows.items()}

    for more, offsets in (
        ({"timestamp": 0}, (0, 0)),
        ({"timestamp": -1}, (2, 2)),
        ({"timestamp": -1, "queueId": 1, "offset": 1}, (2, 1)),
    ):
        answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | more)
        assert answer.code == Response.SUCCESS, answer.remark
        assert table() == {key("counted", q): (offsets[q], 2) for q in range(2)}
    assert json.loads(answer.body) == {"offsetTable": {key("counted", 1): 1}}
    for beyond in ({"offset": -5}, {"offset": 4}, {"queueId": 7, "offset": 9}):
        answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | more | beyond)
        assert answer.code == Response.SYSTEM_ERROR and answer.remark, beyond
        assert table()[key("counted", 1)] == (1, 2)
    past = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | more | {"offset": 3})
    assert json.loads(past.body) == {"offsetTable": {key("counted", 1): 2}}, "it begins at the end"
    assert table()[key("counted", 1)] == (2, 2)
    answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | more)
    assert table()[key("counted", 1)] == (1, 2)
    answer = asker.ask(Request.QUERY_TOPICS_BY_CONSUMER, {"group": "counting"})
    assert json.loads(answer.body)["topicList"] == ["counted"]
    clone = {"srcGroup": "counting", "destGroup": "copied", "topic": "counted"}
    assert asker.ask(Request.CLONE_GROUP_OFFSET, clone).code == Response.SUCCESS
    answer = asker.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "copied"})
    rows = json.loads(answer.body)["offsetTable"]
    assert {at: row["consumerOffset"] for at, row in rows.items()} == {
        key("counted", 0): 2, key("counted", 1): 1,
    }  # fmt: skip
    lists = json.loads(asker.ask(Request.GET_BROKER_CONSUME_STATS).body)
    (mine,) = [each["copied"] for each in lists["consumeStatsList"] if "copied" in each]
    assert mine[0]["offsetTable"].keys() == rows.keys() and lists["totalDiff"] >= 1
    fields = {"group": "counting", "topic": "counted"}
    spans = json.loads(asker.ask(Request.QUERY_CONSUME_TIME_SPAN, fields).body)
    first, second = spans["consumeTimeSpanSet"]
    assert first["delayTime"] == 0 and first["consumeTimeStamp"] == first["maxTimeStamp"]
    assert second["delayTime"] > 0
    assert second["minTimeStamp"] == second["consumeTimeStamp"] <= second["maxTimeStamp"]
    answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"group": "none"} | more)
    assert answer.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"topic": "none"} | more)
    assert answer.code == Response.TOPIC_NOT_EXIST


def test_a_group_is_told_of_in_topics_that_it_has_not_begun_and_not_in_those_it_has_left(
    gateway: Any, peer: Any, asker: Any
) -> None:
    filled(gateway, asker, "begun-not")
    filled(gateway, asker, "left-now")

    def rows(**named: str) -> dict[str, int]:
        answer = asker.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "leavers"} | named)
        table = json.loads(answer.body)["offsetTable"]
        return {at: row["consumerOffset"] for at, row in table.items()}

    def told_of_all() -> set[str]:
        """The topics of the group, of those that all groups have."""
        told = json.loads(asker.ask(Request.GET_BROKER_CONSUME_STATS).body)["consumeStatsList"]
        (mine,) = [each["leavers"] for each in told if "leavers" in each]
        return {json.loads(at)["topic"] for stats in mine for at in stats["offsetTable"]}

    begun_not, left = ({key(topic, q): 0 for q in range(2)} for topic in ("begun-not", "left-now"))
    assert rows(topic="begun-not") == begun_not, "a group without members wants anything"
    assert rows(topic="no-topic") == {}
    joined = member(peer, "leavers", "begun-not")
    reset = {"group": "leavers", "topic": "left-now", "timestamp": 0}
    assert asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Response.SUCCESS
    assert rows() == rows(topic="left-now") == {} and told_of_all() == set()
    assert rows(topic="begun-not") == begun_not
    assert rows(topicList="begun-not;left-now;no-topic") == begun_not | left
    joined.socket.close()
    await_true(lambda: rows() == left and told_of_all() == {"left-now"})


def test_a_group_is_deleted_while_it_is_used_and_with_its_offsets_where_that_is_asked_for(
    gateway: Any, peer: Any, asker: Any
) -> None:
    filled(gateway, asker, "used")
    joined = member(peer, "using", "used")
    reset = {"group": "using", "topic": "used", "timestamp": -1}
    assert asker.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Response.SUCCESS
    topics = {"group": "using"}

    def read() -> list[str]:
        found: list[str] = json.loads(asker.ask(Request.QUERY_TOPICS_BY_CONSUMER, topics).body)[
            "topicList"
        ]
        return found

    for fields in ({}, {"cleanOffset": "true"}):
        answer = asker.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "using"} | fields)
        assert answer.code == Response.SUCCESS and read() == ["used"], answer.remark
    joined.socket.close()
    consumers = {"consumerGroup": "using"}
    await_true(
        lambda: (
            asker.ask(Request.GET_CONSUMER_CONNECTION_LIST, consumers).code
            == Response.CONSUMER_NOT_ONLINE
        )
    )
    assert asker.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "using"}).code == 0
    assert asker.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, topics).code == 26
    assert read() == ["used"], "its offsets are kept"
    clean = {"groupName": "using", "cleanOffset": "true"}
    assert asker.ask(Request.DELETE_SUBSCRIPTIONGROUP, clean).code == Response.SUCCESS
    assert read() == []


def test_a_member_is_asked_by_way_of_the_broker(gateway: Any, peer: Any, asker: Any) -> None:
    filled(gateway, asker, "forwarded")
    joined = member(peer, "asked", "forwarded", "c@2")
    fields = {"consumerGroup": "asked", "clientId": "c@2"}
    number = asker.send(Request.GET_CONSUMER_RUNNING_INFO, fields | {"jstackEnable": "false"})
    push = joined.hear()
    while push.code != Request.GET_CONSUMER_RUNNING_INFO:
        push = joined.hear()
    assert push.fields["clientId"] == "c@2" and not push.is_oneway
    # an answer to nothing that was asked, and then the right one
    joined.socket.sendall(encode_command(Command(0, push.opaque + 9, {}, b"other", 1)))
    joined.socket.sendall(encode_command(Command(0, push.opaque, {}, b'{"properties":{}}', 1)))
    answer = asker.hear()
    assert (answer.opaque, answer.code, answer.body) == (number, 0, b'{"properties":{}}')

    entries = asker.ask(
        Request.QUERY_CONSUME_QUEUE,
        {"topic": "forwarded", "queueId": 0, "index": 1, "count": 9, "consumerGroup": "asked"},
    )
    queue = json.loads(entries.body)
    assert (queue["minQueueIndex"], queue["maxQueueIndex"]) == (0, 2)
    assert queue["subscriptionData"]["subString"] == "A || B" and "filterData" not in queue
    fields_of_nobody = {"topic": "forwarded", "queueId": 0, "index": 1, "count": 9}
    entries = asker.ask(Request.QUERY_CONSUME_QUEUE, fields_of_nobody | {"consumerGroup": "away"})
    assert json.loads(entries.body)["filterData"] == "away@forwarded is not online!"
    entries = asker.ask(Request.QUERY_CONSUME_QUEUE, fields_of_nobody)
    assert "filterData" not in json.loads(entries.body)
    (entry,) = queue["queueData"]
    assert entry["tagsCode"] == 65
    port = int(gateway.remoting.rpartition(":")[2])
    message_id = f"7F000001{port:08X}{entry['physicOffset']:016X}"
    asker.send(Request.CONSUME_MESSAGE_DIRECTLY, fields | {"msgId": message_id})
    push = joined.hear()
    assert push.code == Request.CONSUME_MESSAGE_DIRECTLY and push.body[88:89] == b"2"
    assert len(push.body) == entry["physicSize"]
    joined.socket.close()
    answer = asker.hear()
    assert answer.code == Response.CONSUME_MSG_TIMEOUT, "it has gone without an answer"
    answer = asker.ask(Request.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == Response.SYSTEM_ERROR and "c@2" in answer.remark


def test_how_the_broker_does_is_told_in_rocketmqs_words(gateway: Any, asker: Any) -> None:
    filled(gateway, asker, "measured")
    table = json.loads(asker.ask(Request.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert int(table["commitLogMaxOffset"]) == gateway.status()["positions"]["wrote"]
    assert abs(int(table["earliestMessageTimeStamp"]) - time.time() * 1000) < 3_600_000
    for name in ("putTps", "getTotalTps", "getTransferredTps"):
        assert [float(each) >= 0 for each in table[name].split(" ")] == [True] * 3
    lines = asker.ask(Request.GET_BROKER_CONFIG).body.decode().splitlines()
    config = dict(line.split("=", 1) for line in lines)
    assert config["brokerName"] == BROKER and config["flushDiskType"] == "SYNC_FLUSH"
    assert config["mappedFileSizeCommitLog"] == str(1 << 20) and config["fileReservedTime"] == "72"
    assert config["listenPort"] == gateway.remoting.rpartition(":")[2]
    answer = asker.ask(Request.UPDATE_BROKER_CONFIG, {}, b"flushDiskType=ASYNC_FLUSH")
    assert answer.code == Response.INVALID_PARAMETER and "flushDiskType" in answer.remark
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "measured"}
    deadline = time.monotonic() + 60  # queues follow the log
    while True:
        found = json.loads(asker.ask(Request.VIEW_BROKER_STATS_DATA, stats).body)
        if [found[at]["sum"] for at in ("statsMinute", "statsHour", "statsDay")] == [4, 4, 4]:
            break
        assert time.monotonic() < deadline, found
    stats["statsName"] = "GROUP_PUT_NUMS"
    answer = asker.ask(Request.VIEW_BROKER_STATS_DATA, stats)
    assert answer.code == Response.SYSTEM_ERROR
    for code in (
        Request.CLEAN_EXPIRED_CONSUMEQUEUE, Request.CLEAN_UNUSED_TOPIC,
        Request.DELETE_EXPIRED_COMMITLOG,
    ):  # fmt: skip
        assert asker.ask(code).code == Response.SUCCESS
    assert json.loads(asker.ask(Request.GET_BROKER_HA_STATUS).body)["master"] is True
    for code in (Request.GET_ALL_CONSUMER_OFFSET, Request.GET_ALL_DELAY_OFFSET):
        assert "offsetTable" in json.loads(asker.ask(code).body)


@pytest.mark.parametrize("step_ms", [5000, 60_000])
def test_a_rate_is_of_the_time_that_it_says(step_ms: int) -> None:
    total = [100]
    rate = Rate(lambda: total[0], 0)
    for at in range(step_ms, 3_600_001, step_ms):
        total[0] += step_ms // 1000  # one a second
        rate.sample(at, 1)
    assert rate.in_run == 3600 and rate.within(600) == 600 and rate.within(86_400) == 3600
    assert rate.rates().split(" ")[1:] == ["1.0", "1.0"]
    rate.sample(3_600_001, 2)
    assert (rate.today, rate.yesterday) == (3600, 0)
    total[0] += 5
    rate.sample(3_600_002, 3)
    assert (rate.today, rate.yesterday) == (3605, 3600)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Request.GET_CONSUME_STATS, {"consumerGroup": "crowded"}),
        (Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "crowded"}),
        (Request.QUERY_CONSUMER_OFFSET, {"consumerGroup": "crowded", "topic": "t", "queueId": 0}),
    ],
)
def test_what_many_ask_at_the_same_moment_is_answered_to_all(
    peer: Any, code: int, fields: dict[str, object]
) -> None:
    asker = peer()
    group = json.dumps({"groupName": "crowded"}).encode()
    assert asker.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
    texts = {key: str(value) for key, value in fields.items()}
    questions = b"".join(encode_command(Command(code, n, texts)) for n in range(MANY))

    def all_are_answered() -> bool:
        """On a busy machine the coordinator may be late for all of them."""
        asker.socket.sendall(questions)
        answers = [asker.hear() for _ in range(MANY)]
        assert {each.opaque for each in answers} == set(range(MANY))
        return all(each.code in (Response.SUCCESS, Response.QUERY_NOT_FOUND) for each in answers)

    await_true(all_are_answered)
