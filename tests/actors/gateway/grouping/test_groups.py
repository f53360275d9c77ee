"""Pulls, offsets, locks and members, asked of a gateway over sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.actors.gateway.pulls import MOST_OF_A_CLIENT
from penstock.client import GroupConsumer, Producer
from penstock.client.groups.admin import GroupAdmin
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import RESPONSE_FLAG, Command, encode_command
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import Record, decode_record

WAIT_S = 60
# only a hang reaches this
HANG_S = 60
QUEUES = 2
WAITS, HAS_SUBSCRIPTION = 2, 4


@pytest.fixture
def topic(gateway: Any, peer: Any, request: pytest.FixtureRequest) -> Any:
    """A topic of two queues, with three messages in each, of which the last has the tag B."""
    name = f"t{abs(hash(request.node.name))}"
    with Producer(gateway.produce) as producer:
        producer.create_topic(name, QUEUES)
        for number in range(3 * QUEUES):
            tag = "B" if number >= 2 * QUEUES else "A"
            producer.send(name, b"%d" % number, queue=number % QUEUES, tags=tag).result(WAIT_S)
    asker, until = peer(), time.monotonic() + WAIT_S
    for queue in range(QUEUES):
        fields = {"topic": name, "queueId": queue}
        # what is acknowledged is in its queue a moment later
        while asker.ask(Request.GET_MAX_OFFSET, fields).fields.get("offset") != "3":
            assert time.monotonic() < until
    return name


@pytest.fixture
def send(gateway: Any) -> Callable[..., None]:
    def one(topic: str, queue: int, body: bytes, tags: str = "A") -> None:
        with Producer(gateway.produce) as producer:
            producer.send(topic, body, queue=queue, tags=tags).result(WAIT_S)

    return one


def heartbeat(
    client: str, group: str, topic: str, expression: str = "*", model: str = "CLUSTERING"
) -> bytes:
    subscription = {"topic": topic, "subString": expression, "subVersion": 5}
    consumer = {
        "groupName": group,
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return msgspec.json.encode({"clientID": client, "consumerDataSet": [consumer]})


def pull_fields(topic: str, queue: int, offset: int, **more: object) -> dict[str, object]:
    return {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": HAS_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    } | more


def records(body: bytes | memoryview) -> list[Record]:
    found, at = [], 0
    while at < len(body):
        found.append(decode_record(body, at))
        at += found[-1].total_size
    return found


def member(peer: Any, client: str, group: str, topic: str) -> Any:
    joined = peer()
    # it may be told of the group's change before it has its answer, and is told after it
    answer = answer_of(joined, Request.HEART_BEAT, body=heartbeat(client, group, topic))
    assert answer.code == Response.SUCCESS, answer.remark
    assert joined.hear().code == Request.NOTIFY_CONSUMER_IDS_CHANGED
    return joined


def answer_of(
    joined: Any, code: int, fields: dict[str, object] | None = None, body: bytes = b""
) -> Any:
    """The answer, past what the gateway pushes meanwhile."""
    number = joined.send(code, fields, body)
    while (heard := joined.hear()).opaque != number or not heard.is_response:
        assert heard.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
    return heard


def answer_past(joined: Any, waiting: int, *asked: Any, **more: Any) -> Any:
    """The same, where the answer to a pull that waits may come between."""
    number = joined.send(*asked, **more)
    while (heard := joined.hear()).opaque != number or not heard.is_response:
        assert heard.code == Request.NOTIFY_CONSUMER_IDS_CHANGED or heard.opaque == waiting
    return heard


def test_a_pull_gets_records_as_they_lie_in_the_log(peer: Any, topic: str) -> None:
    asker = peer()
    answer = asker.ask(Request.PULL_MESSAGE, pull_fields(topic, 1, 0))
    assert answer.code == Response.SUCCESS, answer.remark
    assert [each.body for each in records(answer.body)] == [b"1", b"3", b"5"]
    assert answer.fields == {
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
        "suggestWhichBrokerId": "0",
    }
    answer = asker.ask(Request.LITE_PULL_MESSAGE, pull_fields(topic, 1, 1, maxMsgNums=1))
    assert [each.queue_offset for each in records(answer.body)] == [1]
    assert answer.fields["nextBeginOffset"] == "2"


@pytest.mark.parametrize(
    ("changes", "code", "next_offset"),
    [
        ({"queueOffset": 3}, Response.PULL_NOT_FOUND, 3),
        ({"queueOffset": 9}, Response.PULL_OFFSET_MOVED, 3),
        ({"queueOffset": -1}, Response.PULL_OFFSET_MOVED, 0),
        ({"queueOffset": -(1 << 63)}, Response.PULL_OFFSET_MOVED, 0),
        ({"subscription": "C"}, Response.PULL_RETRY_IMMEDIATELY, 3),
        ({"subscription": "A"}, Response.SUCCESS, 2),
        ({"subscription": "A || B"}, Response.SUCCESS, 3),
        ({"subscription": "TAGS = 'B'", "expressionType": "SQL92"}, Response.SUCCESS, 3),
    ],
)
def test_a_pull_is_answered_by_rocketmqs_table(
    peer: Any, topic: str, changes: dict[str, object], code: int, next_offset: int
) -> None:
    asker, wanted = peer(), pull_fields(topic, 0, 0, **changes)
    answer = asker.ask(Request.PULL_MESSAGE, wanted)
    # a filter whose share of the turn is used up says how far it is, and is asked again
    while answer.code == Response.PULL_RETRY_IMMEDIATELY != code:
        wanted["queueOffset"] = answer.fields["nextBeginOffset"]
        answer = asker.ask(Request.PULL_MESSAGE, wanted)
    assert answer.code == code, answer.remark
    if code != Response.SUCCESS:
        assert int(answer.fields["nextBeginOffset"]) == next_offset
        assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "3")


@pytest.mark.parametrize("offset", [-1, -(1 << 63)])
def test_a_pull_from_below_0_of_a_queue_without_messages_is_told_of_0(
    gateway: Any, peer: Any, request: pytest.FixtureRequest, offset: int
) -> None:
    name = f"t{abs(hash(request.node.name))}"
    with Producer(gateway.produce) as producer:
        producer.create_topic(name, 1)
    answer = peer().ask(Request.PULL_MESSAGE, pull_fields(name, 0, offset))
    assert answer.code == Response.PULL_OFFSET_MOVED, answer.remark
    fields = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    assert answer.fields.items() >= fields.items()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nowhere"}, Response.TOPIC_NOT_EXIST),
        ({"queueId": 2}, Response.INVALID_PARAMETER),
        ({"queueId": -1}, Response.INVALID_PARAMETER),
        ({"topic": "nowhere", "queueOffset": -1}, Response.TOPIC_NOT_EXIST),
        ({"sysFlag": 0}, Response.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": " || "}, Response.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "a =", "expressionType": "SQL92"}, Response.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_a_pull_that_cannot_be_is_refused(
    peer: Any, topic: str, changes: dict[str, object], code: int
) -> None:
    answer = peer().ask(Request.PULL_MESSAGE, pull_fields(topic, 0, 0) | changes)
    assert answer.code == code and answer.remark


def test_a_pull_that_overtakes_its_clients_heartbeat_waits_for_it(peer: Any, topic: str) -> None:
    """As those of RocketMQ's clients do on a new connection, and after they have rebalanced."""
    group, client = f"g{topic}", peer()
    early = pull_fields(topic, 0, 0, consumerGroup=group, sysFlag=0)
    for pulled, wanted, said in ((100, 0, 5), (200, 6, 6)):
        fields = {key: str(value) for key, value in (early | {"subVersion": wanted}).items()}
        body = heartbeat("a", group, topic).replace(b'"subVersion":5', b'"subVersion":%d' % said)
        pull = encode_command(Command(Request.PULL_MESSAGE, pulled, fields))
        # at once, however busy the machine is: a heartbeat that comes 1 s later is too late
        client.socket.sendall(
            pull + encode_command(Command(Request.HEART_BEAT, pulled + 1, body=body))
        )
        codes: dict[int, int] = {}
        while len(codes) < 2:
            if (heard := client.hear()).is_response:
                codes[heard.opaque] = heard.code
        assert codes == dict.fromkeys((pulled, pulled + 1), Response.SUCCESS)
    answer = answer_of(client, Request.PULL_MESSAGE, early | {"subVersion": 7})
    assert answer.code == Response.SUBSCRIPTION_NOT_LATEST, "it has waited in vain"


def test_a_heartbeat_of_version_0_is_older_than_a_pull_of_version_1(peer: Any, topic: str) -> None:
    group, client = f"g{topic}", peer()
    body = heartbeat("a", group, topic).replace(b'"subVersion":5', b'"subVersion":0')
    assert client.ask(Request.HEART_BEAT, {}, body).code == Response.SUCCESS
    pull = pull_fields(topic, 0, 0, consumerGroup=group, sysFlag=0)
    answer = answer_of(client, Request.PULL_MESSAGE, pull | {"subVersion": 1})
    assert answer.code == Response.SUBSCRIPTION_NOT_LATEST
    answer = answer_of(client, Request.PULL_MESSAGE, pull | {"subVersion": 0})
    assert answer.code == Response.SUCCESS


def test_a_held_pull_is_answered_by_what_matches_and_by_nothing_else(
    peer: Any, topic: str, send: Any
) -> None:
    asker = peer()
    wanted = {
        "subscription": "B",
        "sysFlag": HAS_SUBSCRIPTION | WAITS,
        "suspendTimeoutMillis": 15000,
    }
    number = asker.send(Request.PULL_MESSAGE, pull_fields(topic, 0, 3, **wanted))
    send(topic, 0, b"no", "A")
    send(topic, 0, b"yes", "B")
    answer = asker.hear()
    assert answer.opaque == number and [each.body for each in records(answer.body)] == [b"yes"]
    assert answer.fields["nextBeginOffset"] == "5"


def test_a_held_pull_is_said_to_wait_until_its_client_has_gone(
    gateway: Any, peer: Any, topic: str
) -> None:
    """Where none waits, what is stored wakes nobody at once."""
    asker = peer()
    wanted = {"sysFlag": HAS_SUBSCRIPTION | WAITS, "suspendTimeoutMillis": 60_000}
    for queue in range(2):
        asker.send(Request.PULL_MESSAGE, pull_fields(topic, queue, 3, **wanted))

    def await_pulls(wanted: int) -> None:
        until = time.monotonic() + HANG_S
        while (found := gateway.status()["positions"]["client_pulls"]) != wanted:
            assert time.monotonic() < until, found
            time.sleep(0.02)

    await_pulls(2)
    asker.socket.close()
    await_pulls(0)


def test_one_client_has_a_bounded_number_of_pulls_waiting(
    peer: Any, topic: str, send: Callable[..., None]
) -> None:
    greedy, other = peer(), peer()
    wanted = {"sysFlag": HAS_SUBSCRIPTION | WAITS, "suspendTimeoutMillis": 60_000}
    texts = {key: str(value) for key, value in pull_fields(topic, 0, 3, **wanted).items()}
    one = Command(Request.PULL_MESSAGE, 1, texts)
    for _ in range(2):
        greedy.socket.sendall(encode_command(one) * (MOST_OF_A_CLIENT + 3))
        refused = [greedy.hear() for _ in range(3)]
        assert [each.remark for each in refused if "Run more clients" not in each.remark] == []
        # what is asked after them is answered next: no other was refused
        assert greedy.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
        assert other.ask(Request.PULL_MESSAGE, pull_fields(topic, 0, 2)).code == Response.SUCCESS
        # all are answered by the message that they wait for, and may wait again
        send(topic, 0, b"for all of them")
        answers = {greedy.hear().code for _ in range(MOST_OF_A_CLIENT)}
        assert answers == {Response.SUCCESS}
        one = replace(one, fields=texts | {"queueOffset": "4"})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"perm": 2}, Response.NO_PERMISSION),
        ({"readQueueNums": 1, "writeQueueNums": 1}, Response.INVALID_PARAMETER),
        (None, Response.TOPIC_NOT_EXIST),
    ],
)
def test_a_held_pull_is_refused_when_its_topic_changes(
    peer: Any, topic: str, change: dict[str, object] | None, code: int
) -> None:
    asker, operator = peer(), peer()
    wanted = {"sysFlag": HAS_SUBSCRIPTION | WAITS, "suspendTimeoutMillis": 60_000}
    number = asker.send(Request.PULL_MESSAGE, pull_fields(topic, 1, 3, **wanted))
    # what is sent later by the same client is answered first: so the pull is held by now
    assert answer_of(asker, Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    fields: dict[str, object] = {"topic": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    request = Request.UPDATE_AND_CREATE_TOPIC if change else Request.DELETE_TOPIC_IN_BROKER
    if change and "writeQueueNums" in change:  # a topic shrinks by those that are written first
        shrunk = fields | {"writeQueueNums": 1}
        assert operator.ask(request, shrunk).code == Response.SUCCESS
    answer = operator.ask(request, fields | (change or {}))
    assert answer.code == Response.SUCCESS, answer.remark
    refused = asker.hear()  # which waits for less than the pull would
    assert (refused.opaque, refused.code) == (number, code)


def test_a_slow_filter_is_given_a_moment_and_then_told_how_far_it_is(
    gateway: Any, peer: Any, topic: str
) -> None:
    count = 2000
    with Producer(gateway.produce) as producer:
        sent = [producer.send(topic, b"x", queue=0, properties={"a": "1"}) for _ in range(count)]
        for each in sent:
            each.result(WAIT_S)
    asker, until = peer(), time.monotonic() + HANG_S
    queue = {"topic": topic, "queueId": 0}
    while asker.ask(Request.GET_MAX_OFFSET, queue).fields["offset"] != str(count + 3):
        assert time.monotonic() < until
    # some 600 comparisons, which take about as many microseconds for each message
    slow = {"expressionType": "SQL92", "subscription": " OR ".join(["a BETWEEN 2 AND 3"] * 370)}
    offset, answers = 0, 0
    while offset < count + 3:
        answer = asker.ask(Request.PULL_MESSAGE, pull_fields(topic, 0, offset, **slow))
        assert answer.code == Response.PULL_RETRY_IMMEDIATELY
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset, answers = int(answer.fields["nextBeginOffset"]), answers + 1
    # a file of the queue has 1000 entries, and a look ends there
    assert answers > 3, "all others waited for looks through whole files"


def test_long_filters_are_parsed_between_the_requests_of_others(peer: Any, topic: str) -> None:
    asker, filters = peer(), 20
    for number in range(filters):
        text = " OR ".join(["a BETWEEN 2 AND 3"] * 350) + f" OR a = {number}"
        said = {"expressionType": "SQL92", "subscription": text}
        asker.send(Request.PULL_MESSAGE, pull_fields(topic, 0, 0, **said))
    short = asker.send(Request.GET_BROKER_CLUSTER_INFO)
    answers = [asker.hear() for _ in range(filters + 1)]
    assert {each.code for each in answers} == {0, Response.PULL_RETRY_IMMEDIATELY}
    assert answers[-1].opaque != short, "what needs no filter waited for all of them"


def test_long_filters_that_come_together_are_parsed_without_a_pause_between(
    peer: Any, topic: str
) -> None:
    """And not one with each tick of the clock, of which there are ten a second."""
    asker, filters, took = peer(), 30, []
    for attempt in range(3):
        began = time.monotonic()
        for number in range(filters):
            text = " || ".join(f"tag-{attempt}-{number}-{each}" for each in range(50))
            asker.send(Request.PULL_MESSAGE, pull_fields(topic, 0, 0, subscription=text))
        answers = [asker.hear() for _ in range(filters)]
        took.append(time.monotonic() - began)
        assert {each.code for each in answers} == {Response.PULL_RETRY_IMMEDIATELY}
    assert min(took) < filters * 0.05


def test_a_held_pull_is_answered_when_its_time_is_over(peer: Any, topic: str) -> None:
    wanted = {"sysFlag": HAS_SUBSCRIPTION | WAITS, "suspendTimeoutMillis": 300}
    began = time.monotonic()
    answer = peer().ask(Request.PULL_MESSAGE, pull_fields(topic, 0, 3, **wanted))
    assert answer.code == Response.PULL_NOT_FOUND and time.monotonic() - began >= 0.3


def test_offsets_of_a_queue_are_told(peer: Any, topic: str) -> None:
    asker = peer()
    fields: dict[str, object] = {"topic": topic, "queueId": 0}
    assert asker.ask(Request.GET_MAX_OFFSET, fields).fields == {"offset": "3"}
    assert asker.ask(Request.GET_MIN_OFFSET, fields).fields == {"offset": "0"}
    stored = int(asker.ask(Request.GET_EARLIEST_MSG_STORETIME, fields).fields["timestamp"])
    assert abs(stored / 1000 - time.time()) < 600
    for at_ms, boundary, offset in (
        (0, "LOWER", 0),
        (stored, "LOWER", 0),
        (stored + 10**9, "LOWER", 3),
        (stored + 10**9, "UPPER", 2),
    ):
        asked = fields | {"timestamp": at_ms, "boundaryType": boundary}
        found = asker.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, asked).fields
        assert found == {"offset": str(offset)}, (at_ms, boundary)


def test_a_message_is_viewed_by_its_log_offset(peer: Any, topic: str) -> None:
    asker = peer()
    pulled = asker.ask(Request.PULL_MESSAGE, pull_fields(topic, 0, 0))
    first = records(pulled.body)[0]
    answer = asker.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": first.physical_offset})
    assert records(answer.body) == [first]
    for offset in (first.physical_offset + 1, -1, 1 << 60):
        answer = asker.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert answer.code == Response.SYSTEM_ERROR


def test_a_member_goes_on_where_its_group_has_committed(peer: Any, topic: str) -> None:
    group = f"g{topic}"
    joined = member(peer, "me", group, topic)
    queue: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0}
    assert answer_of(joined, Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "0"}
    commit = queue | {"commitOffset": 2}
    assert answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, commit).code == Response.SUCCESS
    left = {"clientID": "me", "consumerGroup": group}
    assert answer_of(joined, Request.UNREGISTER_CLIENT, left).code == Response.SUCCESS
    again = member(peer, "other", group, topic)
    assert answer_of(again, Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "2"}
    stranger = peer()
    assert stranger.ask(Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "2"}
    stats = answer_of(again, Request.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
    found = {
        json.loads(key)["queueId"]: row
        for key, row in json.loads(stats.body)["offsetTable"].items()
    }
    assert (found[0]["consumerOffset"], found[0]["brokerOffset"]) == (2, 3)


def test_a_queue_waits_for_the_last_commit_of_the_client_that_has_it(peer: Any, topic: str) -> None:
    """It does so for a second. On a busy machine that may be over before the commit comes."""
    until, tries = time.monotonic() + 60, 0
    while True:
        assert time.monotonic() < until
        tries += 1
        group = f"g{topic}{tries}"
        first = member(peer, "a", group, topic)
        queue: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0}
        answer_of(first, Request.QUERY_CONSUMER_OFFSET, queue)
        second = member(peer, "b", group, topic)
        asked = second.send(Request.QUERY_CONSUMER_OFFSET, queue)
        peer().ask(Request.GET_BROKER_CLUSTER_INFO)
        commit = queue | {"commitOffset": 2}
        assert answer_of(first, Request.UPDATE_CONSUMER_OFFSET, commit).code == Response.SUCCESS
        while (heard := second.hear()).opaque != asked or not heard.is_response:
            pass
        if heard.fields == {"offset": "2"}:
            break


def test_who_is_no_member_commits_only_where_nobody_has_the_queue(peer: Any, topic: str) -> None:
    """Any connection may say so, by RocketMQ's protocol: also one that has left just now."""
    group = f"g{topic}"
    joined, stranger = member(peer, "me", group, topic), peer()
    queue: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0}
    other = queue | {"queueId": 1}
    answer_of(joined, Request.QUERY_CONSUMER_OFFSET, queue)
    commit = queue | {"commitOffset": 2}
    assert answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, commit).code == Response.SUCCESS
    for which in (queue, other):
        said = which | {"commitOffset": 1}
        assert stranger.ask(Request.UPDATE_CONSUMER_OFFSET, said).code == Response.SUCCESS
    assert stranger.ask(Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "2"}
    nowhere = stranger.ask(Request.UPDATE_CONSUMER_OFFSET, commit | {"topic": "nowhere"})
    assert nowhere.code == Response.TOPIC_NOT_EXIST
    assert stranger.ask(Request.QUERY_CONSUMER_OFFSET, other).fields == {"offset": "1"}
    # the member has the queue still: nobody tells it to rebalance, and its commits count
    commit["commitOffset"] = 3
    assert answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, commit).code == Response.SUCCESS
    assert stranger.ask(Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "3"}


def test_questions_of_many_groups_at_once_all_have_answers(peer: Any, topic: str) -> None:
    asker = peer()
    groups = [f"g{number}{topic}" for number in range(20)]
    for is_zero, code in ((False, Response.QUERY_NOT_FOUND), (True, Response.SUCCESS)):
        for group in groups:
            queue = {"consumerGroup": group, "topic": topic, "queueId": 0}
            queue |= {"setZeroIfNotFound": is_zero}
            asker.send(Request.QUERY_CONSUMER_OFFSET, queue)
        answers = [asker.hear() for _ in groups]
        assert {each.code for each in answers} == {code}
        assert not is_zero or {each.fields["offset"] for each in answers} == {"0"}


def test_whoever_joins_is_told_to_divide_after_its_answer(peer: Any, topic: str) -> None:
    """As by RocketMQ: by nothing else does the lite pull consumer divide at once."""
    joined, body = peer(), heartbeat("me", f"g{topic}", topic)
    assert joined.ask(Request.HEART_BEAT, body=body).code == Response.SUCCESS
    pushed = joined.hear()
    assert pushed.code == Request.NOTIFY_CONSUMER_IDS_CHANGED and pushed.is_oneway
    assert pushed.fields == {"consumerGroup": f"g{topic}"}
    # by another connection it is new again
    again = peer()
    assert again.ask(Request.HEART_BEAT, body=body).code == Response.SUCCESS
    assert again.hear().code == Request.NOTIFY_CONSUMER_IDS_CHANGED


def test_whoever_is_known_or_has_all_queues_is_not_told_to_divide(peer: Any, topic: str) -> None:
    """But that the group has changed, at any time: as the coordinator hears of a new topic."""
    joined = peer()
    for client, group, model in (
        ("me", f"g{topic}", "CLUSTERING"),
        ("everywhere", f"b{topic}", "BROADCASTING"),
    ):
        body = heartbeat(client, group, topic, model=model)
        answer_of(joined, Request.HEART_BEAT, body=body)
        told = []
        for _ in range(5):
            number = joined.send(Request.HEART_BEAT, body=body)
            while not (heard := joined.hear()).is_response:
                told.append(heard.fields["consumerGroup"])
            assert heard.opaque == number and heard.code == Response.SUCCESS
        # its own, and one of a change; each of five would tell otherwise
        assert told.count(group) <= 2


@pytest.mark.parametrize("queue", [("", QUEUES), ("", -1), ("no-such", 0), ("%DLQ%no-such", 0)])
def test_a_queue_that_is_not_there_is_empty(peer: Any, topic: str, queue: tuple[str, int]) -> None:
    """As a RocketMQ 5.3.3 broker says it."""
    asker = peer()
    fields: dict[str, object] = {"topic": queue[0] or topic, "queueId": queue[1], "timestamp": 0}
    for code in (
        Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET, Request.SEARCH_OFFSET_BY_TIMESTAMP,
    ):  # fmt: skip
        assert asker.ask(code, fields).fields == {"offset": "0"}
    answer = asker.ask(Request.GET_EARLIEST_MSG_STORETIME, fields)
    assert answer.code == Response.SUCCESS and answer.fields == {"timestamp": "-1"}


def test_members_are_told_of_each_other_and_of_one_that_has_gone(peer: Any, topic: str) -> None:
    group = f"g{topic}"
    one = member(peer, "a", group, topic)
    two = member(peer, "b", group, topic)
    pushed = one.hear()
    assert pushed.code == Request.NOTIFY_CONSUMER_IDS_CHANGED and pushed.is_oneway
    assert pushed.fields == {"consumerGroup": group}
    listed = answer_of(one, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    assert json.loads(listed.body) == {"consumerIdList": ["a", "b"]}
    two.socket.close()
    until = time.monotonic() + WAIT_S
    while True:
        listed = answer_of(one, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        if json.loads(listed.body) == {"consumerIdList": ["a"]}:
            break
        assert time.monotonic() < until
    answer = answer_of(one, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})
    assert answer.code == Response.SYSTEM_ERROR


def test_an_answer_that_fits_no_frame_costs_whoever_asked_for_it(peer: Any, topic: str) -> None:
    joined, asker = member(peer, "big@1", "big", topic), peer()
    asker.send(Request.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "big", "clientId": "big@1"})
    while (asked := joined.hear()).code != Request.GET_CONSUMER_RUNNING_INFO:
        pass
    # as text of JSON each of these takes six bytes
    fields = {"x": "\x01" * (3 << 20)}
    answer = Command(0, asked.opaque, fields, flag=RESPONSE_FLAG, is_binary=True)
    joined.socket.sendall(encode_command(answer))
    assert asker.is_closed()
    assert answer_of(joined, Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def test_a_lock_is_one_members_until_it_is_given_back(peer: Any, topic: str) -> None:
    group = f"g{topic}"
    one, two = member(peer, "a", group, topic), member(peer, "b", group, topic)
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": topic} for n in range(QUEUES)]

    def lock(who: Any, client: str, code: int = Request.LOCK_BATCH_MQ) -> Any:
        body = {"clientId": client, "consumerGroup": group, "mqSet": queues}
        answer = answer_of(who, code, body=msgspec.json.encode(body))
        assert answer.code == Response.SUCCESS
        return json.loads(answer.body)["lockOKMQSet"] if answer.body else None

    until = time.monotonic() + WAIT_S
    # the topic is new, and the coordinator looks for such now and then
    while sorted(each["queueId"] for each in lock(one, "a")) != [0, 1]:
        assert time.monotonic() < until
    assert lock(two, "b") == []
    assert len(lock(one, "a")) == 2
    lock(one, "a", Request.UNLOCK_BATCH_MQ)
    assert len(lock(two, "b")) == 2


def test_an_operators_offset_is_taken_up_by_the_next_pull(
    gateway: Any, peer: Any, topic: str
) -> None:
    joined, group, queue = committed(peer, topic)
    with GroupAdmin(gateway.consume) as admin:
        admin.reset(group, topic, {0: 1})
    assert joined.hear().code == Request.NOTIFY_CONSUMER_IDS_CHANGED
    pull = pull_fields(topic, 0, 3, consumerGroup=group)
    assert await_moved(joined, pull).fields["nextBeginOffset"] == "1"
    assert answer_of(joined, Request.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "1"}


def test_what_a_client_commits_before_it_hears_of_an_operators_offset_does_not_undo_it(
    gateway: Any, peer: Any, topic: str
) -> None:
    """RocketMQ's clients send all their offsets every few seconds, and a pull may wait longer."""
    joined, group, queue = committed(peer, topic)
    with GroupAdmin(gateway.consume) as admin:
        admin.reset(group, topic, {0: 1})
        for _ in range(5):
            told = answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": 3})
            assert told.code == Response.SUCCESS
        (found,) = (each for each in admin.describe(group).queues if each.queue_id == 0)
        assert found.offset == 1
        pull = pull_fields(topic, 0, 3, consumerGroup=group)
        answer = await_moved(joined, pull)
        assert answer.fields["nextBeginOffset"] == "1"
        answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": 2})
        (found,) = (each for each in admin.describe(group).queues if each.queue_id == 0)
        assert found.offset == 2, "what it commits from then on counts"


def committed(peer: Any, topic: str) -> tuple[Any, str, dict[str, object]]:
    """A member that has queue 0, and has said 3 of it; its group, and the fields of that queue."""
    group = f"g{topic}"
    joined = member(peer, "me", group, topic)
    queue: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": 0}
    answer_of(joined, Request.QUERY_CONSUMER_OFFSET, queue)
    answer_of(joined, Request.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": 3})
    return joined, group, queue


def await_moved(joined: Any, pull: dict[str, object]) -> Any:
    until = time.monotonic() + WAIT_S
    # the word of the reset may be on its way
    while (answer := answer_of(joined, Request.PULL_MESSAGE, pull)).code == Response.PULL_NOT_FOUND:
        assert time.monotonic() < until
    assert answer.code == Response.PULL_OFFSET_MOVED
    return answer


@pytest.mark.parametrize(("model", "owners"), [("CLUSTERING", {"me"}), ("BROADCASTING", set())])
def test_who_pulls_without_asking_where_to_go_on_has_the_queue_unless_all_have_it(
    gateway: Any, peer: Any, topic: str, model: str, owners: set[str]
) -> None:
    """A client that has outlived a gateway asks the next one for nothing but messages."""
    group, joined, until = f"g{model}{topic}", peer(), time.monotonic() + WAIT_S
    beat = heartbeat("me", group, topic, model=model)
    assert answer_of(joined, Request.HEART_BEAT, body=beat).code == Response.SUCCESS
    with GroupAdmin(gateway.consume) as admin:
        while True:
            pull = pull_fields(topic, 0, 0, consumerGroup=group)
            assert answer_of(joined, Request.PULL_MESSAGE, pull).code == Response.SUCCESS
            queues = admin.describe(group).queues
            found = {each.owner for each in queues} - {""}
            if queues and found == owners:  # the topic is new: the coordinator may not know it yet
                break
            assert time.monotonic() < until, found
        assert {each.offset for each in queues} == {-1}, "nothing is done before it says so"


def test_a_group_that_is_switched_off_is_not_given_messages_and_its_clients_live(
    gateway: Any, peer: Any, topic: str
) -> None:
    group, stranger = f"g{topic}", peer()
    joined = member(peer, "me", group, topic)
    at_end = pull_fields(topic, 0, 3, consumerGroup=group, sysFlag=WAITS, suspendTimeoutMillis=9000)
    with GroupAdmin(gateway.consume) as admin:
        held = joined.send(Request.PULL_MESSAGE, at_end)
        assert answer_of(joined, Request.HEART_BEAT, body=heartbeat("me", group, topic)).code == 0
        admin.set(group, {"consumeEnable": False})
        until = time.monotonic() + WAIT_S
        for flags in (HAS_SUBSCRIPTION, 0):
            asker = joined if not flags else stranger
            pull = pull_fields(topic, 0, 0, consumerGroup=group, sysFlag=flags)
            while (answer := answer_past(asker, held, Request.PULL_MESSAGE, pull)).code == 0:
                assert time.monotonic() < until
            assert (answer.code, answer.body) == (Response.NO_PERMISSION, b"")
        beat = heartbeat("me", group, topic)
        assert answer_past(joined, held, Request.HEART_BEAT, body=beat).code == Response.SUCCESS
        beat = heartbeat("new", f"{group}-2", topic)
        admin.set(f"{group}-2", {"consumeEnable": False})
        assert answer_of(stranger, Request.HEART_BEAT, body=beat).code == Response.SUCCESS
        admin.set(group, {"consumeEnable": True})
        pull = pull_fields(topic, 0, 0, consumerGroup=group, sysFlag=0)
        assert answer_past(joined, held, Request.PULL_MESSAGE, pull).code == Response.SUCCESS


def test_a_pull_that_waits_is_refused_when_its_group_is_switched_off(
    gateway: Any, peer: Any, topic: str
) -> None:
    group = f"g{topic}"
    joined = member(peer, "me", group, topic)
    at_end = pull_fields(
        topic, 0, 3, consumerGroup=group, sysFlag=WAITS, suspendTimeoutMillis=60000
    )
    held = joined.send(Request.PULL_MESSAGE, at_end)
    with GroupAdmin(gateway.consume) as admin:
        admin.set(group, {"consumeEnable": False})
    while (heard := joined.hear()).opaque != held:
        pass
    assert heard.code == Response.NO_PERMISSION, "long before its time is over"


def test_a_member_that_broadcasts_is_refused_where_its_group_may_not(
    gateway: Any, peer: Any, topic: str
) -> None:
    group, joined = f"g{topic}", peer()
    with GroupAdmin(gateway.consume) as admin:
        admin.set(group, {"consumeBroadcastEnable": False})
    beat = heartbeat("me", group, topic, model="BROADCASTING")
    assert answer_of(joined, Request.HEART_BEAT, body=beat).code == Response.SUCCESS
    pull, until = (
        pull_fields(topic, 0, 0, consumerGroup=group, sysFlag=0),
        time.monotonic() + WAIT_S,
    )
    while answer_of(joined, Request.PULL_MESSAGE, pull).code != Response.NO_PERMISSION:
        assert time.monotonic() < until


def test_a_group_that_broadcasts_is_found_by_the_route_of_its_retries(
    peer: Any, topic: str
) -> None:
    """As mqadmin's consumerProgress and the dashboard look for it."""
    group, joined = f"g{topic}", peer()
    beat = heartbeat("me", group, topic, model="BROADCASTING")
    assert answer_of(joined, Request.HEART_BEAT, body=beat).code == Response.SUCCESS
    route: dict[str, object] = {"topic": f"%RETRY%{group}"}
    until = time.monotonic() + WAIT_S
    while answer_of(joined, Request.GET_ROUTEINFO_BY_TOPIC, route).code != Response.SUCCESS:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_where_groups_are_not_made_by_themselves_nobody_pulls_for_one_that_is_not_there(
    start_broker: Any, new_peer: Any
) -> None:
    running = start_broker(
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
        auto_create_subscription_group="false",
    )  # fmt: skip
    with Producer(running.produce) as producer:
        producer.create_topic("orders", 1)
    asker = new_peer(running.status()["endpoints"]["remoting"])
    pull = pull_fields("orders", 0, 0, consumerGroup="nobody-knows-it")
    assert asker.ask(Request.PULL_MESSAGE, pull).code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
    known = (Response.PULL_NOT_FOUND, Response.PULL_OFFSET_MOVED)
    assert asker.ask(Request.PULL_MESSAGE, pull | {"consumerGroup": "TOOLS_CONSUMER"}).code in known
    with GroupAdmin(running.consume) as admin:
        admin.set("nobody-knows-it", {})
    assert asker.ask(Request.PULL_MESSAGE, pull).code in known


def test_a_message_that_is_given_back_comes_to_its_group_again(peer: Any, topic: str) -> None:
    group = f"g{topic}"
    joined = member(peer, "me", group, topic)
    pulled = answer_of(joined, Request.PULL_MESSAGE, pull_fields(topic, 0, 0, consumerGroup=group))
    first = records(pulled.body)[0]
    back = {"offset": first.physical_offset, "group": group, "delayLevel": 1}
    assert answer_of(joined, Request.CONSUMER_SEND_MSG_BACK, back).code == Response.SUCCESS
    wanted = {"sysFlag": HAS_SUBSCRIPTION | WAITS, "suspendTimeoutMillis": 15000}
    retries = pull_fields(f"%RETRY%{group}", 0, 0, consumerGroup=group, **wanted)
    (again,) = records(answer_of(joined, Request.PULL_MESSAGE, retries).body)
    assert (again.body, again.reconsume_times) == (first.body, 1)
    back["delayLevel"] = -1
    assert answer_of(joined, Request.CONSUMER_SEND_MSG_BACK, back).code == Response.SUCCESS
    dead = pull_fields(f"%DLQ%{group}", 0, 0, **wanted)
    (letter,) = records(answer_of(joined, Request.PULL_MESSAGE, dead).body)
    assert letter.body == first.body
    # what RocketMQ's broker adds, and nothing else
    added = set(decode_properties(letter.properties)) - set(decode_properties(first.properties))
    assert added == {"RETRY_TOPIC", "WAIT", "ORIGIN_MESSAGE_ID", "DELAY"}
    # who gives it back need not be a member, but the group has to be there
    stranger = peer()
    assert stranger.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == Response.SUCCESS
    dead["queueOffset"] = 1
    assert len(records(stranger.ask(Request.PULL_MESSAGE, dead).body)) == 1
    back["group"] = "not-there"
    assert stranger.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == 26


def set_group(gateway: Any, group: str, **settings: Any) -> None:
    with GroupAdmin(gateway.consume) as admin:
        admin.set(group, settings)


@pytest.mark.parametrize(
    ("set_most", "says", "times", "is_dead"),
    [(3, {}, 3, False), (3, {}, 4, True), (16, {}, 4, False)]
    + [(3, {"maxReconsumeTimes": 9}, 4, False), (9, {"maxReconsumeTimes": 3}, 4, True)],
)
def test_what_comes_again_by_a_send_is_dead_when_it_has_come_more_often_than_its_group_has_set(
    gateway: Any,
    peer: Any,
    topic: str,
    set_most: int,
    says: dict[str, int],
    times: int,
    is_dead: bool,
) -> None:
    group, asker = f"g{topic}", peer()
    set_group(gateway, group, retryMaxTimes=set_most)
    with Producer(gateway.produce) as producer:
        producer.create_topic(f"%RETRY%{group}", 1)
    stored = stored_of(asker, given_back(asker, group, reconsumeTimes=times, **says))
    assert stored.topic == (f"%DLQ%{group}" if is_dead else f"%RETRY%{group}")


def given_back(asker: Any, group: str, **more: object) -> dict[str, object]:
    return {
        "producerGroup": "CLIENT_INNER_PRODUCER", "topic": f"%RETRY%{group}", "queueId": 0,
        "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1,
        "flag": 0, "properties": "",
    } | more  # fmt: skip


def stored_of(asker: Any, fields: dict[str, object]) -> Record:
    """What a message is stored as."""
    sent = asker.ask(Request.SEND_MESSAGE, fields, b"again")
    assert sent.code == Response.SUCCESS, sent.remark
    offset = int(sent.fields["msgId"][16:], 16)
    return decode_record(asker.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": offset}).body)


def test_what_a_group_gives_back_that_consumes_in_order_is_dead_at_once(
    peer: Any, gateway: Any, topic: str
) -> None:
    group, asker = f"g{topic}", peer()
    joined = member(peer, "me", group, topic)
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": topic}
    body = msgspec.json.encode({"clientId": "me", "consumerGroup": group, "mqSet": [queue]})
    with Producer(gateway.produce) as producer:
        producer.create_topic(f"%RETRY%{group}", 1)
    sent = given_back(asker, group, maxReconsumeTimes=9)
    assert stored_of(asker, sent).topic == f"%RETRY%{group}"
    locked = answer_of(joined, Request.LOCK_BATCH_MQ, body=body)
    assert len(json.loads(locked.body)["lockOKMQSet"]) == 1
    dead = stored_of(asker, sent)
    assert dead.topic == f"%DLQ%{group}"
    assert decode_properties(dead.properties)["DELAY"] == "-1"  # RocketMQ's mark
    assert answer_of(joined, Request.UNLOCK_BATCH_MQ, body=body).code == Response.SUCCESS
    assert stored_of(asker, sent).topic == f"%RETRY%{group}"


def test_a_lock_waits_for_the_heartbeat_of_its_client_and_not_for_long(
    peer: Any, topic: str
) -> None:
    group, early, stranger = f"g{topic}", peer(), peer()
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": topic}

    def locks(client: str) -> bytes:
        return msgspec.json.encode({"clientId": client, "consumerGroup": group, "mqSet": [queue]})

    lock = Command(Request.LOCK_BATCH_MQ, 1, {}, locks("early"))
    beat = Command(Request.HEART_BEAT, 2, {}, heartbeat("early", group, topic))
    # at once: on a busy machine the second of two calls may come later than the lock waits
    early.socket.sendall(encode_command(lock) + encode_command(beat))
    while (answer := early.hear()).opaque != 1 or not answer.is_response:
        pass  # its heartbeat, and that its group has changed
    assert json.loads(answer.body) == {"lockOKMQSet": [queue]}
    answer = stranger.ask(Request.LOCK_BATCH_MQ, {}, locks("stranger"))
    assert json.loads(answer.body) == {"lockOKMQSet": []}


def test_members_of_a_group_that_has_set_it_are_told_of_nobody_that_comes(
    gateway: Any, peer: Any, topic: str
) -> None:
    group, first, second = f"g{topic}", peer(), peer()
    set_group(gateway, group, notifyConsumerIdsChangedEnable=False)
    until = time.monotonic() + WAIT_S
    listed: dict[str, object] = {"consumerGroup": group}
    for client, by in (("a", first), ("b", second)):
        assert by.ask(Request.HEART_BEAT, body=heartbeat(client, group, topic)).code == 0

    def members() -> list[str]:
        found: list[str] = json.loads(first.ask(Request.GET_CONSUMER_LIST_BY_GROUP, listed).body)[
            "consumerIdList"
        ]
        return found

    while members() != ["a", "b"]:  # nor is it told anything meanwhile
        assert time.monotonic() < until
    # of one that is lost they are told
    second.socket.close()
    assert first.hear().code == Request.NOTIFY_CONSUMER_IDS_CHANGED


def test_what_is_given_back_is_stored_though_its_group_has_more_queues_than_their_topic(
    gateway: Any, peer: Any, topic: str
) -> None:
    stranger, group = peer(), f"g{topic}"
    with GroupAdmin(gateway.consume) as admin, Producer(gateway.produce) as producer:
        producer.create_topic(f"%RETRY%{group}", 1)
        admin.set(group, {"retryQueueNums": 50})
    given_back = 0
    for queue in range(QUEUES):
        pull = pull_fields(topic, queue, 0, sysFlag=HAS_SUBSCRIPTION)
        for each in records(answer_of(stranger, Request.PULL_MESSAGE, pull).body):
            back = {"offset": each.physical_offset, "group": group, "delayLevel": 1}
            answer = answer_of(stranger, Request.CONSUMER_SEND_MSG_BACK, back)
            assert answer.code == Response.SUCCESS, answer.remark
            given_back += 1
    assert given_back == 3 * QUEUES


def test_a_member_of_penstocks_own_gets_queues_that_a_client_goes_on_without(
    gateway: Any, peer: Any, topic: str
) -> None:
    """The client asked for both queues, and after the other one's coming pulls but one."""
    group = f"g{topic}"
    joined = member(peer, "0-first", group, topic)
    for queue in range(QUEUES):
        fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": queue}
        answer_of(joined, Request.QUERY_CONSUMER_OFFSET, fields)
    with GroupConsumer(gateway.consume, group=group, topics=topic, start="first") as own:
        found: list[int] = []
        until = time.monotonic() + WAIT_S
        while len(found) < 3:
            assert time.monotonic() < until
            answer_of(joined, Request.PULL_MESSAGE, pull_fields(topic, 0, 3, consumerGroup=group))
            for message in own.poll(0.2):
                found.append(message.queue_id)
                message.ack()
    assert found == [1, 1, 1]


def test_topics_are_made_changed_and_described(peer: Any) -> None:
    asker = peer()
    fields: dict[str, object] = {
        "topic": "made-by-tool",
        "readQueueNums": 3,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
    fields |= {"writeQueueNums": 2, "perm": 4}
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
    answer = asker.ask(Request.GET_TOPIC_CONFIG, {"topic": "made-by-tool"})
    found = json.loads(answer.body)
    assert (found["readQueueNums"], found["writeQueueNums"], found["perm"]) == (3, 2, 4)
    stats = asker.ask(Request.GET_TOPIC_STATS_INFO, {"topic": "made-by-tool"})
    assert len(json.loads(stats.body)["offsetTable"]) == 3
    assert asker.ask(Request.GET_TOPIC_CONFIG, {"topic": "no"}).code == Response.TOPIC_NOT_EXIST
    fields["topic"] = "TBW102"
    assert asker.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.INVALID_PARAMETER
