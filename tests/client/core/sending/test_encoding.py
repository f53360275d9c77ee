"""What a sender hands in becomes the record, byte for byte, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.sending.encoding import (
    BatchMessage,
    BrokerLimits,
    Encoder,
    check_common,
    topic_bytes,
    waiting_form,
)
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    PropertiesTooLarge,
)
from penstock.shared.formats.message_id import key_number, key_origin, make_unique_key
from penstock.shared.formats.properties import RESERVED, decode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import check_frame
from penstock.shared.messaging.delayed import Delay
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.wire.messages import Welcome

NOW = 1_700_000_000_123
V4, V6 = bytes([10, 1, 2, 3]), pack_host("2001:db8::1", 0)[:-4]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
maybe = st.none() | st.just("") | texts


def encode(
    topic: str = "orders",
    body: Any = b"body",
    *,
    ip: bytes = V4,
    queue_id: int = 0,
    tags: str | None = None,
    keys: str | None = None,
    shard: str | None = None,
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
    limit: int = 0,
    shape: Shape = Shape(),  # noqa: B008 - a tuple
    wait: bool = True,
) -> tuple[bytes, str]:
    origin = key_origin(ip, NOW)
    encoder = Encoder(ip, origin)
    encoder.terms.max_message_bytes = limit
    encoder.terms.shape = shape
    topic_bytes(topic)
    draft = encoder.draft(BatchMessage(body, tags, keys, properties, flag), shard, wait)
    numbers = encoder.numbers.several(NOW, 1)
    packed = bytearray(encoder.room(topic, draft))
    starts = encoder.pack(packed, [(topic, queue_id, [draft], numbers)])
    return bytes(packed[: starts[-1]]), make_unique_key(origin, numbers[0])


def test_properties_are_any_mapping() -> None:
    given_as = MappingProxyType({"colour": "red"})
    assert (
        decode_properties(decode_record(encode(properties=given_as)[0]).properties)["colour"]
        == "red"
    )


@given(
    st.sampled_from(["orders", "a", "t" * 127, "%RETRY%" + "g" * 121, "%DLQ%" + "g" * 250]),
    st.binary(max_size=300),
    st.sampled_from([bytes, bytearray, memoryview]),
    st.sampled_from([V4, V6]),
    st.integers(0, 1023),
    maybe,
    maybe,
    maybe,
    st.none() | st.dictionaries(texts.filter(lambda key: key not in RESERVED), texts, max_size=3),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([Shape(), Shape(20), Shape(8, True), Shape(20, True)]),
    st.booleans(),
)
def test_a_record_is_what_encode_record_makes_of_the_same_fields(
    topic: str,
    body: bytes,
    kind: type,
    ip: bytes,
    queue_id: int,
    tags: str | None,
    keys: str | None,
    shard: str | None,
    properties: dict[str, str] | None,
    flag: int,
    shape: Shape,
    wait: bool,
) -> None:
    raw, unique_key = encode(
        topic,
        kind(body),
        ip=ip,
        queue_id=queue_id,
        tags=tags,
        keys=keys,
        shard=shard,
        properties=properties,
        flag=flag,
        shape=shape,
        wait=wait,
    )
    found = decode_record(raw)
    blank = Record(
        topic=topic,
        body=body,
        properties=found.properties,
        queue_id=queue_id,
        flag=flag,
        born_timestamp_ms=NOW,
        born_host=ip + bytes(4),
        store_host=bytes(shape.store_host_bytes),
    )
    assert raw == encode_record(blank), "offsets, store time and store host are blank"
    arguments = {"TAGS": tags, "KEYS": keys, "__SHARDINGKEY": shard, "UNIQ_KEY": unique_key}
    given_properties = {key: value for key, value in arguments.items() if value}
    given_properties |= {} if wait else {"WAIT": "false"}
    given_properties |= {"__CRC32#": "0" * 10} if shape.prop_crc else {}
    assert decode_properties(found.properties) == given_properties | (properties or {})
    run = (topic.encode(), queue_id, 1)
    assert check_frame(raw, [run], 1 << 20, shape=shape) == [0, len(raw)]


def test_unique_keys_are_unique_and_of_rocketmqs_form() -> None:
    numbers = Encoder(V4, key_origin(V4, NOW)).numbers
    several = [numbers.next(NOW + i // 9) for i in range(50)] + list(numbers.several(NOW, 49))
    keys = [make_unique_key(numbers.origin, number) for number in several]
    assert len(set(keys)) == 99
    assert several[0] == key_number(numbers.origin, NOW, 1)
    assert several[98] == key_number(numbers.origin, NOW, 99)
    assert all(len(key) == 32 and bytes.fromhex(key)[:4] == V4 for key in keys)


def test_a_body_that_is_changed_after_the_send_does_not_change_the_message() -> None:
    body = bytearray(b"before")
    raw, _ = encode(body=body)
    body[:] = b"after!"
    assert decode_record(raw).body == b"before"


@pytest.mark.parametrize("topic", ["o", "t" * 127])
@pytest.mark.parametrize("queue_id", [0, MAX_QUEUES_PER_TOPIC - 1])
@pytest.mark.parametrize("shape", [Shape(), Shape(20, True)])
def test_there_is_room_for_a_message_that_waits_whichever_queue_it_gets(
    topic: str, queue_id: int, shape: Shape
) -> None:
    encoder = Encoder(V6, key_origin(V6, NOW))
    delay = Delay(out_ms=NOW)
    encoder.terms.shape = shape
    draft = encoder.draft(BatchMessage(b"b" * 500, "tag", "key"), None, True)
    waits = waiting_form(draft, topic, queue_id, delay)
    packed, run = bytearray(5000), (delay.topic, 0, [waits], encoder.numbers.several(NOW, 1))
    size = encoder.pack(packed, [run])[-1]
    assert size <= encoder.room(topic, draft, delay) < size + 100


# --- rules ---


def refused(error: type[PenstockError] = InvalidMessage, **arguments: Any) -> PenstockError:
    """The error of a send; it names rule, value and the next step."""
    with pytest.raises(error) as caught:
        encode(**arguments)
    assert type(caught.value) is error
    assert caught.value.what in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        ("", "''"),
        ("a b", "' '"),
        ("a/b", "'/'"),
        ("..", "'.'"),
        ("ü", "'ü'"),
        ("a\0", "'\\x00'"),
        ("t" * 128, "128"),
        ("%RETRY%" + "g" * 249, "256"),
    ],
)
def test_a_topic_has_few_characters_and_a_length(topic: str, value: str) -> None:
    error = refused(InvalidArgument, topic=topic)
    assert "topic" in error.what and value in str(error.value) and error.hint


@pytest.mark.parametrize("body", ["text", None, 5, [1], BatchMessage])
def test_a_body_is_bytes(body: object) -> None:
    error = refused(body=body)
    found = "None" if body is None else f"{type(body).__name__} {body!r}"
    assert error.what == "body is not bytes" and error.value == found
    assert "encode" in error.hint


def test_a_message_of_a_batch_is_no_body() -> None:
    assert refused(body=BatchMessage(b"x")).what == "body is not bytes"


def test_a_body_is_no_larger_than_the_broker_takes() -> None:
    assert encode(body=b"x" * 100, limit=100)
    error = refused(body=b"x" * 101, limit=100)
    assert "100" in error.what and error.value == 101 and "max_message_size_bytes" in error.hint
    assert encode(body=b"x" * 101, limit=0), "not known yet: the broker checks again"


def test_properties_fit_their_signed_length() -> None:
    _, unique_key = encode()
    own = len(f"UNIQ_KEY\x01{unique_key}\x02".encode())
    room = 32767 - own - len("p\x01\x02")
    raw, _ = encode(properties={"p": "x" * room})
    assert len(decode_record(raw).properties) == 32767
    for arguments in (
        {"properties": {"p": "x" * (room + 1)}},
        {"tags": "ü" * 16384},
        {"keys": "k" * 32768},
        {"shard": "s" * 32768},
    ):
        error = refused(PropertiesTooLarge, **arguments)
        assert "32767" in error.what and int(str(error.value)) > 32767 and error.hint
        assert error.status == "PROPERTIES_SIZE_EXCEEDED"


def test_a_message_of_a_batch_asks_for_no_delay() -> None:
    for name in ("DELAY", "TIMER_DELIVER_MS"):
        error = refused(properties={name: "3"})
        assert error.value == name and "batch" in error.what


def test_properties_leave_room_for_the_checksum() -> None:
    shape = Shape(8, True)
    _, unique_key = encode()
    room = 32767 - 20 - len(f"UNIQ_KEY\x01{unique_key}\x02p\x01\x02")
    assert encode(properties={"p": "x" * room}, shape=shape)
    assert refused(PropertiesTooLarge, properties={"p": "x" * (room + 1)}, shape=shape)


@pytest.mark.parametrize("name", sorted(RESERVED - {"DELAY"}))
def test_rocketmqs_own_names_are_not_properties(name: str) -> None:
    error = refused(properties={name: "x"})
    assert error.value == name and "tags, keys, shard and wait" in error.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {"tags": "a\x01b"},
        {"tags": "a\x02"},
        {"keys": "\x02b\x01c"},
        {"shard": "\x01"},
        {"tags": "a\x01", "keys": "\x02"},
        {"properties": {"a\x01b": "c"}},
        {"properties": {"a": "b\x02c"}},
        {"properties": {"": "b"}},
        {"properties": {"a": ""}},
        {"tags": "\ud800"},
        {"keys": "\udfff"},
        {"properties": {"a": "\ud800"}},
    ],
)
def test_what_the_properties_format_cannot_carry_is_refused(arguments: Any) -> None:
    assert refused(**arguments).hint


@pytest.mark.parametrize("name", ["tags", "shard", "keys"])
def test_what_is_no_text_is_refused_by_its_name(name: str) -> None:
    wrong: dict[str, Any] = {name: 7}
    error = refused(**wrong)
    assert isinstance(error, InvalidMessage) and name in str(error)


@pytest.mark.parametrize("flag", [2**31, -(2**31) - 1])
def test_a_flag_has_32_bits(flag: int) -> None:
    assert refused(flag=flag).value == flag


def test_the_room_of_a_record_is_enough_for_any_broker_and_little_more() -> None:
    for ip in (V4, V6):
        encoder = Encoder(ip, key_origin(ip, NOW))
        for topic in ("a", "%RETRY%" + "g" * 200):
            draft = encoder.draft(BatchMessage(b"body", "t", "k", {"a": "b"}), "s")
            sizes = []
            for shape in (Shape(), Shape(20), Shape(8, True), Shape(20, True)):
                encoder.terms.shape = shape
                room = bytearray(encoder.room(topic, draft))
                run = (topic, 0, [draft], encoder.numbers.several(NOW, 1))
                sizes.append(encoder.pack(room, [run])[-1])
            assert len(room) - 1 <= sizes[-1] <= len(room)
            assert sizes == [sizes[-1] - 32, sizes[-1] - 20, sizes[-1] - 12, sizes[-1]]


def test_what_a_broker_that_is_met_later_does_not_take_is_found_then() -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    room = 32767 - len(f"UNIQ_KEY\x01{make_unique_key(encoder.numbers.origin, 0)}\x02a\x01\x02")
    drafts = [encoder.draft(BatchMessage(b"x" * 9, properties={"a": "x" * room}), None)]
    encoder.check_again(drafts)
    encoder.terms.shape = Shape(8, True)
    with pytest.raises(PropertiesTooLarge):
        encoder.check_again(drafts)
    with pytest.raises(PropertiesTooLarge):
        encoder.pack(bytearray(1 << 20), [("a", 0, drafts, encoder.numbers.several(NOW, 1))])
    encoder.terms.shape, encoder.terms.max_message_bytes = Shape(), 8
    with pytest.raises(InvalidMessage, match="larger than 8 bytes"):
        encoder.check_again(drafts)


@pytest.mark.parametrize("limit", [0, 3, 4])
def test_a_batch_that_is_met_by_a_limit_later_may_have_just_as_many_bytes(limit: int) -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    drafts = [encoder.draft(BatchMessage(body), None, True) for body in (b"12", b"34")]
    encoder.terms.max_message_bytes = limit
    if limit == 3:
        with pytest.raises(InvalidMessage):
            encoder.check_again(drafts)
    else:
        encoder.check_again(drafts)


def test_a_brokers_shape_is_another_object_only_when_it_is_another_one() -> None:
    limits = BrokerLimits()
    first = limits.shape
    for prop_crc, is_first in ((False, True), (True, False), (True, False)):
        before = limits.shape
        limits.take(Welcome(1, 1, 1, 0, 4, 8, 1, 8, prop_crc))
        assert (limits.max_message_bytes, limits.max_frame_bytes) == (4, 8)
        assert limits.shape == Shape(8, prop_crc) and (limits.shape is first) == is_first
        assert limits.shape is before or before.prop_crc != prop_crc


class Text(str):
    """As the members of an enumeration of texts are."""


@pytest.mark.parametrize(
    ("ack", "wait", "means"),
    [
        ("", True, ""),
        ("durable", True, "durable"),
        ("written", True, "written"),
        (Text("durable"), True, "durable"),
        ("", False, "written"),
        ("written", False, "written"),
    ],
)
def test_what_a_sender_waits_for(ack: str, wait: bool, means: str) -> None:
    assert check_common("orders", 3, ack, wait) == ("orders", 3, means)
    assert check_common(Text("orders"), None, ack, wait) == ("orders", None, means)


@pytest.mark.parametrize(
    ("ack", "wait"), [("soon", True), (5, True), (None, True), ("", 1), ("durable", False)]
)
def test_what_nobody_can_wait_for_is_refused(ack: Any, wait: Any) -> None:
    with pytest.raises(InvalidArgument):
        check_common("orders", 3, ack, wait)
