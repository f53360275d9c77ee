"""The short way of a plain message makes what the general way makes, or leaves it to that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.codes import Response
from penstock.remoting.command import Command, decode_command, encode_head
from penstock.remoting.fields import SendAnswer, SendFields, read_fields, write_fields
from penstock.remoting.plain import PlainSends, encode_stored
from penstock.remoting.sends import REGION, Sent, sent_message
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import PlainSend

HOST = pack_host("10.1.2.3", 54321)
MOST_BYTES = 50
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


def short(frame: bytes, shape: Shape = PLAIN) -> PlainSend | None:
    return PlainSends("C", MOST_BYTES, shape).read(frame, HOST)


def general(frame: bytes, shape: Shape = PLAIN) -> tuple[Command, Sent]:
    command = decode_command(frame)
    fields = read_fields(command, SendFields)
    sent = sent_message(
        fields, fields.queue_id, bytes(command.body), new_key="NEW", now_ms=1, born_host=HOST,
        cluster="C", max_message_bytes=MOST_BYTES, shape=shape,
    )  # fmt: skip
    return command, sent


def assert_the_same(frame: bytes, shape: Shape = PLAIN) -> bool:
    """Whether it was plain; what is plain is what the general way makes of it."""
    plain = short(frame, shape)
    if plain is None:
        return False
    command, sent = general(frame, shape)
    assert plain[:2] == (command.opaque, command.is_oneway)
    assert plain[2:4] == (sent.topic, sent.queue_id)
    assert plain[4:] == (sent.unique_key, sent.records)
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
                *({"f": "4"}, {"f": "8"}, {"k": "true"}, {"m": "true"}, {"m": "1"}),
                *({"l": "x"}, {"d": "+4"}, {"g": "9" * 19}, {"g": " 1"}),
                *({"i": ""}, {"i": "TAGS\x01A\x02"}, {"i": KEY + KEY}, {"i": KEY + "a\x01\x02"}),
                *({"i": KEY + "a\x02"}, {"i": KEY + "a\x01b\x01c\x02"}, {"i": f"\x02{KEY}"}),
                *({"i": KEY.replace("AC", '"')}, {"i": KEY.replace("AC", "ü")}),
                *(
                    {"i": f"{KEY}{name}\x011\x02"}
                    for name in ("DELAY", "TIMER_DELAY_SEC", "POP_CK")
                ),
                *({"i": f"{KEY}{name}\x01true\x02"} for name in ("TRAN_MSG", "CLUSTER")),
                {"i": f"{KEY}a\x01{'v' * 32760}\x02"},
            )
        ),
    ],
)
def test_what_is_not_plain_is_left_to_the_general_way(changes: Any) -> None:
    assert short(frame_of(**changes)) is None


def test_hosts_of_ipv6_are_left_to_the_general_way() -> None:
    sends = PlainSends("C", MOST_BYTES, Shape())
    assert sends.read(frame_of(), pack_host("2001:db8::1", 9)) is None
    assert short(frame_of(), Shape(20)) is None


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


@pytest.mark.parametrize("code", [Response.SUCCESS, Response.FLUSH_DISK_TIMEOUT])
def test_its_answer_is_that_of_the_general_way(code: Response) -> None:
    plain = short(frame_of())
    assert plain is not None
    opaque, _, _, queue_id, key, _ = plain
    fields = write_fields(SendAnswer("0A", queue_id, 5, key))
    fields |= {"MSG_REGION": REGION, "TRACE_ON": "true"}
    answer = Command(code, opaque, fields, flag=1)
    assert encode_stored(opaque, key, queue_id, code, "0A", 5) == encode_head(answer, 0)
