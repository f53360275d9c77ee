"""Records whose names are at the edge of what a log can have: the compiled loops and their twins
take the same ones for whole, and find the same keys in them."""

from __future__ import annotations

import pytest

from penstock.shared.formats.java_hash import string_hash
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import AT_BODY_V4
from penstock.shared.loops.forms import Dispatched
from penstock.shared.loops.pure import message, queues, walk

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")


def walked(raw: bytes) -> Dispatched:
    """What both forms tell of a piece of the log that begins at 0."""
    twin = walk.dispatch(memoryview(raw), 0, queues.QueueNumbers(), (), True)
    found = native.dispatch(memoryview(raw), 0, native.QueueNumbers(), (), True)
    told = [each._replace(keys=[list(one) for one in each.keys]) for each in (found, twin)]
    assert told[0] == told[1]
    starts = native.record_starts(raw, 0, Checksum.BODY)
    assert starts == walk.record_starts(raw, 0, Checksum.BODY)
    assert len(starts) - 1 == found.records
    return Dispatched(*told[0])


@pytest.mark.parametrize("topic", [".a", "a.", ".a.", "...", "....", "..a", ":", "-", "_", "%"])
def test_a_topic_of_dots_and_signs_is_one(topic: str) -> None:
    assert walked(encode_record(Record(topic, b"body"))).records == 1


@pytest.mark.parametrize("topic", [".", "..", "", "a/b", "a b", "a\x7f", "é"])
def test_what_leads_through_directories_is_no_topic(topic: str) -> None:
    assert walked(encode_record(Record(topic, b"body"))).records == 0


@pytest.mark.parametrize("fewer", [4, 5, 100, 128])
@pytest.mark.parametrize("topic", ["orders", "t" * 130])
def test_a_topic_has_no_length_below_0(topic: str, fewer: int) -> None:
    """Its other lengths add up: two bytes of the body say how long the properties are then."""
    lead, body = (2 if len(topic) > 127 else 1), bytearray(150)
    size = len(encode_record(Record(topic, bytes(body))))
    topic_at = AT_BODY_V4 + len(body) + lead
    at = topic_at - fewer - AT_BODY_V4
    body[at : at + 2] = (size - topic_at + fewer - 2).to_bytes(2, "big")
    raw = bytearray(encode_record(Record(topic, bytes(body))))
    raw[topic_at - lead : topic_at] = (-fewer).to_bytes(lead, "big", signed=True)
    assert walked(bytes(raw)).records == 0
    for name in ("topic", "_raw_properties", "stored_body"):
        one, other = native.Message(bytes(raw)), message.Message(bytes(raw))
        assert outcome(one, name) == outcome(other, name)


def key_with_hash(topic: str, code: int) -> str:
    """A key of printable characters that has this hash with its topic."""
    before = string_hash(topic + "#") & 0xFFFFFFFF
    digits = 8
    left = (code - before * 31**digits - sum(40 * 31**n for n in range(digits))) % 2**32
    key = ""
    for place in reversed(range(digits)):
        key += chr(40 + min(left // 31**place, 60))
        left -= (ord(key[-1]) - 40) * 31**place
    assert string_hash(f"{topic}#{key}") & 0xFFFFFFFF == code
    return key


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ((1 << 31) - 1, (1 << 31) - 1),
        ((1 << 31) - 2, (1 << 31) - 2),
        (1 << 31, 0),  # Java's abs of the smallest number stays negative
        ((1 << 31) + 1, (1 << 31) - 1),
        ((1 << 32) - 1, 1),
        (0, 0),
        (1, 1),
    ],
)
def test_a_key_has_its_hash_without_the_sign(code: int, kept: int) -> None:
    key = key_with_hash("orders", code).encode()
    found = walked(encode_record(Record("orders", b"body", b"KEYS\x01" + key + b"\x02")))
    assert found.keys is not None and list(found.keys[0]) == [kept]


def test_a_queue_has_a_number_of_31_bits() -> None:
    """The compiled form has an array of them."""
    numbers = native.QueueNumbers()
    assert [numbers.number(b"a", each) for each in (0, 1023, 1024, (1 << 31) - 1)] == [0, 1, 2, 3]
    for wrong in (-1, 1 << 31, 1 << 40):
        with pytest.raises(ValueError, match="queue's id"):
            numbers.number(b"a", wrong)
    assert [numbers.number(b"a", each) for each in ((1 << 31) - 1, 1024, 0)] == [3, 2, 0]


def outcome(of: object, name: str) -> object:
    try:
        return getattr(of, name)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        (b"UNIQ_KEY\x01K\x02UNIQ_KEY\x01\x02", 1),
        (b"UNIQ_KEY\x01\x02", 0),
        (b"KEYS\x01a b\x02KEYS\x01\x02", 2),
        (b"KEYS\x01\x02KEYS\x01a\x02UNIQ_KEY\x01\x02UNIQ_KEY\x01K\x02", 2),
        (b"KEYS\x01a\x02KEYS\x01b c\x02", 2),
        (b"KEYS\x01", 0),
        (b"KEYS", 0),
    ],
)
def test_a_name_that_comes_twice_counts_for_its_last_value(properties: bytes, count: int) -> None:
    found = walked(encode_record(Record("orders", b"body", properties)))
    assert found.records == 1 and found.keys is not None
    assert [len(each) for each in found.keys] == [count] * 3
