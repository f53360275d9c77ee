"""Messages: each field is that of the stored record, none can be changed, none costs before it is
asked for."""

from __future__ import annotations

import copy
import inspect
import pickle  # noqa: TID251 - what others do with messages
import pydoc
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.message import (
    Message,
    longest_answer_bytes,
    read_records,
    split_records,
)
from penstock.shared.errors import StoreDamaged, UnreadableBody
from penstock.shared.formats.compression import compress
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import (
    Record,
    decode_record,
    encode_record,
    host_text,
    pack_host,
)
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET, SYS_COMPRESSED
from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.loops import active
from penstock.shared.loops.pure import message as pure_message
from penstock.shared.names import MAX_PROPERTIES_BYTES, MAX_RETRY_TOPIC_BYTES
from penstock.shared.queue.reader import MAX_PULL_BYTES

RecordMaker = Callable[..., Record]
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
hosts = st.sampled_from([pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)])
records = st.builds(
    Record,
    topic=st.sampled_from(["orders", "%RETRY%" + "g" * 200]),
    body=st.binary(max_size=60),
    properties=st.dictionaries(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", "XKEYS", "own"]), texts
    ).map(encode_properties),
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, MAX_QUEUE_OFFSET - 1),
    physical_offset=st.integers(0, 2**63 - 1),
    sys_flag=st.sampled_from([0, 1, 3]),
    born_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    born_host=hosts,
    store_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    store_host=hosts,
    reconsume_times=st.integers(0, 2**31 - 1),
)


@given(records, st.binary(max_size=5))
def test_every_field_is_that_of_the_record(record: Record, around: bytes) -> None:
    raw = encode_record(record)
    buffer = memoryview(around + raw + around)
    message = Message(buffer[len(around) : len(around) + len(raw)])
    stored = decode_record(raw)
    for name in (
        "topic",
        "queue_id",
        "flag",
        "queue_offset",
        "physical_offset",
        "sys_flag",
        "born_timestamp_ms",
        "store_timestamp_ms",
        "reconsume_times",
    ):
        assert getattr(message, name) == getattr(stored, name), name
    assert message.stored_body == stored.body
    if not stored.sys_flag & SYS_COMPRESSED:
        assert (message.body, message.compression) == (stored.body, None)
    assert message.born_host == host_text(stored.born_host)
    assert message.store_host == host_text(stored.store_host)
    assert message.message_id == offset_message_id(stored.store_host, stored.physical_offset)
    properties = decode_properties(stored.properties)
    assert message.properties == properties
    assert message.tags == properties.get("TAGS")
    assert message.keys == properties.get("KEYS")
    assert message.unique_key == properties.get("UNIQ_KEY")
    assert message.shard == properties.get("__SHARDINGKEY")
    assert message == Message(raw) and hash(message) == hash(Message(raw))


@given(st.lists(records, max_size=5))
def test_a_payload_is_its_records(found: list[Record]) -> None:
    payload = b"".join(map(encode_record, found))
    assert [message.record for message in split_records(payload)] == [
        encode_record(record) for record in found
    ]


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_a_payload_that_goes_on_with_no_record_names_the_first_offset_that_is_missing(
    make_record: RecordMaker, whole: int
) -> None:
    good = [encode_record(make_record(queue_id=2, queue_offset=40 + n)) for n in range(whole)]
    payload = b"".join(good) + b"x" * 200
    with pytest.raises(StoreDamaged) as caught:
        read_records(payload, (0, len(payload)), 2, range(40, 50), 1 << 20)
    assert caught.value.value == f"queue 2, offset {40 + whole}"


@pytest.mark.parametrize(
    ("offsets", "queue", "missing"),
    [
        ((40, 42, 42), 2, 41),
        ((40, 45, 42), 2, 41),
        ((40, 45, 41), 2, 41),
        # no better word than the one before
        ((40, 41, 40), 2, 42),
        ((40, 41, 39), 2, 42),
        ((45, 42), 2, 40),
        ((40, 42, 42), 3, 43),
        ((40, 45, 42), 3, 46),
        ((40, 42, 50), 2, 43),
        ((50,), 2, 40),
    ],
)
def test_where_offsets_go_back_the_one_before_was_too_high(
    make_record: RecordMaker, offsets: tuple[int, ...], queue: int, missing: int
) -> None:
    """If the record that goes back is of the queue. Those before the wrong one are taken first."""
    queues = [2] * (len(offsets) - 1) + [queue]
    records = [
        encode_record(make_record(queue_id=queue_id, queue_offset=offset))
        for queue_id, offset in zip(queues, offsets, strict=True)
    ]
    payload = b"".join(records)
    with pytest.raises(StoreDamaged) as caught:
        read_records(payload, (0, len(payload)), 2, range(40, 50), 1 << 20)
    assert caught.value.queue_offset == missing


def test_half_an_offset_says_nothing_of_the_one_before(make_record: RecordMaker) -> None:
    records = [
        encode_record(make_record(queue_id=2, queue_offset=offset)) for offset in (0, 10, 600)
    ]
    payload = b"".join(records[:2]) + records[2][: AT_QUEUE_OFFSET + 7]
    with pytest.raises(StoreDamaged) as caught:
        read_records(payload, (0, len(payload)), 2, range(1000), 1 << 20)
    assert caught.value.queue_offset == 11


@pytest.fixture
def message(make_record: RecordMaker) -> Message:
    return Message(encode_record(make_record(properties=encode_properties({"TAGS": "t"}))))


NAMES = sorted(
    name
    for name in dir(Message)
    if not name.startswith("_") and not callable(getattr(Message, name))
)


def test_the_names_above_are_all_there_are() -> None:
    assert len(NAMES) == 21, NAMES


@pytest.mark.parametrize("name", [*NAMES, "anything"])
def test_nothing_can_be_changed(message: Message, name: str) -> None:
    before = message.record.tobytes()
    for value in (b"x", None):
        with pytest.raises(AttributeError, match=name):
            setattr(message, name, value)
    with pytest.raises(AttributeError, match=name):
        delattr(message, name)
    assert message.record == before
    with pytest.raises(TypeError):
        message.properties["TAGS"] = "u"


def test_equal_bytes_are_equal_messages_and_other_bytes_are_not(make_record: RecordMaker) -> None:
    one, two = (Message(encode_record(make_record(body=body))) for body in (b"1", b"2"))
    assert one != two and one != "a message" and one == Message(one.record)
    assert len({one, two, Message(bytes(one.record))}) == 2


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_a_compressed_body_is_decompressed_when_asked_for(
    make_record: RecordMaker, name: str
) -> None:
    body = b"all work and no play " * 300
    stored, bits = compress(name, body)
    raw = encode_record(make_record(body=stored, sys_flag=bits | 2))
    message = Message(raw)
    assert (message.body, message.stored_body, message.compression) == (body, stored, name)
    small = Message(raw, max_body_bytes=len(body) - 1)
    with pytest.raises(UnreadableBody, match="max_body_bytes"):
        _ = small.body
    assert small.stored_body == stored and small.topic == "orders"
    assert Message(raw, max_body_bytes=len(body)).body == body


def test_a_body_that_cannot_be_decompressed_is_an_error_of_that_message_only(
    make_record: RecordMaker,
) -> None:
    bad, good = (
        encode_record(make_record(body=b"no zlib", sys_flag=bits)) for bits in (0x301, 0x300)
    )
    first, second = split_records(bad + good)
    with pytest.raises(UnreadableBody, match="zlib"):
        _ = first.body
    assert repr(first).endswith("7 bytes)") and first.stored_body == b"no zlib" == second.body


def test_making_one_decodes_nothing() -> None:
    """A consumer that looks at offsets only pays for nothing else."""
    message = Message(b"no record at all")
    with pytest.raises(struct.error):
        _ = message.queue_id


def test_a_field_is_decoded_once(message: Message) -> None:
    body: Any = message.body
    assert message.body is body and message.properties is message.properties


def test_it_has_no_room_for_what_is_not_its_record(message: Message) -> None:
    """Millions of them are made; a dictionary in each would cost more than all they say."""
    assert not hasattr(message, "__dict__")


def test_its_text_says_where_it_is(message: Message) -> None:
    assert repr(message) == "Message(orders/0@0, tags='t', keys=None, 11 bytes)"


# --- in both twins ---

FORMS = pytest.mark.parametrize("kind", [active.Message, pure_message.Message])


@FORMS
@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_each_attribute_is(kind: type, name: str) -> None:
    said = inspect.getdoc(getattr(kind, name))
    assert said and said == inspect.getdoc(getattr(pure_message.Message, name))
    assert said in pydoc.render_doc(kind, renderer=pydoc.plaintext)


@FORMS
def test_a_message_can_be_pickled_and_copied(kind: Any, make_record: RecordMaker) -> None:
    raw = encode_record(make_record(body=b"of many", properties=encode_properties({"KEYS": "k"})))
    message = kind(memoryview(raw * 100)[len(raw) : 2 * len(raw)], max_body_bytes=77)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        packed = pickle.dumps(message, protocol)
        assert len(packed) < 10 * len(raw), "and not the answer that it came in"
        again = pickle.loads(packed)
        assert type(again) is active.Message
        assert again == active.Message(raw) and again.body == b"of many" and again.keys == "k"
    assert copy.copy(message) is message
    own = copy.deepcopy([message])[0]
    assert type(own) is kind and own == message and own.body == b"of many"
    assert own.record.obj == raw, "it holds its own bytes only"


@FORMS
def test_what_a_message_may_expand_to_goes_with_its_copies(
    kind: Any, make_record: RecordMaker
) -> None:
    stored, bits = compress("zlib", bytes(5000))
    message = kind(encode_record(make_record(body=stored, sys_flag=bits)), max_body_bytes=4999)
    for again in (message, copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        with pytest.raises(UnreadableBody, match="max_body_bytes"):
            _ = again.body


@FORMS
def test_the_text_of_a_message_is_short_whatever_is_in_it(
    kind: Any, make_record: RecordMaker
) -> None:
    long = encode_properties({"KEYS": "k" * 20_000, "TAGS": "t" * 10_000})
    assert len(repr(kind(encode_record(make_record(properties=long))))) < 250
    assert repr(kind(b"no record at all")) == "Message(no record: b'no record at all')"
    assert "no record" in repr(kind(b""))


@pytest.mark.parametrize("max_body_bytes", [0, MAX_PULL_BYTES, 5 * MAX_PULL_BYTES])
def test_an_answer_of_the_largest_record_is_taken(
    make_record: RecordMaker, max_body_bytes: int
) -> None:
    largest = encode_record(
        make_record(
            topic="t" * MAX_RETRY_TOPIC_BYTES,
            body=bytes(max_body_bytes),
            properties=bytes(MAX_PROPERTIES_BYTES),
        )
    )
    assert longest_answer_bytes(max_body_bytes) >= max(len(largest), MAX_PULL_BYTES)
