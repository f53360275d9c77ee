"""Which brokers and topics a name server knows, against a plain account of what was said."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.bodies import QueueData
from penstock.remoting.command import MAX_FRAME_BYTES
from penstock.remoting.naming.registration import (
    MOST_TOPICS,
    Registration,
    decode_registration,
    encode_registration,
)
from penstock.remoting.naming.routes import Routes
from penstock.remoting.naming.words import BrokerFields, DataVersion, RegisterFields
from penstock.shared.errors import ProtocolError
from penstock.shared.messaging.topic_rules import TopicConfig

EXPIRY_MS = 120_000
V1, V2 = DataVersion(1, 0, 5), DataVersion(2, 0, 6)


def fields(name: str, number: int = 0, address: str = "", **more: object) -> RegisterFields:
    return RegisterFields(name, address or f"{name}{number}:1", "C", number, **more)  # type: ignore[arg-type]  # whatever a test says


def said(*topics: str, version: DataVersion = V1, queues: int = 4) -> Registration:
    return Registration({topic: TopicConfig(queues, queues) for topic in topics}, version)


_steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "heard", "gone", "wait"]),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.sets(st.sampled_from("tuvwx"), min_size=2),
    ),
    max_size=30,
)


@given(_steps)
def test_a_topic_is_where_masters_have_said_so_and_have_not_gone(
    steps: list[tuple[str, str, int, set[str]]],
) -> None:
    routes, now_ms = Routes(), 0
    heard: dict[tuple[str, int], int] = {}
    connections = {(name, number): object() for name in "abc" for number in range(3)}
    topics: dict[str, set[str]] = {}

    def forget(broker: tuple[str, int]) -> None:
        if heard.pop(broker, None) is not None and not any(n == broker[0] for n, _ in heard):
            topics.pop(broker[0], None)

    for number, (step, name, broker_id, names) in enumerate(steps):
        broker = name, broker_id
        said_by = BrokerFields(name, f"{name}{broker_id}:1", "C", broker_id)
        if step == "register":
            one = Registration({t: TopicConfig(1, 1) for t in names}, DataVersion(number))
            acting = {"enable_acting_master": False}
            assert routes.register(
                fields(name, broker_id, **acting), one, connections[broker], now_ms
            )
            heard[broker] = now_ms
            if broker_id == min(n for other, n in heard if other == name):
                topics.setdefault(name, set()).update(names)
        elif step == "unregister":
            routes.unregister("C", said_by.broker_addr, name)
            forget(broker)
        elif step == "heard" and broker in heard:
            routes.heard(said_by, now_ms)
            heard[broker] = now_ms
        elif step == "gone":
            routes.gone(connections[broker])
            forget(broker)
        elif step == "wait":
            now_ms += EXPIRY_MS // 2
            routes.expire(now_ms)
            for each in [b for b, at in heard.items() if now_ms - at > EXPIRY_MS]:
                forget(each)
        assert routes.topics() == sorted(set().union(*topics.values()))
        for topic in "tuvwx":
            brokers, queues = routes.topic(topic)
            assert {each.broker_name for each in queues} == {
                n for n in topics if topic in topics[n]
            }
            for each in brokers:
                assert set(each.broker_addrs) == {i for n, i in heard if n == each.broker_name}


def test_a_broker_that_is_new_may_not_begin_with_a_change_of_one_topic() -> None:
    routes = Routes()
    assert routes.register(fields("a"), said("t"), None, 0) is None
    assert routes.topics() == [] and routes.cluster_info().broker_addr_table == {}
    assert routes.register(fields("a"), said("t", "u"), None, 0) is not None
    assert routes.register(fields("a"), said("v", version=V2), None, 0) is not None
    assert routes.topics() == ["t", "u", "v"]


def test_topics_are_read_again_when_their_version_has_changed_and_only_then() -> None:
    routes = Routes()
    routes.register(fields("a"), said("t", "u"), None, 0)
    assert routes.set_write_perm("a", False) == 2
    routes.register(fields("a"), said("t", "u", queues=8), None, 0)
    assert [(q.perm, q.write_queue_nums) for q in routes.topic("t")[1]] == [(4, 4)]
    routes.delete_topic("u")
    routes.register(fields("a"), said("t", "u"), None, 0)
    assert routes.topics() == ["t", "u"], "what it has is there again"
    routes.register(fields("a"), said("t", "u", version=V2, queues=8), None, 0)
    assert [(q.perm, q.write_queue_nums) for q in routes.topic("t")[1]] == [(6, 8)]


def test_of_two_with_one_id_the_newer_counts() -> None:
    routes = Routes()
    new, old = DataVersion(0, 9, 0), DataVersion(0, 8, 0)
    routes.register(fields("a", address="x:1"), said("t", "u", version=new), None, 0)
    answer = routes.register(fields("a", address="y:1"), said("v", "w", version=old), None, 0)
    assert answer is not None
    assert routes.addresses("a") == {0: "x:1"} and routes.topics() == ["t", "u"]
    routes.register(fields("a", address="z:1"), said("v", "w", version=new), None, 0)
    assert routes.addresses("a") == {0: "z:1"}


def test_one_that_is_always_there_is_neither_replaced_nor_removed_by_a_connection() -> None:
    routes, other = Routes(), object()
    routes.register(fields("own", address="x:1"), said("t", "u"), None, 0)
    before = routes.topic("t"), routes.cluster_info()
    for claim in (
        fields("own", address="y:1"),
        fields("own", -1, address="y:1", enable_acting_master=True),
        fields("own", 5, address="x:1"),
        fields("other", address="x:1"),
        fields("own", address="x:1"),
    ):
        routes.register(claim, said("t", "v", version=V2, queues=9), other, 0)
    for cluster, name in (("C", "own"), ("D", "own"), ("C", "other")):
        routes.unregister(cluster, "x:1", name)
    routes.unregister("C", "y:1", "own")
    routes.gone(other)
    routes.expire(10 * EXPIRY_MS)
    assert (routes.topic("t"), routes.cluster_info()) == before and routes.topics() == ["t", "u"]


def test_a_slave_is_told_its_master_and_has_no_topics_while_there_is_one() -> None:
    routes = Routes()
    routes.register(fields("a", ha_server_addr="ha:2"), said("t", "u"), None, 0)
    answer = routes.register(fields("a", 1), said("v", "w"), None, 0)
    assert answer is not None and (answer.master_addr, answer.ha_server_addr) == ("a0:1", "ha:2")
    assert routes.topics() == ["t", "u"]
    routes.register(fields("a", 2, address="a1:1"), said("v", "w"), None, 0)
    assert routes.addresses("a") == {0: "a0:1", 2: "a1:1"}, "one address has one id"


def test_a_route_that_somebody_registers_is_of_brokers_that_are_there() -> None:
    routes = Routes()
    routes.register(fields("a"), said("t", "u"), None, 0)
    routes.register_topic("v", [QueueData("a", 6, 1, 0, 1)])
    routes.register_topic("w", [QueueData("a", 6, 1, 0, 1), QueueData("gone", 6, 1, 0, 1)])
    assert routes.topics() == ["t", "u", "v"] == routes.topics("C")
    assert routes.topics("other") == []
    routes.delete_topic("t", "other")
    routes.delete_topic("u", "C")
    assert routes.topics() == ["t", "v"]


_configs = st.builds(
    TopicConfig, st.integers(0, 9), st.integers(0, 9), st.integers(0, 7),
    attributes=st.dictionaries(st.text("ab.+", min_size=1), st.text("xyz")),
)  # fmt: skip


@given(st.dictionaries(st.text("abc%_-", min_size=1), _configs), st.integers(0, 99))
def test_both_forms_of_a_registration_are_read_alike(
    topics: dict[str, TopicConfig], counter: int
) -> None:
    one = Registration(topics, DataVersion(counter, 0, 7))
    assert decode_registration(encode_registration(one), False, 479) == one

    def piece(text: str) -> bytes:
        return struct.pack(">i", len(text.encode())) + text.encode()

    raw = piece(msgspec.json.encode(one.version).decode())
    raw += struct.pack(">i", len(topics))
    for name, each in topics.items():
        words = f"{name} {each.read_queues} {each.write_queues} {each.perm} SINGLE_TAG "
        raw += piece(words + msgspec.json.encode(each.attributes).decode())
    raw += piece("[]") + struct.pack(">i", 0)
    assert decode_registration(zlib.compress(raw), True, 479) == one


def test_what_javas_brokers_send_is_read() -> None:
    """By the form that RocketMQ's JSON has: numbers are keys, and old brokers send less."""
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
        b'"stateVersion":0,"timestamp":17},"topicConfigTable":{"t":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"t","topicSysFlag":1,'
        b'"writeQueueNums":4}},"topicQueueMappingInfoMap":{"s":{"currIdMap":{0:0,1:1}}}}}'
    )
    found = decode_registration(body, False, 479)
    assert found.topics["t"] == TopicConfig(4, 4, sys_flag=1) and found.version.counter == 3
    old = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"t":{"perm":4}}}'
    found = decode_registration(old, False, 36)
    assert found.topics["t"] == TopicConfig(16, 16, 4) and found.version.timestamp == 2
    assert decode_registration(b"", True, 479) == Registration()


@pytest.mark.parametrize("is_compressed", [False, True])
@given(data=st.binary(max_size=80))
def test_bytes_of_no_meaning_are_refused(is_compressed: bool, data: bytes) -> None:
    for raw in (data, zlib.compress(data)):
        try:
            decode_registration(raw, is_compressed, 479)
        except ProtocolError:
            continue


@pytest.mark.parametrize("key", ["perm", "readQueueNums", "writeQueueNums", "topicSysFlag"])
def test_a_registration_holds_nothing_that_a_route_could_not_be_written_with(key: str) -> None:
    for name, number in (("t", 1 << 31), ("t", 1 << 64), ("\ud800", 4)):
        wrapper = {"topicConfigTable": {name: {key: number}}}
        raw = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
        with pytest.raises(ProtocolError):
            decode_registration(raw, False, 479)
    version = b'{"counter":1}'
    for line in (f"t {1 << 31} 4 6 SINGLE_TAG".encode(), b"t \xc2\xb2 4 6 SINGLE_TAG"):
        pieces = struct.pack(">i", len(version)), version, struct.pack(">ii", 1, len(line)), line
        raw = b"".join(pieces)
        with pytest.raises(ProtocolError):
            decode_registration(zlib.compress(raw), True, 479)


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 1 << 28])
def test_a_small_body_does_not_become_a_large_one(size: int) -> None:
    with pytest.raises(ProtocolError, match="more than"):
        decode_registration(zlib.compress(bytes(size)), True, 479)


def test_a_broker_has_as_many_topics_as_others_can_wait_for() -> None:
    """Of lines as of JSON: a frame of a few MB held up all clients and took gigabytes."""
    for count in (MOST_TOPICS, MOST_TOPICS + 1):
        lines = [b"%x 1 1 6 A" % number for number in range(count)]
        raw = struct.pack(">i", 2) + b"{}" + struct.pack(">i", count)
        raw += b"".join([struct.pack(">i", len(line)) + line for line in lines])
        table: dict[str, Any] = {f"{number:x}": {} for number in range(count)}
        body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
        # and once more with a key that is a bare number
        odd = body[:-1] + b', "mapped": {0: 0}}'
        for said, is_compressed in ((zlib.compress(raw), True), (body, False), (odd, False)):
            if count == MOST_TOPICS:
                assert len(decode_registration(said, is_compressed, 479).topics) == count
            else:
                with pytest.raises(ProtocolError, match=f"{count} topics"):
                    decode_registration(said, is_compressed, 479)
