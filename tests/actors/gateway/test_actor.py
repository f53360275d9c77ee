"""A broker's gateway, asked over sockets: routes, sends, and whatever else may come in."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chaos.machine.usage import own_memory_bytes
from penstock.client import Consumer, MessageQuery, Producer
from penstock.remoting.batch import BatchItem, encode_batch
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import MAX_FRAME_BYTES, Command, encode_command
from penstock.shared.formats.properties import encode_properties
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import read_run

WAIT_S = 60
# Of a message, and how often it is asked for at once.
LARGE_BYTES, LARGE_COUNT = 30_000, 2000
HANG_S = 60
SEND = {
    "producerGroup": "PG",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1700000000123,
    "flag": 7,
    "properties": "TAGS\x01A\x02",
}
SHORT = dict(zip("abcdefghi", ("PG", "", "TBW102", 4, 0, 0, 1700000000123, 7, ""), strict=True))


def test_a_topic_that_is_not_there_has_no_route_and_the_template_has(
    gateway: Any, peer: Any
) -> None:
    asker = peer(gateway.name_server)
    answer = asker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
    assert answer.code == Response.TOPIC_NOT_EXIST and "nowhere" in answer.remark
    answer = asker.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    address = gateway.remoting.removeprefix("tcp://")
    assert json.loads(answer.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": address},
                "brokerName": "broker-a",
                "cluster": "C",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 7,
                "readQueueNums": 8,
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
        ],
    }


def test_an_old_client_gets_the_keys_of_a_route_without_quotes(peer: Any) -> None:
    fields = {"topic": "TBW102"}
    answer = peer().ask(Request.GET_ROUTEINFO_BY_TOPIC, fields, version=400)
    assert b'"brokerAddrs":{0:"' in answer.body
    fields["acceptStandardJsonOnly"] = "true"
    answer = peer().ask(Request.GET_ROUTEINFO_BY_TOPIC, fields, version=400)
    assert b'"brokerAddrs":{"0":"' in answer.body


def test_the_cluster_and_the_topics_are_told(gateway: Any, peer: Any) -> None:
    with Producer(gateway.produce) as producer:
        producer.send("told", b"x").result(WAIT_S)
    answer = peer().ask(Request.GET_BROKER_CLUSTER_INFO)
    assert json.loads(answer.body)["clusterAddrTable"] == {"C": ["broker-a"]}
    answer = peer().ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "told" in json.loads(answer.body)["topicList"]


def test_a_message_is_stored_and_its_id_names_the_gateway(gateway: Any, peer: Any) -> None:
    sender = peer()
    answer = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "plain"}, b"hello")
    assert answer.code == Response.SUCCESS, answer.remark
    assert answer.fields["queueId"] == "0" and answer.fields["queueOffset"] == "0"
    assert answer.fields["MSG_REGION"] == "DefaultRegion" and answer.fields["TRACE_ON"] == "true"
    port = int(gateway.remoting.rpartition(":")[2])
    assert answer.fields["msgId"].startswith(f"7F000001{port:08X}")
    with MessageQuery(gateway.consume) as query:
        found = query.by_id(answer.fields["msgId"])
    assert found.body == b"hello"
    assert (found.tags, found.flag, found.queue_id) == ("A", 7, 0)
    assert found.properties["UNIQ_KEY"] == answer.fields["transactionId"]
    assert found.properties["CLUSTER"] == "C"
    again = sender.ask(
        Request.SEND_MESSAGE_V2, SHORT | {"b": "plain", "e": 0}, b"again", is_binary=True
    )
    assert again.is_binary and again.fields["queueOffset"] == "1"


def test_what_clients_send_is_answered_where_its_topic_or_its_queue_is_not_there(peer: Any) -> None:
    sender = peer()
    for queue_id, remark in ((0, None), (99, "[QUEUE_NOT_EXIST]"), (0, None)):
        own = {"b": "made-by-the-first", "e": queue_id, "i": "UNIQ_KEY\x01AC14\x02"}
        answer = sender.ask(Request.SEND_MESSAGE_V2, SHORT | own, b"x")
        assert (answer.remark or "").startswith(remark or "")
        assert (answer.code == Response.SUCCESS) == (remark is None), answer.remark


def test_traces_of_messages_are_sent_like_messages(peer: Any) -> None:
    sender = peer()
    assert sender.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "RMQ_SYS_TRACE_TOPIC"}).code == 17
    for _ in range(2):
        answer = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "RMQ_SYS_TRACE_TOPIC"}, b"Pub")
        assert answer.code == Response.SUCCESS, answer.remark


def test_a_topic_that_is_made_by_a_send_has_the_queues_its_client_asks_for(peer: Any) -> None:
    sender = peer()
    for number in range(3):  # before it is there, and after
        sender.send(Request.SEND_MESSAGE, SEND | {"topic": "made", "queueId": 3}, b"%d" % number)
    assert sorted(sender.hear().fields["queueOffset"] for _ in range(3)) == ["0", "1", "2"]
    answer = sender.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
    assert json.loads(answer.body)["queueDatas"][0]["writeQueueNums"] == 4
    answer = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "made", "queueId": 4}, b"x")
    assert answer.code == Response.INVALID_PARAMETER
    answer = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "made", "queueId": -1}, b"x")
    assert answer.code == Response.SUCCESS and 0 <= int(answer.fields["queueId"]) < 4


def test_a_batch_has_one_answer_with_all_ids(gateway: Any, peer: Any) -> None:
    items = [BatchItem(n, b"b%d" % n, encode_properties({"WAIT": "true"})) for n in range(3)]
    sender = peer()
    for code, names in ((Request.SEND_BATCH_MESSAGE, SHORT | {"b": "batch", "m": "true"}),
                        (Request.SEND_MESSAGE, SEND | {"topic": "batch", "batch": 1})):  # fmt: skip
        answer = sender.ask(code, names, encode_batch(items))
        assert answer.code == Response.SUCCESS, answer.remark
        with MessageQuery(gateway.consume) as query:
            found = [query.by_id(each) for each in answer.fields["msgId"].split(",")]
        assert [each.body for each in found] == [b"b0", b"b1", b"b2"]
    assert answer.fields["queueOffset"] == "3"


def test_what_has_no_answer_is_stored_without_one(gateway: Any, peer: Any) -> None:
    sender = peer()
    sender.send(Request.SEND_MESSAGE, SEND | {"topic": "oneway"}, b"quiet", flag=2)
    sender.send(Request.SEND_MESSAGE, {"topic": "oneway"}, b"wrong, and quiet", flag=2)
    answer = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "oneway"}, b"loud")
    assert answer.fields["queueOffset"] == "1"


def test_of_sends_that_go_together_a_bad_one_fails_alone(peer: Any) -> None:
    sender = peer()
    assert sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "mixed"}, b"0").code == 0
    batch = encode_batch([BatchItem(0, b"x", b"DELAY\x013\x02")])
    bad = sender.send(Request.SEND_BATCH_MESSAGE, SHORT | {"b": "mixed", "m": "true"}, batch)
    good = [sender.send(Request.SEND_MESSAGE, SEND | {"topic": "mixed"}, b"x") for _ in range(20)]
    answers = {each.opaque: each for each in (sender.hear() for _ in range(21))}
    assert answers[bad].code == Response.MESSAGE_ILLEGAL
    # those that have to go again come after what is on its way
    assert sorted(int(answers[each].fields["queueOffset"]) for each in good) == [*range(1, 21)]


def test_messages_of_all_kinds_keep_their_order_in_a_queue(gateway: Any, peer: Any) -> None:
    """Plain messages and batches, and between them those that are read in another way."""
    sender = peer()
    assert sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "order"}, b"0").code == 0
    plain = SHORT | {"b": "order", "i": "UNIQ_KEY\x01AC14\x02"}
    batch = encode_batch([BatchItem(0, b"x", b""), BatchItem(0, b"y", b"")])
    requests = []
    for _ in range(20):
        requests += [
            (Request.SEND_MESSAGE_V2, plain, b"plain", 0),
            (Request.SEND_BATCH_MESSAGE, SHORT | {"b": "order", "m": "true"}, batch, 0),
            (Request.SEND_MESSAGE, SEND | {"topic": "order"}, b"other", 0),
            (Request.SEND_MESSAGE_V2, plain | {"i": "TAGS\x01A\x02"}, b"without a key", 0),
            (Request.SEND_MESSAGE_V2, plain, b"quiet", 2),
        ]
    raw = b""
    for number, (code, fields, body, flag) in enumerate(requests):
        texts = {key: str(value) for key, value in fields.items()}
        raw += encode_command(Command(code, number, texts, body, flag))
    sender.socket.sendall(raw)
    answers = {each.opaque: each for each in (sender.hear() for _ in range(80))}
    expected = 1
    for number, (code, _, _, flag) in enumerate(requests):
        assert (number in answers) == (not flag)
        if not flag:
            assert answers[number].code == Response.SUCCESS, answers[number].remark
            assert answers[number].fields["queueOffset"] == str(expected)
        expected += 2 if code == Request.SEND_BATCH_MESSAGE else 1


def test_of_plain_messages_that_go_together_a_bad_one_fails_alone(peer: Any) -> None:
    sender = peer()
    assert sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "mixed2"}, b"0").code == 0
    texts = {key: str(value) for key, value in (SHORT | {"b": "mixed2"}).items()}
    keys = [f"AC{number}" for number in range(20)]
    commands = [
        Command(Request.SEND_MESSAGE_V2, number, texts | {"i": f"UNIQ_KEY\x01{key}\x02"}, b"x")
        for number, key in enumerate(keys)
    ]
    batch = encode_batch([BatchItem(0, b"x", b"DELAY\x013\x02")])
    commands[7] = Command(Request.SEND_BATCH_MESSAGE, 7, texts | {"m": "true"}, batch)
    sender.socket.sendall(b"".join(map(encode_command, commands)))
    answers = {each.opaque: each for each in (sender.hear() for _ in range(20))}
    assert answers.pop(7).code == Response.MESSAGE_ILLEGAL
    assert {each.code for each in answers.values()} == {Response.SUCCESS}
    found = [
        (each.fields["queueOffset"], each.fields["transactionId"]) for each in answers.values()
    ]
    del keys[7]
    assert sorted(found) == sorted((str(at), key) for at, key in enumerate(keys, 1))


def test_what_several_connections_send_goes_to_the_writer_in_few_frames(
    gateway: Any, peer: Any
) -> None:
    run = read_run(StorePaths(gateway.store))
    assert run is not None
    count, senders = 50, [peer() for _ in range(8)]
    assert senders[0].ask(Request.SEND_MESSAGE, SEND | {"topic": "together"}).code == 0
    texts = {key: str(value) for key, value in (SEND | {"topic": "together"}).items()}
    requests = b"".join(
        encode_command(Command(Request.SEND_MESSAGE, number, texts)) for number in range(count)
    )
    with closing(Positions(run.positions)) as positions:

        def frames() -> int:
            return sum(positions.durations("acknowledge")[1])

        before = frames()
        for each in senders:
            each.socket.sendall(requests)
        for each in senders:
            assert {each.hear().code for _ in range(count)} == {Response.SUCCESS}
        assert 0 < frames() - before <= count * len(senders) / 10


def test_a_delayed_message_comes_when_its_time_has_come(gateway: Any, peer: Any) -> None:
    fields = SEND | {"topic": "late", "properties": "DELAY\x011\x02"}
    answer = peer().ask(Request.SEND_MESSAGE, fields, b"late")
    assert answer.code == Response.SUCCESS and answer.fields["queueId"] == "0"
    began = time.monotonic()
    with Consumer(gateway.consume, "late", start="earliest") as consumer:
        (found,) = consumer.poll(WAIT_S)
    assert found.body == b"late" and time.monotonic() - began > 0.5


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (4711, {}, b"", Response.REQUEST_CODE_NOT_SUPPORTED),
        (200050, {}, b"", Response.REQUEST_CODE_NOT_SUPPORTED),
        (Request.SEND_MESSAGE, {"topic": "t"}, b"", Response.SYSTEM_ERROR),
        (Request.SEND_MESSAGE, SEND | {"topic": "../t"}, b"", Response.INVALID_PARAMETER),
        (Request.SEND_MESSAGE, SEND | {"topic": "t"}, bytes(65_537), Response.MESSAGE_ILLEGAL),
        (Request.SEND_MESSAGE, SEND | {"topic": "t", "batch": 1}, b"x", Response.MESSAGE_ILLEGAL),
        (Request.SEND_MESSAGE, SEND | {"topic": "%RETRY%no"}, b"", 26),
        (Request.SEND_MESSAGE, SEND | {"topic": "TBW102"}, b"", Response.INVALID_PARAMETER),
        *[
            (Request.SEND_MESSAGE, SEND | {"topic": topic}, b"", Response.NO_PERMISSION)
            for topic in ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
        ],
        (Request.HEART_BEAT, {}, b"{", Response.SYSTEM_ERROR),
        # a name whose error would not fit a frame, and with which nothing may be compared
        (Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "\x01" * (2 << 20)}, b"", 17),
    ],
)
def test_what_cannot_be_served_is_answered_and_the_connection_stays(
    peer: Any, code: int, fields: dict[str, object], body: bytes, expected: int
) -> None:
    asker = peer()
    answer = asker.ask(code, fields, body)
    assert answer.code == expected and answer.remark
    assert asker.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


@pytest.mark.parametrize(
    "raw",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x0a\0\0\0\x06[[[[[[",
        b"\0\0\0\x05\x02\0\0\0x",
    ],
)
def test_what_is_no_frame_costs_its_connection_and_no_other(peer: Any, raw: bytes) -> None:
    other, bad = peer(), peer()
    bad.socket.sendall(raw)
    assert bad.is_closed()
    assert other.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_of_connections_that_are_closed_the_first_and_the_tenth_are_told(
    start_broker: Callable[..., Any], new_peer: Callable[[str], Any]
) -> None:
    """Whoever sends such things sends hundreds a second."""
    broker = start_broker(gateway_enable="true", gateway_port=0, gateway_name_server_port=0)
    endpoint = broker.status()["endpoints"]["remoting"]
    for _ in range(21):
        bad = new_peer(endpoint)
        bad.socket.sendall(b"\xff\xff\xff\xff")
        assert bad.is_closed()
    said = broker.said.read_text()
    assert said.count("closed a connection that") == 2
    assert [number for number in range(30) if f"; {number} so far" in said] == [1, 10]


@settings(max_examples=40)
@given(
    st.sampled_from([*map(int, Request), -1, 0]),
    st.dictionaries(
        st.sampled_from(["topic", "queueId", "b", "e", *"acdfgh", "clientID", "consumerGroup"]),
        st.sampled_from(["", "0", "-1", "TBW102", "x", "99999999999", "%RETRY%g", "\0"]),
        max_size=9,
    ),
    st.sampled_from([b"", b"{}", b"[]", b"null", b'{"clientID":"c"}', bytes(30)]),
)
def test_any_request_is_answered_and_ends_no_actor(
    peer: Any, code: int, fields: dict[str, object], body: bytes
) -> None:
    asker = peer()
    answer = asker.ask(code, fields, body)
    assert answer.code == 0 or answer.remark


def test_answers_that_a_client_does_not_read_hold_up_no_other(peer: Any) -> None:
    lazy, other = peer(), peer()
    lazy.socket.settimeout(0.2)
    try:
        for _ in range(200_000):
            lazy.send(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    except TimeoutError:
        pass  # the gateway reads no further, and the kernel's buffers are full
    else:
        pytest.fail("the gateway goes on reading from a client that does not")
    assert other.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_a_client_comes_back_when_the_gateway_was_killed(
    broker_in: Any, new_peer: Any, tmp_path: Any
) -> None:
    """The port is the supervisor's, so a client is not refused meanwhile, and waits."""
    running = broker_in(tmp_path, gateway_enable="true", gateway_port=0, gateway_name_server_port=0)
    before = new_peer(running.status()["endpoints"]["remoting"])
    before.ask(Request.SEND_MESSAGE, SEND | {"topic": "t"}, b"before")
    found = running.status()  # not sooner: a broker is ready before its gateway is there
    (first,) = (each["pid"] for each in found["actors"] if each["name"] == "gateway")
    os.kill(first, signal.SIGKILL)
    assert before.is_closed()
    after = new_peer(found["endpoints"]["remoting"])
    answer = after.ask(Request.SEND_MESSAGE, SEND | {"topic": "t"}, b"after")
    assert answer.fields["queueOffset"] == "1"
    assert running.stop() == 0


def test_what_is_under_way_when_the_writer_dies_is_stored_and_once(
    broker_in: Any, new_peer: Any, tmp_path: Any
) -> None:
    running = broker_in(tmp_path, gateway_enable="true", gateway_port=0, gateway_name_server_port=0)
    client, fields = new_peer(running.status()["endpoints"]["remoting"]), SEND | {"topic": "t"}
    assert client.ask(Request.SEND_MESSAGE, fields, b"first").code == Response.SUCCESS
    (writer,) = (each["pid"] for each in running.status()["actors"] if each["name"] == "writer")
    for number in range(400):
        client.send(Request.SEND_MESSAGE, fields, b"%d" % number)
        if number == 300:
            os.kill(writer, signal.SIGKILL)
    answers = [client.hear() for _ in range(400)]
    assert {each.code for each in answers} == {Response.SUCCESS}
    assert sorted(int(each.fields["queueOffset"]) for each in answers) == [*range(1, 401)]
    # what is acknowledged is in its queue a moment later
    queue, until = {"topic": "t", "queueId": fields["queueId"]}, time.monotonic() + HANG_S
    while (last := client.ask(Request.GET_MAX_OFFSET, queue).fields["offset"]) != "401":
        assert time.monotonic() < until, last
    assert running.stop() == 0


def test_a_broker_without_a_gateway_has_no_such_process(broker: Any) -> None:
    (found,) = (each for each in broker.status()["actors"] if each["name"] == "gateway")
    assert (found["state"], found["pid"]) == ("off", 0)
    assert broker.status()["endpoints"]["remoting"] == ""


def test_answers_that_nobody_reads_take_little_memory(gateway: Any, peer: Any) -> None:
    sender = peer()
    stored = sender.ask(Request.SEND_MESSAGE, SEND | {"topic": "large"}, bytes(LARGE_BYTES))
    offset = int(stored.fields["msgId"][16:], 16)
    pid = next(each["pid"] for each in gateway.status()["actors"] if each["name"] == "gateway")
    before = own_memory_bytes(pid)
    reader, other = peer(), peer()
    one = Command(Request.VIEW_MESSAGE_BY_ID, 1, {"offset": str(offset)})
    reader.socket.sendall(encode_command(one) * LARGE_COUNT)
    heard = reader.hear()  # the gateway has them all by now, and would have made all the answers
    assert other.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    assert own_memory_bytes(pid) - before < LARGE_BYTES * LARGE_COUNT / 2
    for _ in range(LARGE_COUNT - 1):
        assert len(heard.body) > LARGE_BYTES
        heard = reader.hear()
