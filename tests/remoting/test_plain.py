"""The short way of a plain message makes what the general way makes, or leaves it to that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.batch import BatchItem, encode_batch
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, decode_command, encode_head
from penstock.remoting.fields import SendAnswer, SendFields, read_fields, write_fields
from penstock.remoting.plain import plain_rules, stored_words
from penstock.remoting.sends import REGION, Sent, sent_batch, sent_message
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import ClientFrame

HOST = pack_host("10.1.2.3", 54321)
MOST_BYTES = 70
PLAIN = Shape()
KEY = "UNIQ_KEY\x01AC1102031A2B18B4AAC2000000000001\x02"
FIELDS = {
    **{"a": "PG", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "0"},
    **{"g": "1700000000123", "h": "7", "i": KEY + "WAIT\x01true\x02", "j": "0", "k": "false"},
    **{"m": "false", "n": "b"},
}


def frame_of(fields: Any = None, body: bytes = b"hello", **changes: Any) -> bytes:
    """As Java's client writes it: in the order of its keys, without a blank."""
    header = {"code": 310, "extFields": FIELDS | (fields or {}), "flag": 0, "language": "JAVA"}
    header |= {"opaque": -7, "serializeTypeCurrentRPC": "JSON", "version": 479} | changes
    raw = json.dumps(header, separators=(",", ":")).encode()
    return len(raw).to_bytes(4, "big") + raw + body


def taken(frame: bytes, shape: Shape = PLAIN, host: bytes = HOST) -> ClientFrame | None:
    found = ClientFrame(plain_rules("C", MOST_BYTES, shape))
    data = len(frame).to_bytes(4, "big") + frame
    at = found.take(data, 0, "me", host, {"orders": 1 << 30}, 1)
    assert at == len(data) * found.requests
    return found if at else None


def general(frame: bytes, shape: Shape = PLAIN) -> tuple[Command, Sent]:
    command = decode_command(frame)
    fields = read_fields(command, SendFields)
    body = bytes(command.body)
    if command.code == Request.SEND_BATCH_MESSAGE:
        sent = sent_batch(
            fields, fields.queue_id, body, born_host=HOST, max_message_bytes=MOST_BYTES,
            shape=shape,
        )  # fmt: skip
    else:
        sent = sent_message(
            fields, fields.queue_id, body, new_key="NEW", now_ms=1, born_host=HOST,
            cluster="C", max_message_bytes=MOST_BYTES, shape=shape,
        )  # fmt: skip
    return command, sent


def answered(command: Command, sent: Sent, code: Response = Response.SUCCESS) -> dict[str, bytes]:
    """What the general way answers to what is stored from 77 on."""
    if command.is_oneway:
        return {}
    ids, at = [], 77
    for size in sent.sizes:
        ids.append(f"A{at:016X}")
        at += size
    fields = write_fields(SendAnswer(",".join(ids), sent.queue_id, 5, sent.unique_key))
    fields |= {"MSG_REGION": REGION, "TRACE_ON": "true"}
    return {"me": encode_head(Command(code, command.opaque, fields, flag=1), 0)}


def assert_the_same(frame: bytes, shape: Shape = PLAIN) -> bool:
    """Whether it was plain; what is plain is what the general way makes of it."""
    plain = taken(frame, shape)
    if plain is None:
        return False
    command, sent = general(frame, shape)
    run = sent.topic, sent.queue_id, len(sent.sizes), sent.is_batch
    assert plain.pack() == ([run], sent.records)
    assert plain.asked() == [("me", command.opaque, command.is_oneway)]
    for code in (Response.SUCCESS, Response.FLUSH_DISK_TIMEOUT):
        found = plain.answers(stored_words(code), b"A", [(0, 5, 77)])
        assert found == (answered(command, sent, code), [])
    return True


@pytest.mark.parametrize("prop_crc", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"body": b""},
        {"flag": 2},
        {"version": 0, "language": 9},
        {"fields": {"i": KEY[:-1]}},  # as RocketMQ 5.0 writes it
        {"fields": {"i": KEY + "TAGS\x01größe\x02KEYS\x01a b\x02", "f": "817", "j": "3"}},
        {"fields": {"l": "16", "h": "0"}},
    ],
)
def test_a_plain_message_is_what_the_general_way_makes(changes: Any, prop_crc: bool) -> None:
    assert assert_the_same(frame_of(**changes), Shape(8, prop_crc))


@pytest.mark.parametrize(
    "changes",
    [
        {"body": bytes(MOST_BYTES + 1)},
        {"code": 320},
        {"code": 330},
        {"opaque": 1 << 31},
        {"flag": "0"},
        {"flag": 1},
        {"flag": 3},
        {"flag": 4},
        {"extFields": None},
        {"extFields": {k: v for k, v in FIELDS.items() if k != "g"}},
        *(
            {"fields": each}
            for each in (
                *({"b": "%RETRY%g"}, {"b": "a/b"}, {"b": ""}, {"b": "t" * 128}),
                *({"e": "-1"}, {"e": 3}, {"e": ""}, {"e": "3_0"}, {"e": "٣"}, {"e": "9" * 10}),
                *({"f": "4"}, {"f": "8"}, {"f": "128"}, {"k": "true"}, {"m": "true"}, {"m": "1"}),
                *({"l": "x"}, {"d": "+4"}, {"g": "9" * 19}, {"g": " 1"}),
                *({"i": ""}, {"i": "TAGS\x01A\x02"}, {"i": KEY + KEY}, {"i": KEY + "a\x01\x02"}),
                *({"i": KEY + "a\x02"}, {"i": KEY + "a\x01b\x01c\x02"}, {"i": f"\x02{KEY}"}),
                *({"i": KEY.replace("AC", '"')}, {"i": KEY.replace("AC", "ü")}),
                *(
                    {"i": f"{KEY}{name}\x011\x02"}
                    for name in ("DELAY", "TIMER_DELAY_SEC", "POP_CK", "INNER_NUM")
                ),
                *({"i": f"{KEY}{name}\x01true\x02"} for name in ("TRAN_MSG", "CLUSTER")),
                {"i": f"{KEY}a\x01{'v' * 32760}\x02"},
            )
        ),
    ],
)
def test_what_is_not_plain_is_left_to_the_general_way(changes: Any) -> None:
    assert taken(frame_of(**changes)) is None


ITEMS = [
    BatchItem(0, b"", b""),
    BatchItem(-7, b"one", b"k\x01v\x02"),
    BatchItem(1, b"x", b"k\x01v"),
    BatchItem(1, b"x", b"__CRC32#\x010123456789\x02"),
]


@pytest.mark.parametrize("prop_crc", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"flag": 2}, {"fields": {"i": "", "m": "false", "f": "17", "h": "9", "j": "2"}}]
)
@pytest.mark.parametrize("items", [ITEMS[:1], ITEMS[1:3], ITEMS[3:]])
def test_a_plain_batch_is_what_the_general_way_makes(
    items: list[BatchItem], changes: Any, prop_crc: bool
) -> None:
    changes = {"code": 320, "body": encode_batch(items)} | changes
    changes["fields"] = {"m": "true"} | changes.get("fields", {})
    assert assert_the_same(frame_of(**changes), Shape(8, prop_crc))


@pytest.mark.parametrize(
    "changes",
    [
        *({"body": b""}, {"body": b"x"}, {"body": encode_batch(ITEMS)[:-1]}),
        {"body": encode_batch([BatchItem(0, bytes(MOST_BYTES), b"")])},
        *(
            {"fields": each}
            for each in ({"f": "4"}, {"f": "128"}, {"m": "x"}, {"b": "%RETRY%g"}, {"e": "-1"})
        ),
    ],
)
def test_a_batch_that_is_not_plain_is_left_to_the_general_way(changes: Any) -> None:
    assert taken(frame_of(**{"code": 320, "body": encode_batch(ITEMS[:1])} | changes)) is None


def test_hosts_of_ipv6_are_left_to_the_general_way() -> None:
    assert taken(frame_of(), host=pack_host("2001:db8::1", 9)) is None
    assert taken(frame_of(), Shape(20)) is None


@given(st.data())
def test_a_frame_with_anything_in_it_is_not_taken_for_another(data: st.DataObject) -> None:
    value = st.one_of(st.sampled_from([*FIELDS.values(), "1", "-1", "true", ""]), st.text())
    value = st.one_of(value, st.integers(-5, 5), st.booleans(), st.none(), st.floats())
    fields = data.draw(st.dictionaries(st.sampled_from(sorted(FIELDS)), value, max_size=3))
    assert_the_same(frame_of(fields))


@given(st.integers(0, 400), st.integers(0, 255), st.integers(0, 460))
def test_a_frame_that_is_bent_or_cut_is_not_taken_for_another(at: int, to: int, end: int) -> None:
    raw = bytearray(frame_of())
    if at < len(raw):
        raw[at] = to
    try:
        assert_the_same(bytes(raw[:end]))
    except PenstockError as error:
        raise AssertionError("only the general way refuses it") from error
