"""Frames and the walk: what `encode_record` makes passes, what is damaged does not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.queue_entry import ENTRY, tags_code
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import body_crc
from penstock.shared.formats.record_layout import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_INNER_BATCH,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    blank_size,
)
from penstock.shared.formats.record_outline import entry_tags_code, outline, unique_key_of
from penstock.shared.loops.active import (
    QueueNumbers,
    by_queue,
    check_frame,
    dispatch,
    find_socket_functions,
    put_stamped,
    why_pure,
)
from penstock.shared.loops.forms import RunOf, Stamp
from penstock.shared.loops.pure.serving import addresses
from penstock.shared.loops.pure.walk import walk

RecordMaker = Callable[..., Record]
LIMIT = 1 << 20
HOST = pack_host("192.168.7.9", 10911)
LONG_TOPIC = "%RETRY%" + "g" * 200

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
properties = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "a", "XTAGS"]), texts, max_size=4
).map(encode_properties)
hosts = st.sampled_from([pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)])


def records(topic: str = "orders", queue_id: int = 3) -> st.SearchStrategy[Record]:
    """Records as a producer may send them to one queue."""
    return st.builds(
        Record,
        topic=st.just(topic),
        body=st.binary(max_size=80),
        properties=properties,
        queue_id=st.just(queue_id),
        flag=st.integers(-(2**31), 2**31 - 1),
        sys_flag=st.sampled_from([0, 1, 2, 3]),
        born_timestamp_ms=st.integers(0, 2**62),
        born_host=hosts,
        reconsume_times=st.integers(0, 9),
    )


frames = st.lists(records(), min_size=1, max_size=5)


def check(
    frame: bytes | bytearray, topic: bytes, queue_id: int, limit: int, *limits: int
) -> list[int]:
    """Check a frame of one run, which says that it has as many records as there seem to be."""
    at = count = 0
    while at < len(frame):
        at += max(91, int.from_bytes(frame[at : at + 4], "big"))
        count += 1
    return check_frame(frame, [(topic, queue_id, count)], limit, *limits)


def joined(found: list[Record]) -> bytes:
    return b"".join(map(encode_record, found))


@given(frames)
def test_a_frame_of_encoded_records_passes_and_its_starts_are_found(found: list[Record]) -> None:
    sizes = [len(encode_record(record)) for record in found]
    starts = check(joined(found), b"orders", 3, LIMIT)
    assert starts == [sum(sizes[:i]) for i in range(len(sizes) + 1)]


@given(st.lists(records(LONG_TOPIC), min_size=1, max_size=3))
def test_a_frame_of_a_long_topic_passes_in_the_second_version(found: list[Record]) -> None:
    frame = joined(found)
    assert frame[4:8] == MAGIC_V2.to_bytes(4, "big")
    assert len(check(frame, LONG_TOPIC.encode(), 3, LIMIT)) == len(found) + 1


def test_an_empty_frame_has_no_records() -> None:
    assert check(b"", b"orders", 0, LIMIT) == [0]


@pytest.mark.parametrize(
    ("what", "topic", "queue_id", "limit"),
    [
        ("of another topic", b"Orders", 3, LIMIT),
        ("of a longer topic", b"orders2", 3, LIMIT),
        ("of a shorter topic", b"order", 3, LIMIT),
        ("of another queue", b"orders", 2, LIMIT),
        ("of a negative queue", b"orders", -3, LIMIT),
        ("too large", b"orders", 3, 106),
    ],
)
def test_a_record_is_refused_that_is(
    make_record: RecordMaker, what: str, topic: bytes, queue_id: int, limit: int
) -> None:
    frame = encode_record(make_record(queue_id=3))
    assert len(frame) - 1 == 107
    assert check(frame, b"orders", 3, 108) == [0, 108]
    with pytest.raises(InvalidMessage):
        check(frame, topic, queue_id, limit)


def test_a_body_has_a_limit_of_its_own(make_record: RecordMaker) -> None:
    frame = encode_record(make_record(properties=b"p" * 100))
    assert check(frame, b"orders", 0, LIMIT, 11) == [0, len(frame)]
    with pytest.raises(InvalidMessage, match="larger than 10 bytes"):
        check(frame, b"orders", 0, LIMIT, 10)


@pytest.mark.parametrize(
    ("field", "at", "value"),
    [
        ("size", 0, 107),
        ("size", 0, 109),
        ("size", 0, 0),
        ("size", 0, -108),
        ("size", 0, 2**31 - 1),
        ("magic", 4, 0),
        ("magic", 4, MAGIC_V2 - 2**32),
        ("magic", 4, MAGIC_BLANK - 2**32),
        ("body CRC", 8, 0),
        ("body CRC with its top bit", 8, (body_crc(b"hello world") | 0x80000000) - 2**32),
        ("queue", 12, 4),
        ("sysFlag: store host V6", 36, SYS_STORE_HOST_V6),
        ("sysFlag: prepared", 36, SYS_TRANSACTION_PREPARED),
        ("sysFlag: rolled back", 36, SYS_TRANSACTION_ROLLBACK),
        ("sysFlag: a batch in one record", 36, SYS_INNER_BATCH),
        ("sysFlag: born host V6", 36, SYS_BORN_HOST_V6),
        ("body length", 84, 10),
        ("body length", 84, 12),
        ("body length", 84, -1),
        ("body length", 84, 2**31 - 1),
        ("body length", 84, -(2**31)),
    ],
)
def test_a_field_is_refused_that_does_not_hold(
    make_record: RecordMaker, field: str, at: int, value: int
) -> None:
    frame = bytearray(encode_record(make_record(queue_id=3)))
    good = bytes(frame)
    frame[at : at + 4] = value.to_bytes(4, "big", signed=True)
    assert bytes(frame) != good, field
    with pytest.raises(InvalidMessage):
        check(frame, b"orders", 3, LIMIT)
    # and what stands before it in the frame does not help
    with pytest.raises(InvalidMessage):
        check(good + bytes(frame), b"orders", 3, LIMIT)


def test_a_topic_that_needs_the_second_version_is_refused_in_the_first(
    make_record: RecordMaker,
) -> None:
    """Its length byte would be read as a negative number, here and by RocketMQ."""
    topic = LONG_TOPIC.encode()
    long = encode_record(make_record(topic=LONG_TOPIC))
    at = long.index(topic)
    assert long[at - 2 : at] == len(topic).to_bytes(2, "big")
    raw = bytearray(long[: at - 2] + long[at - 1 :])
    raw[:8] = len(raw).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big")
    with pytest.raises(InvalidMessage):
        check(raw, topic, 0, LIMIT)


def test_a_body_that_ends_before_it_begins_is_refused(make_record: RecordMaker) -> None:
    """Though a topic and the length of what follows stand there: in the fields before the body."""
    raw = bytearray(encode_record(make_record(topic="a", body=b"", properties=b"p" * 30)))
    raw[76:80] = b"\x01a" + (len(raw) - 80).to_bytes(2, "big")
    raw[84:88] = (-12).to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidMessage):
        check(raw, b"a", 0, LIMIT)


def test_properties_that_do_not_fit_their_signed_length_are_refused(
    make_record: RecordMaker,
) -> None:
    largest = encode_record(make_record(properties=b"p" * 32767))
    assert check(largest, b"orders", 0, LIMIT) == [0, len(largest)]
    at = largest.index(b"ppp")
    raw = bytearray(largest + b"p")
    raw[at - 2 : at] = (32768).to_bytes(2, "big")
    raw[:4] = len(raw).to_bytes(4, "big")
    with pytest.raises(InvalidMessage):
        check(raw, b"orders", 0, LIMIT)


def test_a_refusal_names_the_record(make_record: RecordMaker) -> None:
    good = encode_record(make_record())
    with pytest.raises(InvalidMessage, match="record 2 of the frame"):
        check(good + good + good[:-1], b"orders", 0, LIMIT)


def stamped(
    frame: bytes | bytearray, starts: list[int], position: int, stamp: Stamp, queue_offset: int = 0
) -> bytearray:
    target = bytearray(len(frame))
    offsets = [queue_offset + number for number in range(len(starts) - 1)]
    put_stamped(target, bytes(frame), starts, offsets, position, stamp)
    return target


# --- several runs ---

runs = st.lists(
    st.tuples(st.sampled_from(["a", "orders", LONG_TOPIC]), st.integers(0, 3), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


def frame_of(found: list[tuple[str, int, int]]) -> tuple[bytes, list[RunOf]]:
    raw = b"".join(
        encode_record(Record(topic, bytes(queue_id + 1), queue_id=queue_id)) * count
        for topic, queue_id, count in found
    )
    return raw, [(topic.encode(), queue_id, count) for topic, queue_id, count in found]


@given(runs)
def test_the_records_of_several_runs_pass_one_behind_the_other(
    found: list[tuple[str, int, int]],
) -> None:
    frame, said = frame_of(found)
    starts = check_frame(frame, said, LIMIT)
    assert len(starts) == 1 + sum(count for _, _, count in found) and starts[-1] == len(frame)


@given(runs, st.data())
def test_runs_that_say_other_than_the_records_are_refused(
    found: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    frame, said = frame_of(found)
    at = data.draw(st.integers(0, len(said) - 1))
    topic, queue_id, count = said[at]
    wrong: list[RunOf] = [
        (b"b", queue_id, count),
        (topic, queue_id + 1, count),
        (topic, queue_id, count + 1),
        (topic, queue_id, 1 << 40),
    ]
    # fewer, unless the next run has as good as the same records
    alike = at + 1 < len(said) and said[at + 1][:2] == said[at][:2]
    wrong += [] if alike else [(topic, queue_id, count - 1)]
    changed = data.draw(st.sampled_from(wrong))
    if alike and changed[2] > count:
        changed = (topic, queue_id, 1 << 40)
    with pytest.raises(InvalidMessage):
        check_frame(frame, [*said[:at], changed, *said[at + 1 :]], LIMIT)
    with pytest.raises(InvalidMessage):
        check_frame(frame, said[:-1], LIMIT)
    with pytest.raises(InvalidMessage):
        check_frame(frame, [*said, (b"a", 0, 1)], LIMIT)


# --- any bytes ---


def outcome(frame: bytes | bytearray) -> list[int] | None:
    """The starts, or None when the frame was refused; any other error fails the test."""
    try:
        return check(frame, b"orders", 3, LIMIT)
    except InvalidMessage:
        return None


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(raw: bytes) -> None:
    assert outcome(raw) is None or raw == b""


@given(frames, st.data())
def test_a_frame_cut_between_records_passes_and_elsewhere_not(
    found: list[Record], data: st.DataObject
) -> None:
    frame = joined(found)
    starts = outcome(frame)
    assert starts is not None
    cut = data.draw(st.integers(0, len(frame)))
    assert (outcome(frame[:cut]) is not None) == (cut in starts)


@given(frames, st.data())
def test_what_passes_with_flipped_bits_is_still_a_frame_the_log_can_hold(
    found: list[Record], data: st.DataObject
) -> None:
    frame = bytearray(joined(found))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, len(frame) * 8 - 1))
        frame[bit // 8] ^= 1 << bit % 8
    starts = outcome(frame)
    if starts is None:
        return
    assert starts[-1] == len(frame)
    walked = list(walk(memoryview(stamped(frame, starts, 0, Stamp(1, HOST))), 0))
    assert [found.position for found in walked] == starts[:-1]
    assert {found.topic for found in walked} == {b"orders"}


@given(st.integers(1, 91), st.integers(0, 120), st.integers(-(2**31), 2**31 - 1))
@example(91, 36, SYS_BORN_HOST_V6)
def test_the_smallest_frames_with_any_field_are_refused_or_pass(
    length: int, at: int, value: int
) -> None:
    """What a length or a flag points at may lie after the frame's end."""
    raw = bytearray(length)
    raw[:8] = length.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big")
    raw[12:16] = (3).to_bytes(4, "big")
    raw[at : at + 4] = value.to_bytes(4, "big", signed=True)
    assert outcome(raw[:length]) is None


# --- stamping ---


@given(frames, st.integers(0, 2**40), st.integers(0, 2**50), st.integers(0, 2**42))
def test_a_stamped_frame_is_the_encoding_of_the_stamped_records(
    found: list[Record], queue_offset: int, position: int, stored_ms: int
) -> None:
    raw = joined(found)
    starts = check(raw, b"orders", 3, LIMIT)
    frame = stamped(raw, starts, position, Stamp(stored_ms, HOST), queue_offset)
    expected = [
        msgspec.structs.replace(
            record,
            queue_offset=queue_offset + i,
            physical_offset=position + starts[i],
            store_timestamp_ms=stored_ms,
            store_host=HOST,
        )
        for i, record in enumerate(found)
    ]
    assert frame == joined(expected)


# --- walking ---

stored = st.one_of(
    records(), records("SCHEDULE_TOPIC_XXXX", 1), records(LONG_TOPIC, 0), records("a", 9)
)
flags = st.sampled_from([0, 0, SYS_TRANSACTION_PREPARED, 8, SYS_TRANSACTION_MASK])


def piece_of_log(found: list[Record], position: int) -> bytes:
    raw = b""
    for number, record in enumerate(found):
        changed = msgspec.structs.replace(
            record, queue_offset=number * 7, physical_offset=position + len(raw)
        )
        raw += encode_record(changed)
    return raw


@given(st.lists(stored, max_size=5), st.data(), st.integers(0, 2**50))
def test_the_walk_says_of_each_record_what_its_outline_says(
    found: list[Record], data: st.DataObject, position: int
) -> None:
    found = [
        msgspec.structs.replace(
            record,
            sys_flag=data.draw(flags),
            store_host=data.draw(hosts),
            store_timestamp_ms=1700000000000,
        )
        for record in found
    ]
    raw = piece_of_log(found, position)
    at = 0
    for said_of in walk(memoryview(raw), position):
        size = int.from_bytes(raw[at : at + 4], "big")
        fields = outline(memoryview(raw)[at : at + size])
        code = entry_tags_code(fields)
        entry = ENTRY.pack(position + at, size, code) if fields.is_queued else b""
        said = (fields.topic, fields.queue_id, fields.queue_offset, entry, position + at, size)
        assert tuple(said_of) == said
        at += size
    assert at == len(raw)


@given(st.lists(stored, max_size=6), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_all_at_once_queues_get_the_entries_that_the_walk_gives(
    found: list[Record], queues: list[int]
) -> None:
    """Each queue's in their order, joined where one follows the other."""
    raw, offsets = b"", [0, 0, 5]
    for record, queue in zip(found, queues, strict=False):
        raw += encode_record(
            msgspec.structs.replace(
                record, queue_id=queue, queue_offset=offsets[queue], physical_offset=len(raw)
            )
        )
        offsets[queue] += 1
    walked = list(walk(memoryview(raw), 0))
    queues = QueueNumbers()
    size, records, last, rows, keys = dispatch(memoryview(raw), 0, queues)
    runs = by_queue(rows, queues)
    assert (size, records, keys) == (len(raw), len(found), None)
    assert last == (walked[-1].position if walked else -1)
    assert set(runs) == {(each.topic, each.queue_id) for each in walked}
    for key, pieces in runs.items():
        entries = [
            (first + at // ENTRY.size, bytes(raw[at : at + ENTRY.size]))
            for first, raw in pieces
            for at in range(0, len(raw), ENTRY.size)
        ]
        of_queue = [each for each in walked if (each.topic, each.queue_id) == key]
        assert entries == [(each.queue_offset, each.entry) for each in of_queue]


@pytest.mark.parametrize("tags", [b"\x7f", b"\x80", b"\x00\x80", b"a\x80", b"\xff", "ü".encode()])
def test_tags_that_are_no_ascii_and_perhaps_no_text_have_one_code(tags: bytes) -> None:
    """That of RocketMQ, which reads them as text, with a mark in place of each other byte."""
    raw = piece_of_log([Record("orders", b"", b"TAGS\x01" + tags + b"\x02")], 0)
    queues = QueueNumbers()
    _, _, _, rows, _ = dispatch(memoryview(raw), 0, queues)
    (((_, entry),),) = by_queue(rows, queues).values()
    assert ENTRY.unpack(entry)[2] == tags_code(tags.decode("utf-8", "replace"))


def test_the_walk_of_a_delayed_message_says_when_it_is_due(make_record: RecordMaker) -> None:
    delayed = make_record(
        topic="SCHEDULE_TOPIC_XXXX",
        properties=encode_properties({"TAGS": "t", "DELAY": "3"}),
        store_timestamp_ms=1_000_000,
    )
    (found,) = walk(memoryview(encode_record(delayed)), 0)
    assert ENTRY.unpack(found.entry)[2] == 1_000_000 + 10_000


@given(st.lists(stored, min_size=1, max_size=4), st.data())
def test_the_walk_ends_where_a_record_is_cut_or_names_another_place(
    found: list[Record], data: st.DataObject
) -> None:
    raw = piece_of_log(found, 4096)
    ends = [d.position + d.size - 4096 for d in walk(memoryview(raw), 4096)]
    cut = data.draw(st.integers(0, len(raw)))
    seen = [d.position + d.size - 4096 for d in walk(memoryview(raw)[:cut], 4096)]
    assert seen == [end for end in ends if end <= cut]
    assert list(walk(memoryview(raw), 4097)) == []
    tail = bytes(8) if data.draw(st.booleans()) else BLANK.pack(500, MAGIC_BLANK)
    whole = raw + tail + raw
    assert sum(d.size for d in walk(memoryview(whole), 4096)) == len(raw)


def test_the_size_of_a_blank_is_told_and_of_nothing_else() -> None:
    blank = memoryview(b"\0\0\0" + BLANK.pack(77, MAGIC_BLANK))
    assert blank_size(blank, 3) == 77
    assert blank_size(blank) == 0
    assert blank_size(blank[:10], 3) == 0
    assert blank_size(memoryview(BLANK.pack(77, MAGIC_V1))) == 0


@given(stored, st.binary(max_size=9), texts)
def test_the_unique_key_of_a_record_is_found_wherever_it_stands(
    record: Record, before: bytes, key: str
) -> None:
    with_key = msgspec.structs.replace(
        record, properties=encode_properties({"XUNIQ_KEY": "no", "UNIQ_KEY": key, "z": "1"})
    )
    without = msgspec.structs.replace(record, properties=encode_properties({"XUNIQ_KEY": "no"}))
    alone = msgspec.structs.replace(record, properties=encode_properties({"UNIQ_KEY": key}))
    for each, expected in ((with_key, key.encode()), (without, b""), (alone, key.encode())):
        raw = encode_record(each)
        view = memoryview(before + raw + b"UNIQ_KEY\x01behind\x02")
        assert unique_key_of(view[len(before) : len(before) + len(raw)]) == expected


def test_what_asks_sockets_is_found_for_the_compiled_loops_alone() -> None:
    addresses.cache_clear()
    find_socket_functions()
    assert addresses.cache_info().currsize == (0 if why_pure else 1)
