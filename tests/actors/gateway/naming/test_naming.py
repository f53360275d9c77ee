"""A broker's gateway as a name server for other brokers, and `LoneNameServer` with none of its own.

What is asked is the same; so is what both answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.remoting.codes import Request, Response
from penstock.remoting.naming.registration import Registration, encode_registration
from penstock.remoting.naming.words import DataVersion
from penstock.shared.messaging.topic_rules import TopicConfig

BROKER = {"brokerName": "java", "brokerAddr": "10.0.0.9:10911", "clusterName": "J", "brokerId": 0}
TOPICS = Registration({"x": TopicConfig(4, 4), "y": TopicConfig(2, 3)}, DataVersion(1, 0, 5))


@pytest.fixture
def lone(lone_name_server: Callable[..., Any], tmp_path: Path) -> Any:
    return lone_name_server(tmp_path)


@pytest.fixture(params=["gateway", "alone"])
def connect(request: pytest.FixtureRequest, new_peer: Callable[[str], Any]) -> Callable[[], Any]:
    """A new connection to the one or the other."""
    if request.param == "gateway":
        endpoint = request.getfixturevalue("gateway").name_server
    else:
        endpoint = request.getfixturevalue("lone").endpoint
    return lambda: new_peer(endpoint)


def test_a_broker_is_there_from_its_registration_to_the_end_of_its_connection(connect: Any) -> None:
    broker, client = connect(), connect()
    answer = broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))
    assert answer.code == Response.SUCCESS, answer.remark
    answer = client.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "y"})
    route = json.loads(answer.body)
    assert route["brokerDatas"] == [
        {
            "brokerAddrs": {"0": "10.0.0.9:10911"},
            "brokerName": "java",
            "cluster": "J",
            "enableActingMaster": False,
        }
    ]
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (2, 3, 6)
    answer = client.ask(Request.GET_TOPICS_BY_CLUSTER, {"cluster": "J"})
    assert json.loads(answer.body) == {"topicList": ["x", "y"]}
    answer = client.ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert {"J", "java"} <= set(json.loads(answer.body)["topicList"])
    broker.socket.close()
    # the end is heard of in its own time
    while client.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "y"}).code == Response.SUCCESS:
        pass
    info = json.loads(client.ask(Request.GET_BROKER_CLUSTER_INFO).body)
    assert "J" not in info["clusterAddrTable"] and "java" not in info["brokerAddrTable"]


def test_a_broker_that_unregisters_is_gone_at_once(connect: Any) -> None:
    broker = connect()
    broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))
    version = b'{"counter":1,"stateVersion":0,"timestamp":5}'
    answer = broker.ask(Request.QUERY_DATA_VERSION, BROKER, version)
    assert answer.fields["changed"] == "false" and json.loads(answer.body)["counter"] == 1
    assert broker.ask(Request.BROKER_HEARTBEAT, BROKER).code == Response.SUCCESS
    group = broker.ask(Request.GET_BROKER_MEMBER_GROUP, {"clusterName": "J", "brokerName": "java"})
    assert json.loads(group.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": "10.0.0.9:10911"}
    assert broker.ask(Request.UNREGISTER_BROKER, BROKER).code == Response.SUCCESS
    answer = broker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"})
    assert answer.code == Response.TOPIC_NOT_EXIST and "x" in answer.remark
    answer = broker.ask(Request.QUERY_DATA_VERSION, BROKER, version)
    assert answer.fields["changed"] == "true" and not answer.body


def test_producers_leave_a_broker_and_come_back(connect: Any) -> None:
    broker = connect()
    broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))

    def perm() -> int:
        route = json.loads(broker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"}).body)
        return int(route["queueDatas"][0]["perm"])

    answer = broker.ask(Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "java"})
    assert answer.fields["wipeTopicCount"] == "2" and perm() == 4
    answer = broker.ask(Request.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "java"})
    assert answer.fields["addTopicCount"] == "2" and perm() == 6
    broker.ask(Request.UNREGISTER_BROKER, BROKER)


def test_a_topics_order_stands_in_its_route_where_the_name_server_is_to_say_it(
    lone_name_server: Callable[..., Any], new_peer: Callable[[str], Any], tmp_path: Path
) -> None:
    broker = new_peer(lone_name_server(tmp_path, orders=True).endpoint)
    broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "x", "value": "java:4"}
    assert broker.ask(Request.PUT_KV_CONFIG, order).code == Response.SUCCESS
    routes = {
        topic: json.loads(broker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)
        for topic in ("x", "y")
    }
    assert routes["x"]["orderTopicConf"] == "java:4" and "orderTopicConf" not in routes["y"]
    assert b"orderMessageEnable=true\n" in broker.ask(Request.GET_NAMESRV_CONFIG).body


def test_a_topics_order_is_a_setting_that_brokers_are_told(connect: Any) -> None:
    broker = connect()
    broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "x"}
    assert broker.ask(Request.GET_KV_CONFIG, order).code == Response.QUERY_NOT_FOUND
    assert broker.ask(Request.PUT_KV_CONFIG, order | {"value": "java:4"}).code == Response.SUCCESS
    assert broker.ask(Request.GET_KV_CONFIG, order).fields["value"] == "java:4"
    route = json.loads(broker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"}).body)
    assert "orderTopicConf" not in route
    answer = broker.ask(Request.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
    assert json.loads(answer.body) == {"table": {"x": "java:4"}}
    answer = broker.ask(Request.REGISTER_BROKER, BROKER, encode_registration(TOPICS))
    assert json.loads(answer.body) == {"table": {"x": "java:4"}}, "the broker is told as well"
    assert broker.ask(Request.DELETE_KV_CONFIG, order).code == Response.SUCCESS
    assert broker.ask(Request.GET_KV_CONFIG, order).code == Response.QUERY_NOT_FOUND
    broker.ask(Request.UNREGISTER_BROKER, BROKER)


def test_settings_are_bounded_and_what_is_there_stays(connect: Any) -> None:
    operator = connect()
    large = {"namespace": "bounded", "value": "v" * 30_000}
    codes = [
        operator.ask(Request.PUT_KV_CONFIG, large | {"key": f"{number}"}).code
        for number in range(40)
    ]
    kept = codes.count(Response.SUCCESS)
    assert codes == [Response.SUCCESS] * kept + [Response.INVALID_PARAMETER] * (40 - kept)
    assert 30 < kept < 35
    for number in range(kept):
        key = {"namespace": "bounded", "key": f"{number}"}
        assert len(operator.ask(Request.GET_KV_CONFIG, key).fields["value"]) == 30_000
        assert operator.ask(Request.DELETE_KV_CONFIG, key).code == Response.SUCCESS
    assert operator.ask(Request.PUT_KV_CONFIG, large | {"key": "again"}).code == Response.SUCCESS


def test_a_registration_that_is_bent_is_refused(connect: Any) -> None:
    broker = connect()
    answer = broker.ask(Request.REGISTER_BROKER, BROKER | {"bodyCrc32": 7}, b"{}")
    assert answer.code == Response.SYSTEM_ERROR and "checksum" in answer.remark
    answer = broker.ask(Request.REGISTER_BROKER, BROKER | {"compressed": "true"}, b"no zlib")
    assert answer.code == Response.SYSTEM_ERROR
    answer = broker.ask(Request.REGISTER_BROKER, {"brokerName": "java"}, b"{}")
    assert answer.code == Response.SYSTEM_ERROR and "brokerAddr" in answer.remark
    config = broker.ask(Request.GET_NAMESRV_CONFIG).body.decode()
    assert "listenPort=" in config and "kvConfigPath=" in config
    answer = broker.ask(Request.UPDATE_NAMESRV_CONFIG, {}, b"listenPort=1")
    assert answer.code == Response.INVALID_PARAMETER


def test_an_answer_that_fits_no_frame_ends_its_connection_and_no_name_server(connect: Any) -> None:
    master, slave = connect(), connect()
    # in an answer of JSON each of these takes six bytes
    said = BROKER | {"haServerAddr": "\x01" * (3 << 20)}
    answer = master.ask(Request.REGISTER_BROKER, said, encode_registration(TOPICS), is_binary=True)
    assert answer.code == Response.SUCCESS, answer.remark
    said = BROKER | {"brokerAddr": "10.0.0.9:10912", "brokerId": 1}
    slave.send(Request.REGISTER_BROKER, said, encode_registration(TOPICS))
    assert slave.is_closed()
    assert master.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_settings_outlive_a_name_server_and_an_unknown_code_does_not_end_it(
    tmp_path: Path, new_peer: Callable[[str], Any], lone_name_server: Callable[..., Any]
) -> None:
    setting = {"namespace": "N", "key": "k", "value": "v"}
    for turn in range(2):
        running = lone_name_server(tmp_path)
        peer = new_peer(running.endpoint)
        answer = peer.ask(Request.GET_KV_CONFIG, setting)
        assert answer.fields.get("value") == ("v" if turn else None)
        assert peer.ask(Request.PUT_KV_CONFIG, setting).code == Response.SUCCESS
        assert peer.ask(Request.SEND_MESSAGE).code == Response.REQUEST_CODE_NOT_SUPPORTED
        running.stop()


def test_a_slip_ends_the_connection_that_met_it_and_not_the_name_server(
    lone: Any, new_peer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slip(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(lone.server._server, "answer", slip)
    bad = new_peer(lone.endpoint)
    bad.send(Request.GET_BROKER_CLUSTER_INFO)
    assert bad.is_closed()
    monkeypatch.undo()
    other = new_peer(lone.endpoint)
    assert other.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    assert any("ZeroDivisionError" in each for each in lone.said)
