"""Bodies of JSON: the golden ones, the habits of each client, and any bytes at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.bodies import (
    BrokerData,
    ConsumerBody,
    ConsumerList,
    Heartbeat,
    LockBody,
    Locked,
    QueueBody,
    QueueData,
    TopicRoute,
    bare_keys,
    read_body,
    write_body,
)
from penstock.shared.errors import ProtocolError

HEARTBEAT = (
    b'{"clientID":"10.0.0.1@77#1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET"'
    b',"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG",'
    b'"subString":"TagA || TagB","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"orders"}],'
    b'"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],'
    b'"withoutSub":false}'
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.9:10911","1":"10.0.0.10:10911"},"brokerName":"b",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
    b'[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
OLD_ROUTE = ROUTE.replace(b'"0":', b"0:").replace(b'"1":', b"1:")


def test_a_heartbeat_of_java() -> None:
    found = read_body(HEARTBEAT, Heartbeat)
    (group,) = found.consumer_data_set or ()
    assert (found.client_id, group.group_name) == ("10.0.0.1@77#1", "CG")
    assert (group.model, group.start) == ("clustering", "last")
    (wanted,) = group.subscription_data_set
    assert (wanted.sub_string, wanted.sub_version) == ("TagA || TagB", 1700000000000)


def test_a_heartbeat_of_cpp_has_numbers_for_words_and_words_for_numbers() -> None:
    body = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"G",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"12","topic":"t"}]}]}'
    )
    found = read_body(body, Heartbeat)
    (group,) = found.consumer_data_set or ()
    assert (group.model, group.start) == ("broadcasting", "first")
    assert group.subscription_data_set[0].sub_version == 12
    assert found.producer_data_set is None


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (0, "CONSUME_ACTIVELY"),
        (1, "CONSUME_PASSIVELY"),
        (2, "CONSUME_POP"),
        (3, "CONSUME_PASSIVELY"),
        (-1, "CONSUME_PASSIVELY"),
        ("CONSUME_ACTIVELY", "CONSUME_ACTIVELY"),
        ("CONSUME_ODDLY", "CONSUME_PASSIVELY"),
    ],
)
def test_how_a_group_consumes_has_javas_names(said: str | int, name: str) -> None:
    assert ConsumerBody("G", consume_type=said).consume_type_name == name


def test_a_route_has_the_golden_bytes_for_new_clients_and_for_old_ones() -> None:
    addresses = {0: "10.0.0.9:10911", 1: "10.0.0.10:10911"}
    route = TopicRoute(
        [BrokerData(addresses, "b", "DefaultCluster")], {}, [QueueData("b", 6, 4, 0, 4)]
    )
    assert write_body(route) == ROUTE
    assert bare_keys(write_body(route)) == OLD_ROUTE


def test_locks_and_members_have_the_golden_bytes() -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"CG","mqSet":[{"brokerName":"b","queueId":0,'
        b'"topic":"orders"}],"onlyThisBroker":false}'
    )
    queues = [QueueBody("b", 0, "orders")]
    assert read_body(body, LockBody) == LockBody("c", "CG", queues)
    assert write_body(Locked(queues)) == (
        b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"orders"}]}'
    )
    assert write_body(ConsumerList(["10.0.0.1@77#1"])) == b'{"consumerIdList":["10.0.0.1@77#1"]}'


@given(st.dictionaries(st.text(), st.text()))
def test_bare_keys_change_no_text(table: dict[str, str]) -> None:
    import msgspec

    raw = msgspec.json.encode({"table": list(table.items())})
    assert bare_keys(raw) == raw


@given(st.sampled_from([Heartbeat, LockBody, TopicRoute]), st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(kind: type, raw: bytes) -> None:
    with suppress(ProtocolError):
        read_body(raw, kind)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"clientID":' + b"9" * 5000 + b"}", b""])
def test_a_body_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_body(raw, Heartbeat)
