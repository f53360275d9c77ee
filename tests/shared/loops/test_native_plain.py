"""Plain messages of RocketMQ's clients: the compiled loop and its twin make the same records, and
take the same frames for plain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.record import pack_host
from penstock.shared.loops import pure
from penstock.shared.loops.forms import PlainRules
from penstock.shared.loops.pure.client_frame import ClientFrame

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOST = pack_host("10.1.2.3", 54321)
ADDED = b"MSG_REGION\x01DefaultRegion\x02"
MOST_BYTES = 70
RULES = PlainRules(ADDED, False, MOST_BYTES)
WITH_CRC = RULES._replace(added=ADDED + b"__CRC32#\x010000000000\x02", prop_crc=True)
TOPICS = {"orders": 1000}
KEY = "UNIQ_KEY\x01AC1102031A2B18B4AAC2000000000001\x02"
FIELDS = {
    **{"a": "PG", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "0"},
    **{"g": "1700000000123", "h": "7", "i": KEY + "WAIT\x01true\x02", "j": "0", "k": "false"},
    **{"l": "16", "m": "false", "n": "b"},
}
HEADER = {
    "code": 310, "extFields": FIELDS, "flag": 0, "language": "JAVA", "opaque": -7,
    "serializeTypeCurrentRPC": "JSON", "version": 479,
}  # fmt: skip
ITEM = (
    (22 + 3 + 4).to_bytes(4, "big") + bytes(8) + (7).to_bytes(4, "big") + (3).to_bytes(4, "big")
    + b"one" + (4).to_bytes(2, "big") + b"k\x01v\x02"
)  # fmt: skip


def frame_of(header: Any, body: bytes = b"hello") -> bytes:
    raw = json.dumps(header, separators=(",", ":")).encode()
    return len(raw).to_bytes(4, "big") + raw + body


def batch_of(fields: dict[str, Any], body: bytes) -> bytes:
    return frame_of(HEADER | {"code": 320, "extFields": FIELDS | {"m": "true"} | fields}, body)


def taken(kind: Any, frame: bytes, host: bytes = HOST, rules: PlainRules = RULES) -> Any:
    """What becomes of a frame; None where it is not plain."""
    found = kind(rules)
    data = len(frame).to_bytes(4, "big") + frame
    at = found.take(data, 0, "me", host, TOPICS, 1)
    assert at in (0, len(data)) and bool(at) == bool(found.requests)
    if not at:
        return None
    words = (b"<", b"|", b"/", b"/", b"/", b">")
    return found.pack(), found.asked(), found.answers(words, b"A", [(0, 5, 77)])


def assert_alike(frame: bytes, host: bytes = HOST, rules: PlainRules = RULES) -> Any:
    found = taken(native.ClientFrame, frame, host, rules)
    assert found == taken(ClientFrame, frame, host, rules)
    return found


@pytest.mark.parametrize("frame", [frame_of(HEADER), batch_of({}, ITEM * 2)], ids=["one", "batch"])
def test_what_javas_client_writes_is_taken_without_the_twin(
    monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    expected = taken(ClientFrame, frame)
    monkeypatch.setattr(pure.plain, "plain_sent", None)
    assert taken(native.ClientFrame, frame) == expected is not None


names = st.sampled_from([*"abcdefghijklmn", "z", "bname"])
texts = st.sampled_from(
    ["", "0", "1", "-1", "true", "false", "orders", "%RETRY%g", "a/b", "ü", '"', "\\", "9" * 9]
    + ["9" * 10, "9" * 18, "9" * 19, "4", "8", "16", "t" * 127, "t" * 128, "x" * 9000]
)
entries = st.sampled_from(
    [
        KEY,
        "TAGS\x01A\x02",
        "TAGS\x01größe\x02",
        "DELAY\x011\x02",
        "TRAN_MSG\x01true\x02",
        "a",
        "\x01",
    ]
    + ["\x02", "K\x01a b\x02", "UNIQ_KEY\x01-\x02", "TIMER_DELAY_MS\x011\x02", "\x7f\x01b\x02"]
    + ["DELAYED\x011\x02", "x" * 4000 + "\x01v\x02", "__CRC32#\x01", "a\x01b\x01c\x02"]
)
values = texts | st.text(max_size=4) | st.integers(-3, 3) | st.booleans() | st.none()
many = [f"p{number}\x01v\x02" for number in range(40)]


@given(st.dictionaries(names, values, max_size=3), st.binary(max_size=MOST_BYTES + 2))
def test_any_fields_are_taken_alike(changes: dict[str, Any], body: bytes) -> None:
    assert_alike(frame_of(HEADER | {"extFields": FIELDS | changes}, body))


@given(
    st.dictionaries(names, values, max_size=2),
    st.binary(max_size=3) | st.integers(0, 2).map(lambda count: ITEM * count),
    st.booleans(),
)
def test_any_batch_is_taken_alike(changes: dict[str, Any], body: bytes, crc: bool) -> None:
    assert_alike(batch_of(changes, body), rules=WITH_CRC if crc else RULES)


@given(st.integers(0, 60), st.integers(0, 255), st.booleans())
def test_a_batch_that_is_bent_is_taken_alike(at: int, to: int, crc: bool) -> None:
    body = bytearray(ITEM[:-4].replace(b"\x1d", b"\x19").replace(b"\0\4", b"\0\0") + ITEM)
    body[at % len(body)] = to
    rules = (WITH_CRC if crc else RULES)._replace(most_body=100)
    assert_alike(batch_of({}, bytes(body)), rules=rules)


@given(st.lists(entries, max_size=5) | st.integers(28, 36).map(lambda count: [KEY, *many[:count]]))
def test_any_properties_are_taken_alike(properties: list[str]) -> None:
    fields = FIELDS | {"i": "".join(properties)}
    assert_alike(frame_of(HEADER | {"extFields": fields}))
    without_end = FIELDS | {"i": "".join(properties).removesuffix("\x02")}
    assert_alike(frame_of(HEADER | {"extFields": without_end}))


def test_properties_of_any_length_are_taken_alike() -> None:
    """With what is added to them they may be the first that two bytes count."""
    for length in range(150, 250):
        fields = FIELDS | {"i": f"{KEY}P\x01{'v' * length}\x02"}
        assert assert_alike(frame_of(HEADER | {"extFields": fields})) is not None


numbers = st.sampled_from(
    [0, 1, 2, 3, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 1.5, "1", None]
)


@given(st.permutations(list(HEADER)[1:]), st.data())
def test_any_order_and_any_values_of_a_header_are_taken_alike(
    order: list[str], data: st.DataObject
) -> None:
    header = {"code": 310} | {name: HEADER[name] for name in order}
    name = data.draw(st.sampled_from(["flag", "opaque", "version", "language", "remark", "other"]))
    header[name] = data.draw(numbers)
    assert_alike(frame_of(header))
    del header[data.draw(st.sampled_from(order))]
    assert_alike(frame_of(header))


@given(
    st.lists(st.tuples(st.integers(0, 420), st.integers(0, 255)), max_size=3),
    st.integers(0, 440),
    st.integers(-4, 4),
)
def test_a_frame_that_is_bent_or_cut_is_taken_alike(
    changes: list[tuple[int, int]], end: int, longer: int
) -> None:
    raw = bytearray(frame_of(HEADER))
    raw[3] = max(0, min(255, raw[3] + longer))
    for at, to in changes:
        if at < len(raw):
            raw[at] = to
    assert_alike(bytes(raw))
    assert_alike(bytes(raw[:end]))


@pytest.mark.parametrize(
    "text", ['{"code":310,}', '{"code":310,"flag":01}', '{"code":310,"flag":-}']
)
def test_what_is_no_json_is_plain_to_neither(text: str) -> None:
    assert assert_alike(len(text).to_bytes(4, "big") + text.encode()) is None


def test_a_key_that_comes_twice_is_taken_alike() -> None:
    for more in ('"flag":2,', '"extFields":{},', '"code":320,'):
        raw = frame_of(HEADER)[4:].replace(b'"flag":0,', b'"flag":0,' + more.encode(), 1)
        size = raw.index(b"hello")
        assert_alike(size.to_bytes(4, "big") + raw)
    twice = json.dumps(HEADER, separators=(",", ":")).replace('"e":"3"', '"e":"3","e":"1"')
    assert_alike(len(twice).to_bytes(4, "big") + twice.encode())


def test_a_host_of_ipv6_is_plain_to_neither() -> None:
    assert assert_alike(frame_of(HEADER), pack_host("2001:db8::1", 9)) is None
