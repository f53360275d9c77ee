"""Headers of RocketMQ's clients at each edge of the form that Java's client writes: the compiled
loop takes them for plain where its twin does, and makes the same of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.shared.formats.record import pack_host
from penstock.shared.loops.forms import PLAIN_MEANT, PlainRules
from penstock.shared.loops.pure.client_frame import ClientFrame

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOST = pack_host("10.1.2.3", 54321)
MOST_BYTES = 70
RULES = PlainRules(b"MSG_REGION\x01DefaultRegion\x02", False, MOST_BYTES)
TOPICS = {"orders": 1000, "t" * 127: 1000, "t" * 128: 1000}
KEY = "UNIQ_KEY\x01AC1102031A2B\x02"
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


def text_of(fields: dict[str, Any] | None = None, **header: Any) -> str:
    changed = {name: each for name, each in (FIELDS | (fields or {})).items() if each is not None}
    return json.dumps(HEADER | {"extFields": changed} | header, separators=(",", ":"))


def is_plain(text: str | bytes, body: bytes = b"hello") -> bool:
    """Whether a frame is taken, after both forms have said the same of it."""
    header = text.encode() if isinstance(text, str) else text
    frame = len(header).to_bytes(4, "big") + header + body
    data = len(frame).to_bytes(4, "big") + frame
    told = []
    for kind in (native.ClientFrame, ClientFrame):
        found = kind(RULES)
        at = found.take(data, 0, "me", HOST, TOPICS, 1)
        words = (b"<", b"|", b"/", b"/", b"/", b">")
        told.append((at, found.pack(), found.asked(), found.answers(words, b"A", [(0, 5, 77)])))
    assert told[0] == told[1], text
    return bool(told[0][0])


def test_escapes_and_signs_of_properties_are_read_alike() -> None:
    assert is_plain(text_of())
    signs = ["\\u0001", "\\u0002", "\\u0003", "\\u0000", "\\u0011", "\\u00011", "\\u000", "\\u0001"]
    signs += [
        "\\n0001",
        "\\t\\u0002",
        '\\"0001',
        "\\\\0001",
        "\\/0001",
        "\\b1",
        "\\x0001",
        '"',
        "\\",
    ]
    signs += ["]", "~", "\x7f", " ", "!", "\x1f", "\n", "é", "\x00", "[", "^", "\\u0002\\u0001"]
    for sign in signs:
        for place in ("WAIT", "true\\u0002", "AC11", "\\u0001true"):
            is_plain(text_of().replace(place, place[:2] + sign + place[2:], 1))
            is_plain(text_of().replace(place, sign, 1))
            is_plain(text_of().replace("JAVA", sign))
            is_plain(text_of({"b": "or" + sign}))
    for byte in (b"\xff", b"\xc3", b"\x80", b"\xc3\xa9"):
        for word in (b"WAIT", b"JAVA", b"TBW", b"PG", b"orders", b"language"):
            is_plain(text_of().encode().replace(word, word[:1] + byte + word[1:]))
    assert is_plain(text_of({"i": KEY + "a\x01~\x02"}))
    assert is_plain(text_of(), bytes(MOST_BYTES)) and not is_plain(text_of(), bytes(MOST_BYTES + 1))


def test_numbers_of_a_header_are_read_alike() -> None:
    whole = [
        0,
        1,
        2,
        3,
        4,
        6,
        9,
        10,
        11,
        2**31 - 1,
        2**31,
        -(2**31),
        -(2**31) - 1,
        2**32,
        9999999999,
        -1,
    ]
    others = ["-0", "00", "01", "-", "", "1.0", "1e1", "+1", "99999999999", "12345678901", ":", "/"]
    for number in [*map(str, whole), *others]:
        for name, before in (("opaque", "-7"), ("version", "479"), ("flag", "0")):
            is_plain(text_of().replace(f'"{name}":{before}', f'"{name}":{number}'))
    assert is_plain(text_of(opaque=2**31 - 1)) and is_plain(text_of(opaque=-(2**31)))
    assert not is_plain(text_of(opaque=2**31)) and not is_plain(text_of(opaque=-(2**31) - 1))


def test_a_header_that_is_put_together_otherwise_is_read_alike() -> None:
    for name in list(HEADER)[1:]:
        value = json.dumps(HEADER[name], separators=(",", ":"))
        for again in ("0", '"x"', "{}", value):
            is_plain(text_of()[:-1] + f',"{name}":{again}}}')
        is_plain(text_of().replace(f',"{name}"', f'"{name}"'))
        is_plain(text_of().replace(f'"{name}":', f'"{name}"'))
        is_plain(text_of().replace(f'"{name}":', f'"{name}s":'))
        is_plain(text_of().replace(f'"{name}":', f"{name}:"))
        without = {each: of for each, of in HEADER.items() if each != name}
        is_plain(json.dumps(without, separators=(",", ":")))
    assert is_plain(json.dumps({"code": 310, "extFields": FIELDS}, separators=(",", ":")))
    for cut in range(len(text_of())):
        is_plain(text_of()[:cut])
    for more in (" ", "x", "}", ",", "\0"):
        is_plain(text_of() + more)
    for code in ("311", "330", "300", "320", "321", "31", "3100"):
        is_plain(text_of().replace('{"code":310,', f'{{"code":{code},'))
    is_plain(text_of().replace('{"code":3', '{"cods":3'))
    room = (32 << 10) - len(text_of())
    for more_bytes in (room - 1, room, room + 1):
        is_plain(text_of(language="J" * (4 + more_bytes)))


def test_fields_are_read_alike_whatever_is_in_them() -> None:
    values = [None, "", "0", "1", "9" * 9, "9" * 10, "9" * 18, "9" * 19, "/", ":", "0/", "1:", "-1"]
    values += ["true", "false", "fals", "falses", "tru", "trues", "4", "8", "12", "16", "32", "128"]
    for name in FIELDS:
        for value in values:
            is_plain(text_of({name: value}))
            is_plain(text_of({name: value, "i": "", "m": "true"}, code=320), ITEM * 2)
            batch = {name: value} if name == "m" else {name: value, "m": "true"}
            is_plain(text_of(batch, code=320), ITEM)
        is_plain(text_of().replace(f'"{name}":', f'"{name}":"1","{name}":', 1))
        is_plain(text_of({name: None, f"{name}x": FIELDS[name]}))
        is_plain(text_of({name: None, name.upper(): FIELDS[name]}))
    for name in ("`", "{", "a`", "o", "z", "A", ""):
        is_plain(text_of({name: "1"}))
        # numbers that were read before must not be overwritten
        first = {"code": 310, "opaque": 0, "flag": 0}
        for value in ("1", "12"):
            fields = {"extFields": FIELDS | {name: value}}
            is_plain(json.dumps(first | fields, separators=(",", ":")))
    assert is_plain(text_of({"b": "t" * 127})) and not is_plain(text_of({"b": "t" * 128}))
    for sign in "/:@[`{09AZaz-_.%|~":
        is_plain(text_of({"b": sign, "i": KEY}))
        is_plain(text_of({"i": KEY.replace("AC", sign)}))


def test_properties_are_read_alike_however_they_are_put_together() -> None:
    pieces = ["\x01v\x02", "a\x01\x02", "a\x02", "a\x01b\x01c\x02", "a\x01\x01\x02", "\x02", "\x01"]
    pieces += ["a\x01b\x01\x02", KEY, "UNIQ_KEY\x01\x02", "UNIQ_KE\x01v\x02", "UNIQ_KEYS\x01v\x02"]
    for name in sorted(PLAIN_MEANT):
        pieces += [f"{name}\x01v\x02", f"{name}S\x01v\x02", f"{name[:-1]}\x01v\x02"]
        assert not is_plain(text_of({"i": f"{KEY}{name}\x01v\x02"}))
    for piece in pieces:
        for text in (KEY + piece, piece + KEY, KEY + piece + "b\x01v\x02", piece):
            is_plain(text_of({"i": text}))
            is_plain(text_of({"i": text[:-1]}))
    for count in range(29, 35):
        own = "".join(f"p{number}\x01v\x02" for number in range(count))
        is_plain(text_of({"i": KEY + own}))
        is_plain(text_of({"i": own + KEY}))
        is_plain(text_of({"i": KEY + own + f"p{count - 1}\x01v\x02"}))
        is_plain(text_of({"i": KEY + own + "p0\x01v\x02"}))
    for size in (8100, 8191, 8192, 8193):
        own = f"{KEY}a\x01"
        is_plain(text_of({"i": own + "v" * (size - len(own) - 1) + "\x02"}))
        is_plain(text_of({"i": own + "v" * (size - len(own))}))
