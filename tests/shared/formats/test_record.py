"""Records: golden vectors, round trips against the fields, bytes that were tampered with."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import (
    Record,
    decode_record,
    encode_record,
    host_text,
    pack_host,
)
from penstock.shared.formats.record_check import Kind, examine, names_queue
from penstock.shared.formats.record_crc import Checksum, body_crc
from penstock.shared.formats.record_layout import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V2,
    body_span,
    store_timestamp_ms,
)
from penstock.shared.formats.record_outline import entry_tags_code, outline
from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.loops import active
from penstock.shared.loops.pure import walk
from penstock.shared.loops.pure.queues import QueueNumbers

ST = 1700000001456
BORN = pack_host("10.1.2.3", 54321)
STORE = pack_host("192.168.7.9", 10911)
RecordMaker = Callable[..., Record]

GOLDEN_A = """
000000af daa320a7 0d4a1185 00000003 00000007 0000000000000000 0000000000000000 00000000
0000018bcfe5687b 0a010203 0000d431 0000018bcfe56db0 c0a80709 00002a9f 00000000 0000000000000000
0000000b 68656c6c6f20776f726c64 06 6f7264657273 0043
54414753 01 54616741 02 4b455953 01 6b31206b3220206b33 02 554e49515f4b4559 01
4143313130323033314132423138423441414332303030303030303030303031 02
"""
GOLDEN_B = """
00000074daa320a70cdc16830000000300000007000000000000000100000000000000af000000000000018bcfe5687b
0a0102030000d4310000018bcfe57774c0a8070900002a9f0000000000000000000000000000000178066f7264657273
00125441475301e4b8ade69687e6a087e7adbe02
"""
GOLDEN_C = """
00000077daa320a777065916000000000000000700000000000000000000000000000123000000100000018bcfe5687b
20010db800000000000000000000000100000001 0000018bcfe577d8c0a8070900002a9f000000000000000000000000
00000002763606 6f72646572730008 4b455953016b6b02
"""
GOLDEN_D = """
000000a2daa320a7455295d400000002000000000000000000000000000000000000019a000000000000018bcfe5687b
0a0102030000d4310000018bcfe5783cc0a8070900002a9f000000000000000000000000000000057363686564135343
484544554c455f544f5049435f58585858002f5441475301546167410244454c41590133025245414c5f544f50494301
6f7264657273025245414c5f514944013002
"""
GOLDEN_E = """
0000008adaa320a70d4a1185000000030000000000000000000000000000000000000000000000000000018bcfe5687b
0a0102030000d4310000018bcfe56db0c0a8070900002a9f0000000000000000000000000000000b68656c6c6f20776f
726c64066f7264657273001e54414753015461674102 5f5f435243333223 01 32303834303936373131 02
"""
GOLDEN_BATCH_ITEM = """
00000077daa320a747cc1be000000003000000010000000000000003000000000000045f000000000000018bcfe5687b
0a0102030000d4310000018bcfe56db0c0a8070900002a9f000000000000000000000000000000026231066f72646572
7300145441475301546167420257414954017472756502
"""

_base = Record(
    topic="orders",
    body=b"hello world",
    queue_id=3,
    flag=7,
    born_timestamp_ms=1700000000123,
    born_host=BORN,
    store_timestamp_ms=ST,
    store_host=STORE,
)
_change = msgspec.structs.replace
GOLDEN: dict[str, tuple[Record, str]] = {
    "A plain": (
        _change(
            _base,
            properties=encode_properties(
                {
                    "TAGS": "TagA",
                    "KEYS": "k1 k2  k3",
                    "UNIQ_KEY": "AC1102031A2B18B4AAC2000000000001",
                }
            ),
        ),
        GOLDEN_A,
    ),
    "B tags in Chinese": (
        _change(
            _base,
            body=b"x",
            queue_offset=1,
            physical_offset=175,
            store_timestamp_ms=ST + 2500,
            properties=encode_properties({"TAGS": "中文标签"}),
        ),
        GOLDEN_B,
    ),
    "C from an IPv6 host": (
        _change(
            _base,
            body=b"v6",
            queue_id=0,
            physical_offset=291,
            born_host=pack_host("2001:db8::1", 1),
            store_timestamp_ms=ST + 2600,
            properties=encode_properties({"KEYS": "kk"}),
        ),
        GOLDEN_C,
    ),
    "D delayed": (
        _change(
            _base,
            topic="SCHEDULE_TOPIC_XXXX",
            body=b"sched",
            queue_id=2,
            flag=0,
            physical_offset=410,
            store_timestamp_ms=ST + 2700,
            properties=encode_properties(
                {"TAGS": "TagA", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "0"}
            ),
        ),
        GOLDEN_D,
    ),
    "E with a checksum property": (
        _change(
            _base,
            flag=0,
            properties=encode_properties({"TAGS": "TagA", "__CRC32#": "2084096711"}),
        ),
        GOLDEN_E,
    ),
    "an item of a batch": (
        _change(
            _base,
            body=b"b1",
            flag=1,
            queue_offset=3,
            physical_offset=1119,
            properties=encode_properties({"TAGS": "TagB", "WAIT": "true"}),
        ),
        GOLDEN_BATCH_ITEM,
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_record_encodes_to_its_bytes_and_decodes_to_its_fields(name: str) -> None:
    record, text = GOLDEN[name]
    raw = bytes.fromhex(text)
    assert encode_record(record) == raw
    decoded = decode_record(raw)
    for field in ("topic", "body", "properties", "queue_id", "flag", "queue_offset", "born_host"):
        assert getattr(decoded, field) == getattr(record, field)
    assert (decoded.total_size, decoded.physical_offset) == (len(raw), record.physical_offset)
    assert examine(raw, 0, len(raw), position=record.physical_offset) == (
        Kind.RECORD,
        len(raw),
        "",
    )


def test_the_checksum_property_is_the_crc_of_what_stands_before_it() -> None:
    raw = bytes.fromhex(GOLDEN_E)
    assert zlib.crc32(raw[:-20]) & 0x7FFFFFFF == 1176904802
    assert raw[-11:-1] == b"1176904802"[::-1]


def test_a_topic_above_127_characters_takes_version_2_and_two_length_bytes() -> None:
    topic = "%RETRY%" + "g" * 130
    raw = encode_record(_change(_base, topic=topic, body=b"L", flag=0))
    assert raw[:8] == bytes.fromhex("000000e6daa320ab")
    assert raw[88:] == b"L" + bytes.fromhex("0089") + topic.encode() + bytes(2)
    assert (decode_record(raw).topic, decode_record(raw).magic) == (topic, MAGIC_V2)


@pytest.mark.parametrize(
    ("body", "crc"),
    [(b"hello world", 0x0D4A1185), (b"x", 0x0CDC1683), (b"", 0), (b"123456789", 0x4BF43926)],
)
def test_the_body_crc_has_31_bits(body: bytes, crc: int) -> None:
    assert body_crc(body) == crc


def test_a_blank_is_found_with_its_size() -> None:
    blank = bytes.fromhex("0000019acbd43194")
    assert BLANK.pack(410, MAGIC_BLANK) == blank
    assert examine(blank.ljust(410, b"\0"), 0, 410) == (Kind.BLANK, 410, "")
    assert examine(blank.ljust(409, b"\0"), 0, 409)[0] is Kind.DAMAGED


def test_zeros_are_the_end_of_the_log() -> None:
    for size in (0, 3, 8, 400):
        assert examine(bytes(size), 0, size)[0] is Kind.END


def test_hosts_are_shown_as_address_and_port() -> None:
    assert host_text(BORN) == "10.1.2.3:54321"
    assert host_text(pack_host("2001:db8::1", 1)) == "[2001:db8::1]:1"


def test_properties_beyond_a_signed_16_bit_length_do_not_encode() -> None:
    encode_record(_change(_base, properties=b"p" * 32767))
    with pytest.raises(ValueError, match="32767"):
        encode_record(_change(_base, properties=b"p" * 32768))


def test_a_version_1_topic_length_is_signed_as_in_java() -> None:
    """RocketMQ would read 200 as -56; a record it cannot read is no record."""
    raw = bytearray(encode_record(_change(_base, topic="t" * 120, body=b"", properties=b"p" * 80)))
    raw[88] = 200
    raw[89 + 200 : 89 + 202] = bytes(2)
    assert examine(bytes(raw), 0, len(raw))[0] is Kind.DAMAGED


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../../orders"},
        {"topic": ".."},
        {"topic": ""},
        {"topic": "or ders"},
        {"topic": "orders\n"},
        {"topic": "\u00f6rders"},
        {"queue_id": -1},
        {"queue_offset": -1},
        {"queue_offset": MAX_QUEUE_OFFSET},
        {"topic": "order`"},
        {"topic": "o" * 256},
    ],
    ids=str,
)
def test_what_can_be_of_no_queue_is_no_record(change: dict[str, object]) -> None:
    """A topic is a directory's name, and no checksum covers it: a flipped bit must not lead out."""
    whole = encode_record(_change(_base, physical_offset=4096))
    bent = encode_record(_change(_base, physical_offset=4096, **change))
    found, _, reason = examine(bent, 0, len(bent), position=4096)
    assert found is Kind.DAMAGED and "no record is of queue" in reason
    # neither is it dispatched, nor found by the quick scan
    log = bent.replace((4096).to_bytes(8, "big"), (0).to_bytes(8, "big"))
    good = whole.replace((4096).to_bytes(8, "big"), (0).to_bytes(8, "big"))
    for module, queues in ((active, active.QueueNumbers()), (walk, QueueNumbers())):
        assert module.dispatch(memoryview(good), 0, queues).records == 1
        assert module.dispatch(memoryview(log), 0, queues).records == 0
        assert module.record_starts(good, 0, Checksum.BODY) == [0, len(good)]
        assert module.record_starts(log, 0, Checksum.BODY) == [0]


@pytest.mark.parametrize("length", [127, 128])
def test_the_length_of_a_topic_is_signed(length: int) -> None:
    whole = bytearray(encode_record(_change(_base, topic="o" * 127)))
    at = whole.index(b"\x7f" + b"o" * 127)
    whole[at : at + 1] = bytes([length]) + b"o" * (length - 127)
    whole[:4] = len(whole).to_bytes(4, "big")
    found = [0, len(whole)] if length == 127 else [0]
    for module in (active, walk):
        assert module.record_starts(bytes(whole), 0, Checksum.BODY) == found


def test_topics_that_rocketmq_names_after_clusters_are_topics() -> None:
    for topic in ("rmq_sys_REVIVE_LOG_my.cluster", "%RETRY%group", "a.b:c", "..."):
        raw = encode_record(_change(_base, topic=topic))
        assert examine(raw, 0, len(raw))[0] is Kind.RECORD
        assert names_queue(topic.encode(), 0, 0)


hosts = st.sampled_from([BORN, STORE, pack_host("2001:db8::2", 10911), pack_host("::1", 0)])
times = st.integers(0, 2**62)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\1\2"), min_size=1)
records = st.builds(
    Record,
    topic=st.text("abcXYZ09_-%|", min_size=1, max_size=255),
    body=st.binary(max_size=400),
    properties=st.dictionaries(st.text("abcKEY", min_size=1), texts, max_size=4).map(
        encode_properties
    ),
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, MAX_QUEUE_OFFSET - 1),
    physical_offset=times,
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x301]),
    born_timestamp_ms=times,
    born_host=hosts,
    store_timestamp_ms=times,
    store_host=hosts,
    reconsume_times=st.integers(0, 2**31 - 1),
    prepared_transaction_offset=times,
)
few = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@few
@given(records, st.binary(max_size=9), st.binary(max_size=9))
def test_every_record_comes_back_as_it_was_wherever_it_stands(
    record: Record, before: bytes, after: bytes
) -> None:
    raw = encode_record(record)
    buffer = before + raw + after
    decoded = decode_record(buffer, len(before))
    derived = ("body_crc", "total_size", "magic", "sys_flag")
    for field in record.__struct_fields__:
        if field not in derived:
            assert getattr(decoded, field) == getattr(record, field)
    assert decoded.sys_flag & ~0x30 == record.sys_flag
    assert encode_record(decoded) == raw
    at, length = body_span(buffer, len(before))
    assert buffer[at : at + length] == record.body
    assert store_timestamp_ms(buffer, len(before)) == record.store_timestamp_ms


@few
@given(records)
def test_the_outline_agrees_with_the_whole_record(record: Record) -> None:
    fields = outline(memoryview(encode_record(record)))
    assert fields.topic.decode() == record.topic
    assert fields.queue_id == record.queue_id
    assert fields.queue_offset == record.queue_offset
    assert fields.store_timestamp_ms == record.store_timestamp_ms
    assert fields.properties == record.properties
    assert fields.is_queued == (record.sys_flag & 0xC in (0, 8))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("A plain", 0x27A807),
        ("B tags in Chinese", 0x25139AD1),
        ("C from an IPv6 host", 0),
        ("D delayed", ST + 2700 + 10000),
    ],
)
def test_the_entry_carries_the_tags_hash_or_the_due_time(name: str, code: int) -> None:
    assert entry_tags_code(outline(memoryview(bytes.fromhex(GOLDEN[name][1])))) == code


@few
@given(records, st.data())
def test_a_record_cut_anywhere_is_reported_as_damaged(record: Record, data: st.DataObject) -> None:
    raw = encode_record(record)
    cut = data.draw(st.integers(8, len(raw) - 1))
    found, size, reason = examine(raw, 0, cut)
    assert (found, size) == (Kind.DAMAGED, 0)
    assert reason
    with pytest.raises(StoreDamaged):
        decode_record(raw[:cut])


@few
@given(records, st.data())
def test_a_changed_body_is_seen_by_its_checksum(record: Record, data: st.DataObject) -> None:
    whole = encode_record(_change(record, body=record.body or b"x"))
    at, length = body_span(whole, 0)
    raw = bytearray(whole)
    index = data.draw(st.integers(at, at + length - 1))
    raw[index] ^= 1 << data.draw(st.integers(0, 7))
    assert examine(bytes(raw), 0, len(raw)) == (Kind.DAMAGED, 0, "body CRC differs")


@few
@given(records, st.data())
def test_no_change_of_any_byte_makes_examine_fail_or_read_too_far(
    record: Record, data: st.DataObject
) -> None:
    raw = bytearray(encode_record(record))
    for index in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
        raw[index] = data.draw(st.integers(0, 255))
    found, size, _ = examine(bytes(raw), 0, len(raw))
    assert size <= len(raw)
    if found is Kind.RECORD:
        assert encode_record(decode_record(bytes(raw)))


@few
@given(st.binary(max_size=300))
def test_no_bytes_at_all_make_examine_fail(raw: bytes) -> None:
    found, size, _ = examine(raw, 0, len(raw))
    assert 0 <= size <= len(raw)
    assert found in Kind


def test_a_record_that_names_another_place_is_damaged(make_record: RecordMaker) -> None:
    raw = encode_record(make_record(physical_offset=500))
    assert examine(raw, 0, len(raw), position=500)[0] is Kind.RECORD
    found, _, reason = examine(raw, 0, len(raw), position=501)
    assert (found, reason) == (Kind.DAMAGED, "record names 500 as its own offset")
