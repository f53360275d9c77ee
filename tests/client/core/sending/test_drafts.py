"""Drafts of single messages and of batches: what is added to each, and what is wrong with one."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

from penstock.client.core.sending.encoding import BatchMessage, Encoder, too_large, waiting_form
from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.message_id import key_origin, make_unique_key
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.messaging.delayed import Delay

NOW = 1_700_000_000_123
V4 = bytes([10, 1, 2, 3])


@pytest.mark.parametrize(("over", "least"), [({}, 4096), ({"compress_over_bytes": 100}, 100)])
def test_a_body_is_compressed_from_a_size_on_but_for_one_of_a_batch(
    over: dict[str, int], least: int
) -> None:
    encoder = Encoder(V4, key_origin(V4, NOW), "zlib", **over)
    short, long = BatchMessage(bytes(least - 1)), BatchMessage(bytes(least))
    assert encoder.draft(short, None) == short.body
    body, _, _, bits = encoder.draft(long, None)
    assert bits and isinstance(body, bytes) and zlib.decompress(body) == long.body
    assert encoder.drafts("orders", [long], None) == [long.body]


def test_all_messages_of_a_batch_have_what_is_said_of_the_batch() -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    drafts = encoder.drafts("orders", [b"x", BatchMessage(b"y", "t", flag=7)], "s", wait=False)
    own = {"WAIT": "false", "__SHARDINGKEY": "s"}
    assert [(body, decode_properties(raw), *more) for body, raw, *more in drafts] == [
        (b"x", own, 0, 0),
        (b"y", own | {"TAGS": "t"}, 7, 0),
    ]


@pytest.mark.parametrize(
    ("draft", "whole"), [(b"x", (b"x", b"", 0, 0)), ((b"x", b"own", 7, 3), (b"x", b"own", 7, 3))]
)
def test_a_message_that_waits_is_what_it_was_and_knows_where_it_is_going(
    draft: Any, whole: tuple[bytes, bytes, int, int]
) -> None:
    delay = Delay(3)
    body, raw, flag, bits = whole
    added = encode_properties(delay.properties("orders", 7))
    assert waiting_form(draft, "orders", 7, delay) == (body, raw + added, flag, bits)


@pytest.mark.parametrize("kind", [None, "application/json", "application/msgpack"])
def test_an_object_is_encoded_as_its_content_type_says(kind: str | None) -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    properties = {"a": "b"} if kind is None else {"content-type": kind}
    body, raw, *_ = encoder.draft(BatchMessage({"n": 7}, properties=properties), None)
    form: Any = msgspec.msgpack if kind == "application/msgpack" else msgspec.json
    assert body == form.encode({"n": 7})
    assert decode_properties(raw) == {"content-type": "application/json"} | properties


def test_how_much_is_known_of_a_body_that_is_too_large_is_told() -> None:
    known, unknown = too_large(11, 10), too_large(11, 10, and_more=True)
    assert known.value == 11 and str(known.hint).endswith("max_message_size_bytes=11")
    assert unknown.value == "11 or more"
    assert str(unknown.hint).endswith("max_message_size_bytes=22"), "twice as much is tried next"


def test_the_bodies_of_a_batch_are_together_no_larger_than_one_may_be() -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    encoder.terms.max_message_bytes = 10
    assert encoder.drafts("orders", [b"12345", b"67890"], None) == [b"12345", b"67890"]
    with pytest.raises(InvalidMessage):
        encoder.drafts("orders", [b"12345", b"678901"], None)


@pytest.mark.parametrize(
    ("messages", "what", "hint"),
    [
        ([], "the batch holds no message", "one"),
        ([b"x", "text"], "messages[1] is not a BatchMessage or bytes", "encode"),
        ([BatchMessage(b"x", properties={"a": 1})], "messages[0].properties['a'] is not", "str("),
        ([BatchMessage(b"x", properties={1: "a"})], "a key of messages[0].properties is", ""),
        (b"text", "messages is not a list of messages", "use send"),
    ],
)
def test_what_is_wrong_with_a_batch_is_told(messages: Any, what: str, hint: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Encoder(V4, key_origin(V4, NOW)).drafts("orders", messages, None)
    assert caught.value.what.startswith(what) and hint in str(caught.value.hint)


def test_properties_that_a_delay_adds_count_too() -> None:
    encoder = Encoder(V4, key_origin(V4, NOW))
    room = 32767 - len(f"UNIQ_KEY\x01{make_unique_key(encoder.numbers.origin, 0)}\x02a\x01\x02")
    draft = encoder.draft(BatchMessage(b"", properties={"a": "x" * room}), None)
    assert encoder.room("orders", draft)
    with pytest.raises(PropertiesTooLarge):
        encoder.room("orders", draft, Delay(3))
