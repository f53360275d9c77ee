"""Arguments of a wrong type are named, with what came and what is expected; keys may be many.

All of it with both twins of the loops. A process has one of them, so each runs in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from penstock.client import BatchMessage, Consumer, GroupConsumer, MessageQuery, Producer, aio
from penstock.client.core.arguments import check_whole, shown
from penstock.client.core.requests import merged
from penstock.shared.errors import InvalidArgument, InvalidMessage

NOBODY = "tcp://127.0.0.1:1"

# what is evaluated for each, what is said, and what came
WRONG = [
    ("tags=5", "tags is not a str", "int 5"),
    ("tags=b't'", "tags is not a str", "bytes b't'"),
    ("tags=0", "tags is not a str", "int 0"),
    ("tags=['t']", "tags is not a str", "list ['t']"),
    ("keys=b'k'", "keys is not a str, or a list, tuple or set of such", "bytes b'k'"),
    ("keys=b''", "keys is not a str, or a list, tuple or set of such", "bytes b''"),
    ("keys=5", "keys is not a str, or a list, tuple or set of such", "int 5"),
    ("keys={'a': 1}", "keys is not a str, or a list, tuple or set of such", "dict {'a': 1}"),
    ("keys=['a', 5]", "keys[1] is not a str", "int 5"),
    ("keys=['a', 'b c']", "keys[1] has a blank in it, which separates keys", "'b c'"),
    ("keys=('a', '')", "keys[1] is empty", "''"),
    ("shard=5", "shard is not a str", "int 5"),
    ("shard=False", "shard is not a str", "bool False"),
    ("queue='1'", "queue is not a whole number (int)", "str '1'"),
    ("queue=True", "queue is not a whole number (int)", "bool True"),
    ("queue=1.0", "queue is not a whole number (int)", "float 1.0"),
    ("properties={'n': 1}", "properties['n'] is not a str", "int 1"),
    ("properties={1: 'n'}", "a key of properties is not a str", "int 1"),
    ("properties=[('n', '1')]", "properties is not a mapping from str to str", "list [('n', '1')]"),
    ("properties=0", "properties is not a mapping from str to str", "int 0"),
    ("flag='1'", "flag is not a whole number (int)", "str '1'"),
    ("flag=False", "flag is not a whole number (int)", "bool False"),
    ("flag=None", "flag is not a whole number (int)", "None"),
    ("ack=None", 'ack is not "durable" or "written"', "None"),
    ("ack=1", 'ack is not "durable" or "written"', "int 1"),
    ("ack=['durable']", 'ack is not "durable" or "written"', "list ['durable']"),
    ("ack='all'", "there is no such acknowledgement", "'all'"),
    ("wait=1", "wait is not True or False", "int 1"),
    ("wait=0", "wait is not True or False", "int 0"),
    ("wait='no'", "wait is not True or False", "str 'no'"),
    ("body='text'", "body is not bytes", "str 'text'"),
    ("body=None", "body is not bytes", "None"),
    ("body=5", "body is not bytes", "int 5"),
    ("topic=5", "topic is not a str", "int 5"),
    ("topic=b'known'", "topic is not a str", "bytes b'known'"),
    ("topic=['known']", "topic is not a str", "list ['known']"),
    ("topic=None", "topic is not a str", "None"),
]
WRONG_BATCHES = [
    ("b'one'", "messages is not a list of messages", "bytes b'one'"),
    ("'one'", "messages is not a list of messages", "str 'one'"),
    ("None", "messages is not a list of messages", "None"),
    ("5", "messages is not a list of messages", "int 5"),
    ("BatchMessage(b'one')", "messages is not a list of messages", "BatchMessage "),
    ("[b'one', 'two']", "messages[1] is not a BatchMessage or bytes", "str 'two'"),
    ("[b'one', BatchMessage('two')]", "messages[1].body is not bytes", "str 'two'"),
    ("[BatchMessage(b'one', tags=5)]", "messages[0].tags is not a str", "int 5"),
    ("[BatchMessage(b'', keys=['a b'])]", "messages[0].keys[0] has a blank in it", "'a b'"),
    ("[BatchMessage(b'', properties={'n': 1})]", "messages[0].properties['n'] is", "int 1"),
    ("[BatchMessage(b'', flag=True)]", "messages[0].flag is not a whole number", "bool True"),
]
RIGHT = [
    ("keys=['a', 'b']", "a b"),
    ("keys=('a', 'b')", "a b"),
    ("keys={'b', 'a'}", "a b"),
    ("keys=frozenset(['a'])", "a"),
    ("keys='a b'", "a b"),
    ("keys=Name.KEY", "the-key"),
    ("keys=[Name.KEY, 'b']", "the-key b"),
    ("keys=[]", None),
    ("keys=''", None),
    ("keys=None", None),
]

PROGRAM = """
import asyncio, enum, json, sys
from threading import Condition
from penstock.client import BatchMessage, Producer, aio
from penstock.shared.loops import active
from penstock.shared.wire import messages
from penstock.shared.errors import PenstockError
from penstock.shared.formats.properties import decode_properties

class Name(str, enum.Enum):
    KEY = "the-key"

class Index:
    def __index__(self):
        return 3

wrong, batches, right = json.load(sys.stdin)
told = {}

def knows(producer):
    producer._core.routes.routed(messages.Routed(0, "known", 4))
    return producer

def refused(where, call, *arguments, **named):
    core = producer._core
    before = core.intake.unsettled, core.intake.waiting_bytes
    try:
        call(*arguments, **named)
    except PenstockError as error:
        told[where] = [type(error).__name__, error.what, str(error.value), error.hint]
    except Exception as error:
        told[where] = [type(error).__name__, str(error), "", ""]
    else:
        told[where] = ["nothing", "", "", ""]
    assert before == (core.intake.unsettled, core.intake.waiting_bytes), where

def all_of(kind):
    for topic in ("known", "unknown"):
        for each in wrong:
            usual = {"topic": topic, "body": b"x"} | eval(f"dict({each})")
            refused(f"{kind} {topic} {each}", producer.send, **usual)
        for each in batches:
            refused(f"{kind} {topic} {each}", producer.send_batch, topic, eval(each))

def properties():
    found = {}
    for each in right:
        with producer._lock:  # once it is settled there is no draft
            knows(producer)  # the broker may have said by now that there is no such topic
            future = producer.send("known", b"x", **eval(f"dict({each})"))
            draft = future.run.drafts[future.index]
        raw = draft[1] if isinstance(draft, tuple) else b""
        found[each] = decode_properties(raw).get("KEYS")
    with producer._lock:
        numbered = knows(producer).send("known", b"x", queue=Index())
        found["queue"] = [numbered.run.queue_id, type(numbered.run.queue_id).__name__]
    return found

producer = knows(Producer(sys.argv[1]))
all_of("sync")
told["right"] = properties()
told["pure"] = bool(active.why_pure)
producer._disconnect()

async def main():
    global producer
    async with aio.Producer(sys.argv[1]) as producer:
        knows(producer)
        all_of("aio")

asyncio.run(main())
json.dump(told, sys.stdout)
"""


@pytest.fixture(scope="module", params=["compiled", "pure"])
def told(request: pytest.FixtureRequest, broker: Any) -> dict[str, Any]:
    pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")
    cases = [[each[0] for each in table] for table in (WRONG, WRONG_BATCHES, RIGHT)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), broker.produce],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PENSTOCK_PURE": str(int(request.param == "pure"))},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["pure"] == (request.param == "pure")
    return found


@pytest.mark.parametrize("topic", ["known", "unknown"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize(("case", "what", "value"), WRONG + WRONG_BATCHES)
def test_what_is_wrong_is_named_with_what_came(
    told: dict[str, Any], kind: str, topic: str, case: str, what: str, value: str
) -> None:
    error, said, came, _ = told[f"{kind} {topic} {case}"]
    # of what is not the message's own it is an argument
    own = not case.startswith(("topic", "ack", "wait"))
    assert error == ("InvalidMessage" if own else "InvalidArgument")
    assert said.startswith(what) and came.startswith(value), (said, came)


@pytest.mark.parametrize("length", [10, 57, 58, 59, 1000])
def test_a_value_is_shown_as_it_is_written_or_its_beginning(length: int) -> None:
    text = repr("a" * length)
    assert shown("a" * length) == (text if length + 2 <= 60 else f"{text[:57]}...")


@pytest.mark.parametrize(("case", "keys"), RIGHT)
def test_keys_are_stored_with_blanks_between(
    told: dict[str, Any], case: str, keys: str | None
) -> None:
    assert told["right"][case] == keys


def test_what_stands_for_a_whole_number_is_one(told: dict[str, Any]) -> None:
    assert told["right"]["queue"] == [3, "int"]


def test_a_list_of_keys_finds_the_message_by_each(broker: Any) -> None:
    with Producer(broker.produce) as producer, MessageQuery(broker.consume) as query:
        producer.send("keyed", b"one", keys=["a", "b"]).result(60)
        batch = [BatchMessage(b"two", keys=("b", "c")), BatchMessage(b"three", keys={"c"})]
        producer.send_batch("keyed", batch).result(60)
        found = {key: [each.body for each in query.by_key("keyed", key)] for key in "abc"}
    assert found == {"a": [b"one"], "b": [b"one", b"two"], "c": [b"two", b"three"]}


CONSUMER = [
    ({"topic": 5}, "topic is not a str: int 5"),
    ({"start": 1.5}, "start is not earliest, latest"),
    ({"start": True}, "start is not earliest, latest"),
    ({"start": None}, "start is not earliest, latest"),
    ({"start": b"earliest"}, "start is not earliest, latest"),
    ({"start": "soon"}, "this is neither an offset nor a time: 'soon'"),
    ({"start": {"0": 1}}, "a queue of start is not a whole number .*: str '0'"),
    ({"start": {0: "1"}}, r"start\[0\] is not earliest"),
    ({"queues": 1}, "queues is not a list of whole numbers: int 1"),
    ({"queues": "01"}, "queues is not a list of whole numbers: str '01'"),
    ({"queues": ["0"]}, r"queues\[0\] is not a whole number .*: str '0'"),
    ({"queues": [-1]}, r"queues\[0\] is less than 0: -1"),
    ({"follow": 0}, "follow is not True or False: int 0"),
    ({"direct": "no"}, "direct is not True or False: str 'no'"),
    ({"tags": ["a"]}, r"tags is not a str: list \['a'\]"),
    ({"tags": None}, "tags is not a str: None"),
    ({"sql": 5}, "sql is not a str: int 5"),
    ({"group": b"g"}, "group is not a str: bytes b'g'"),
    ({"timeout_ms": "1000"}, "timeout_ms is not a whole number .*: str '1000'"),
    ({"timeout_ms": 0}, "timeout_ms is less than 1: 0"),
    ({"timeout_ms": 2**63}, "timeout_ms is more than 10+: 9223372036854775808"),
    ({"max_body_bytes": 1.5}, "max_body_bytes is not a whole number .*: float 1.5"),
    ({"max_body_bytes": 2**63}, "max_body_bytes is more than .*: 9223372036854775808"),
    ({"wait_for_broker_ms": "5"}, "wait_for_broker_ms is not a whole number .*: str '5'"),
    ({"wait_for_broker_ms": None}, "wait_for_broker_ms is not a whole number .*: None"),
    ({"wait_for_broker_ms": -1}, "wait_for_broker_ms is less than 0: -1"),
]


@pytest.mark.parametrize("kind", [Consumer, aio.Consumer])
@pytest.mark.parametrize(("arguments", "said"), CONSUMER)
def test_a_consumer_names_what_it_cannot_use(
    kind: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        kind(NOBODY, **({"topic": "orders"} | arguments))


PRODUCER = [
    ({"timeout_ms": "1000"}, "timeout_ms is not a whole number .*: str '1000'"),
    ({"timeout_ms": -5}, "timeout_ms is less than 1: -5"),
    ({"timeout_ms": 2**63}, "timeout_ms is more than 10+: 9223372036854775808"),
    ({"wait_for_broker_ms": 1.5}, "wait_for_broker_ms is not a whole number .*: float 1.5"),
    ({"compression": 5}, "there is no such compression: 5"),
    ({"compression": "gzip"}, "there is no such compression: 'gzip'"),
    ({"compress_over_bytes": "4k"}, "compress_over_bytes is not a whole number .*: str '4k'"),
    ({"ring": 1}, "ring is not True or False: int 1"),
]


@pytest.mark.parametrize("kind", [Producer, aio.Producer])
@pytest.mark.parametrize(("arguments", "said"), PRODUCER)
def test_a_producer_names_what_it_cannot_use(
    kind: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        kind(NOBODY, **arguments)


MEMBER = [
    ({"session_timeout_ms": 2**63}, "session_timeout_ms is more than 600000: 9223372036854775808"),
    ({"timeout_ms": 2**63}, "timeout_ms is more than 10+: 9223372036854775808"),
    ({"max_body_bytes": -1}, "max_body_bytes is less than 0: -1"),
    ({"wait_for_broker_ms": "5"}, "wait_for_broker_ms is not a whole number .*: str '5'"),
    ({"client_id": "x" * 256}, "the client id is longer than 255 characters"),
    ({"client_id": "\ud800"}, "the client id .* not printed"),
    ({"client_id": "a/b"}, "the client id cannot be part of a path: 'a/b'"),
    ({"strategy": None}, "strategy is not a name, or an object .*: None"),
    ({"strategy": 5}, "strategy is not a name, or an object .*: int 5"),
]


@pytest.mark.parametrize("kind", [GroupConsumer, aio.GroupConsumer])
@pytest.mark.parametrize(("arguments", "said"), MEMBER)
def test_a_member_names_what_it_cannot_use(kind: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        kind(NOBODY, **({"group": "billing", "topics": "orders"} | arguments))


QUESTIONS = [
    (("by_key", 5, "k"), "topic is not a str: int 5"),
    (("by_key", "orders", 5), "key is not a str: int 5"),
    (("by_key", "orders", ""), "key is empty"),
    (("by_key", "orders", "k", "3"), "max_num is not a whole number .*: str '3'"),
    (("by_key", "orders", "k", 0), "max_num is less than 1: 0"),
    (("by_unique_key", "orders", None), "unique_key is not a str: None"),
    (("by_id", b"00"), "message_id is not a str: bytes b'00'"),
]


@pytest.mark.parametrize(("question", "said"), QUESTIONS)
def test_a_query_names_what_it_cannot_use(
    broker: Any, question: tuple[Any, ...], said: str
) -> None:
    name, *arguments = question
    with MessageQuery(broker.consume) as query, pytest.raises(InvalidArgument, match=said):
        getattr(query, name)(*arguments)


@pytest.mark.parametrize("timeout", ["5", True, [], float("nan")])
def test_seconds_to_wait_are_a_number(mute: Any, timeout: Any) -> None:
    with (
        Producer(mute.produce, timeout_ms=1000) as producer,
        Consumer(mute.consume, "a") as consumer,
    ):
        future = producer.send("orders", b"x")
        for wait in (
            lambda: future.result(timeout),
            lambda: producer.flush(timeout),
            lambda: producer.topics(timeout),
            lambda: producer.create_topic("orders", 1, timeout),
            lambda: consumer.poll(timeout),
        ):
            with pytest.raises(InvalidArgument, match="timeout"):
                wait()
        assert future.exception(float("inf")) is not None, "as long as it takes"


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None])
def test_a_bool_and_what_is_no_whole_number_stand_for_none(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="a whole number"):
        check_whole("flag", value)


@pytest.mark.parametrize("given", [None, {}, {"colour": "red"}])
def test_properties_of_a_request_are_the_senders_and_its_own(given: dict[str, str] | None) -> None:
    own = {"id": "7", "to": "me"}
    assert merged(given, own) == (given or {}) | own
    assert own == {"id": "7", "to": "me"}


@pytest.mark.parametrize(
    ("given", "said"),
    [({"id": "5"}, "a name that requests and replies use"), ([("colour", "red")], "a mapping")],
)
def test_a_requests_own_properties_are_not_the_senders_to_say(given: Any, said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        merged(given, {"id": "7"})
