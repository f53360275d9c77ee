"""The compiled loops and their twin in Python: the same bytes, the same results, the same refusals.

Both are given the same things, good ones and damaged ones, from seeds: a failure comes again.
"""

from __future__ import annotations

import gc
import os
import random
import struct
import subprocess
import sys
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import Checksum, complete_prop_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK, SYS_TRANSACTION_MASK, Shape
from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.loops import active, forms, pure
from penstock.shared.loops.active import INTERFACE
from penstock.shared.loops.forms import Stamp
from penstock.shared.loops.pure import (
    answer as pure_answer,
)
from penstock.shared.loops.pure import (
    encode as pure_encode,
)
from penstock.shared.loops.pure import (
    frame as pure_frame,
)
from penstock.shared.loops.pure import (
    message as pure_message,
)
from penstock.shared.loops.pure import (
    queues as pure_queues,
)
from penstock.shared.loops.pure import (
    ranges as pure_ranges,
)
from penstock.shared.loops.pure import (
    walk as pure_walk,
)

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOSTS = (pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9))
TOPICS = ("a", "orders", "t" * 127, "%RETRY%" + "g" * 200, "größe", SCHEDULE_TOPIC)
VALUES = (b"", b"", b"x", b"3", b"0", b"99", b"two words", b"  a  b ", "ü€𝄞".encode(), b"\xff\xc3")
NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"XTAGS", b"TAG", b"T", b"", b"__CRC32#")
WORDS = (0, 1, 11, 91, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 0xDAA320A7, 0xDAA320AB)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returns, as comparable things, or how it fails."""
    try:
        found = call(*arguments)
    except Exception as error:
        return type(error), str(error)
    if isinstance(found, forms.Dispatched) and found.keys is not None:
        found = found._replace(keys=[each.tolist() for each in found.keys])
    return found


def properties(rng: random.Random) -> bytes:
    count = rng.choices(range(5), (2, 4, 3, 1, 1))[0]
    ends = rng.choices((b"\x02", b"", b"\x02\x02", b"\x01", b"\0"), (20, 1, 1, 1, 1), k=count)
    return b"".join(rng.choice(NAMES) + b"\x01" + rng.choice(VALUES) + end for end in ends)


def record(rng: random.Random, shape: Shape, **fields: Any) -> Record:
    body = rng.randbytes(rng.choice((0, 0, 1, 9, 63, 64, 65, 80, 127, 128, 300)))
    raw = rng.choice((b"", b"UNIQ_KEY\x01" + b"0A" * 16 + b"\x02", properties(rng)))
    return Record(
        body=rng.choice((body, body, b"DELAY\x01", b"__CRC32#\x01")),
        properties=with_prop_crc_room(raw, shape.prop_crc),
        flag=rng.randrange(-(2**31), 2**31),
        sys_flag=rng.choice((0, 0, 1, 3)),
        born_timestamp_ms=rng.randrange(2**41),
        born_host=rng.choice(HOSTS),
        store_host=bytes(shape.store_host_bytes),
        **fields,
    )


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Bits flipped, words set, pieces cut, doubled or put elsewhere; sometimes nothing."""
    changed = bytearray(raw)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(8)
        if kind < 2 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 5:
            field = rng.choice((0, 4, 8, 12, 28, 32, 36, 84, 88, 90, 96, at))
            changed[field : field + 4] = rng.choice(WORDS).to_bytes(4, "big")
        elif kind == 5:
            del changed[at : at + rng.choice((1, 4, 1000))]
        elif kind == 6:
            changed[at:at] = changed[: rng.randrange(200)]
        else:
            changed[at : at + 1] = rng.randbytes(1)
    return bytes(changed)


def check_frames(seed: int, count: int) -> int:
    """Frames, whole and damaged: what is refused, and what is put into the log of the others."""
    rng, passed = random.Random(seed), 0
    for number in range(count):
        if number % 10 == 0:
            shape = Shape(rng.choice((8, 20)), rng.random() < 0.3)
            runs, made = [], []
            for _ in range(rng.choice((1, 1, 2, 4))):
                topic, queue, records = rng.choice(TOPICS), rng.randrange(5), rng.choice((1, 1, 3))
                runs.append((topic.encode(), queue, records))
                made += [
                    encode_record(record(rng, shape, topic=topic, queue_id=queue))
                    for _ in range(records)
                ]
            if rng.random() < 0.1:
                runs[-1] = (*runs[-1][:2], rng.choice((0, 5, 1 << 40)))
        frame = damaged(rng, b"".join(made))
        limits = rng.choice(((1 << 20, 1 << 20), (1 << 20, 64), (300, 1 << 31), (1 << 40, 1 << 40)))
        asked = (frame, runs, *limits, shape)
        starts = outcome(native.check_frame, *asked)
        assert starts == outcome(pure_frame.check_frame, *asked), (seed, number)
        if not isinstance(starts, list) or len(starts) < 2:
            continue
        passed += 1
        asked = (frame, starts, shape.prop_crc)
        said = outcome(native.check_properties, *asked)
        assert said == outcome(pure_frame.check_properties, *asked), (seed, number)
        if said is not None:
            continue
        stamp = Stamp(rng.randrange(2**50), HOSTS[shape[0] > 8], shape[1])
        first = rng.randrange(len(starts) - 1)
        offsets = [rng.randrange(2**50) for _ in starts[first:-1]]
        targets = bytearray(len(frame) + 3), bytearray(len(frame) + 3)
        for loops, target in zip((native, pure_frame), targets, strict=True):
            loops.put_stamped(target, frame, starts[first:], offsets, 4096, stamp)
        assert targets[0] == targets[1], (seed, number)
    return passed


def piece_of_log(rng: random.Random, position: int) -> bytes:
    raw, offsets = b"", {}
    for _ in range(rng.choice((1, 2, 3, 6))):
        topic, queue = rng.choice(TOPICS[rng.randrange(5) :]), rng.randrange(2)
        offset = offsets[topic, queue] = offsets.get((topic, queue), -1) + rng.choice((1, 1, 1, 3))
        shape = Shape(rng.choice((8, 20)), rng.random() < 0.3)
        fields = record(rng, shape, topic=topic, queue_id=queue, queue_offset=offset)
        one = bytearray(encode_record(fields))
        one[28:36] = (position + len(raw)).to_bytes(8, "big")
        one[39] |= rng.choice((0, 0, 0, 4, 8, SYS_TRANSACTION_MASK))
        at = 56 + 12 * (one[39] >> 4 & 1)
        one[at : at + 8] = rng.choice((1700000001456, 0, 2**63 - 1)).to_bytes(8, "big")
        if shape.prop_crc:
            complete_prop_crc(one, 0, len(one))
        raw += one
    return raw + rng.choice((b"", bytes(100), BLANK.pack(500, MAGIC_BLANK) + bytes(92)))


def check_logs(seed: int, count: int) -> int:
    """Pieces of a log, whole and damaged: entries, keys, and which records are whole."""
    rng, passed = random.Random(seed), 0
    for number in range(count):
        if number % 10 == 0:
            position = rng.choice((0, 4096, 2**40, 2**62))
            whole = piece_of_log(rng, position)
        raw = damaged(rng, whole)
        keyed = rng.random() < 0.8
        numbered = native.QueueNumbers(), pure_queues.QueueNumbers()
        asked: tuple[Any, ...] = ((1000, 5000), keyed)
        found = outcome(native.dispatch, memoryview(raw), position, numbered[0], *asked)
        twin = outcome(pure_walk.dispatch, memoryview(raw), position, numbered[1], *asked)
        assert found == twin and numbered[0].names == numbered[1].names, (seed, number)
        runs = native.by_queue(found.rows, numbered[0])
        assert runs == pure_queues.by_queue(found.rows, numbered[1]), (seed, number)
        passed += found[1] > 0
        for checksum in Checksum:
            asked = (raw, position, checksum)
            starts = outcome(native.record_starts, *asked)
            assert starts == outcome(pure_walk.record_starts, *asked), (seed, number)
        queue, low = rng.choice((None, 0, 1, -1)), rng.randrange(3)
        offsets = low, low + rng.choice((0, 2, 9))
        start = rng.choice((0, 0, 0, 7))
        places = (start, len(raw)), (start, len(raw) // 2), (9, 3), (0, len(raw) + 1)
        place = rng.choices(places, (20, 4, 1, 1))[0]
        asked = raw, place, queue, offsets, 1 << 20, rng.choice((b"UNIQ_KEY", b"TAGS", b"no"))
        seen = [outcome(looked_at, module, *asked) for module in (native, pure_answer)]
        assert seen[0] == seen[1], (seed, number)
    return passed


def test_more_keys_than_there_is_room_for_at_first() -> None:
    raw = b""
    for number in range(3000):
        keys = b"UNIQ_KEY\x01%d\x02KEYS\x01a%d b\x02" % (number, number)
        raw += encode_record(Record("a", b"", keys, physical_offset=len(raw)))
    found, twin = (
        outcome(loops.dispatch, memoryview(raw), 0, numbers(), (), True)
        for loops, numbers in (
            (native, native.QueueNumbers),
            (pure_walk, pure_queues.QueueNumbers),
        )
    )
    assert found == twin and [len(each) for each in found.keys] == [9000] * 3


@pytest.mark.parametrize(
    ("queue_id", "number"),
    [(5 + 2**32, 1), (5 - 2**32, 1), (5, 1 + 2**32), (5 + 2**64, 1), (5, 1 + 2**64)],
)
def test_a_run_beyond_what_a_word_holds_is_refused_as_the_twin_refuses_it(
    queue_id: int, number: int
) -> None:
    shape = Shape(len(HOSTS[0]), False)
    frame = encode_record(record(random.Random(1), shape, topic="a", queue_id=5))
    asked = (frame, [(b"a", queue_id, number)], 1 << 20, 1 << 20, shape)
    assert outcome(native.check_frame, *asked) == outcome(pure_frame.check_frame, *asked)
    assert not isinstance(outcome(native.check_frame, *asked), list), "it is refused"


@pytest.mark.parametrize("queue_id", [0, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize(
    "queue_offset", [0, MAX_QUEUE_OFFSET - 1, MAX_QUEUE_OFFSET, 2**63 - 1, -1, -(2**63)]
)
def test_a_queue_s_numbers_may_be_as_large_as_they_get_but_not_negative(
    queue_id: int, queue_offset: int
) -> None:
    raw = encode_record(Record("a", b"x", queue_id=queue_id, queue_offset=queue_offset))
    is_one = queue_id >= 0 and 0 <= queue_offset < MAX_QUEUE_OFFSET
    for loops in (native, pure_walk):
        starts = loops.record_starts(raw, 0, Checksum.NONE)
        assert starts == ([0, len(raw)] if is_one else [0])


FIELDS = (
    *("queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp_ms"),
    *("store_timestamp_ms", "record", "stored_body", "_raw_topic", "_raw_properties", "body"),
    *("born_host", "store_host", "reconsume_times", "message_id", "compression", "topic"),
    *("properties", "tags", "keys", "unique_key", "shard"),
)


def looked_at(module: Any, *asked: Any) -> Any:
    """What `messages` gives, with what each field of each record is or raises; and `bodies`,
    and `part_starts`."""
    made, end, named = module.messages(*asked)
    fields = [[outcome(getattr, each, name) for name in FIELDS] for each in made]
    alone, *same = module.bodies(*asked)
    assert same == [end, named]
    payload, place, queue_id, offsets, _, name = asked
    starts, *same = module.part_starts(payload, place, queue_id, offsets, name)
    assert same == [end, named]
    stops = [*starts, end][1:]
    assert [b - a for a, b in zip(starts, stops, strict=True)] == [len(m.record) for m in made]
    read = [each if type(each) is bytes else outcome(getattr, each, "body") for each in alone]
    assert read == [outcome(getattr, each, "body") for each in made]
    return fields, end, named


@pytest.mark.parametrize("module", [native, pure_answer])
def test_a_body_stands_alone_unless_it_is_compressed_or_damaged(module: Any) -> None:
    whole = encode_record(Record("a", b"body", queue_id=1, queue_offset=3))
    packed = encode_record(Record("a", b"body", queue_id=1, queue_offset=4, sys_flag=1))
    damaged = whole.replace(b"body", b"bode")
    raw = whole + packed + damaged
    found, end, _ = module.bodies(raw, (0, len(raw)), None, (0, 9), 1 << 20, b"no")
    assert end == len(raw) and found[0] == b"body"
    assert [bytes(each.record) for each in found[1:]] == [packed, damaged]


@pytest.mark.parametrize("seed", range(4))
def test_a_record_looks_alike_however_damaged_it_is(seed: int) -> None:
    """Cut anywhere, too: a message may be made of anything."""
    rng, read = random.Random(seed), 0
    for number in range(1500):
        shape = Shape(rng.choice((8, 20)), rng.random() < 0.3)
        made = record(rng, shape, topic=rng.choice(TOPICS), queue_id=rng.randrange(5))
        raw = damaged(rng, encode_record(made))[: rng.choice((None, None, rng.randrange(200)))]
        both = [module.Message(raw, 1 << 20) for module in (native, pure_message)]
        seen = [[outcome(getattr, each, name) for name in FIELDS] for each in both]
        assert seen[0] == seen[1], (seed, number)
        read += isinstance(seen[0][FIELDS.index("body")], bytes)
    assert read > 300


def ranges_of_a_queue(rng: random.Random) -> tuple[bytes, int, int]:
    """Entries as a queue has them, with some that lead anywhere; bytes that are wanted; segment."""
    segment, raw = rng.choice((1000, 4096, 1 << 30)), b""
    at = rng.choice((0, 500, 1 << 40))
    for _ in range(rng.choice((0, 1, 5, 40))):
        size = rng.randrange(91, 300)
        at += rng.choice((0, 0, 0, size, 7))
        odd = rng.random() < 0.03
        offset = rng.choice((-1, 0, at - 900, 2**62, 2**63 - 1)) if odd else at
        length = rng.choice((0, 1, -5, 2**31 - 2, BLANK_SIZE, size)) if odd else size
        raw += ENTRY.pack(offset, length, rng.randrange(2**31))
        at += size * (rng.random() > 0.01)  # else the next one leads to the same record
    return raw, rng.choice((1, 500, 3000, 1 << 40)), segment


@pytest.mark.parametrize("seed", range(4))
def test_entries_lead_to_the_same_ranges_whatever_they_are(seed: int) -> None:
    rng, several = random.Random(seed), 0
    for number in range(1500):
        asked = ranges_of_a_queue(rng)
        found = native.log_ranges(*asked)
        assert found == pure_ranges.log_ranges(*asked), (seed, number)
        several += len(found.ranges) > forms.RANGE.size
        if not found.ranges or found.base > 1 << 40:
            continue
        segment = rng.randbytes(min(asked[2], 20_000))
        pieces = [(memoryview(segment), found.base, found.ranges)] * rng.randrange(3)
        joined = outcome(native.gather, pieces)
        assert joined == outcome(pure_ranges.gather, pieces), (seed, number)
        assert not isinstance(joined, bytes) or len(joined) == found.size * len(pieces)
    assert several > 200


@pytest.mark.parametrize("wrong", [(5, 11), (4, 8), (8, 7), (5, 2**63 - 1), (-(2**62), 2**62)])
def test_ranges_outside_a_segment_are_refused(wrong: tuple[int, int]) -> None:
    first, last, bad = (forms.RANGE.pack(*each) for each in ((5, 7), (9, 10), wrong))
    for loops in (native, pure_ranges):
        assert loops.gather([(memoryview(b"abcde"), 5, first + last)]) == b"abe"
        with pytest.raises(ValueError):
            loops.gather([(memoryview(b"abcde"), 5, first + bad)])
        with pytest.raises(struct.error):
            loops.gather([(memoryview(b"abcde"), 5, first + b"x")])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranges_that_are_longer_together_than_any_number_of_bytes_are_refused(count: int) -> None:
    """The compiled form allocates their sum before it looks at the first."""
    several = forms.RANGE.pack(0, (1 << 62) - 1) * count
    for loops in (native, pure_ranges):
        with pytest.raises(ValueError):
            loops.gather([(memoryview(b"abcde"), 0, several)])


def test_messages_keep_the_bytes_they_look_at() -> None:
    frame = encode_record(Record("a", b"body", queue_id=1, queue_offset=3))
    payload = bytearray(frame * 2)
    asked = (payload, (0, len(payload)), None, (0, 9), 1 << 20, b"no")
    made, _, _ = native.messages(*asked)
    with pytest.raises(BufferError):
        payload.clear()
    (message,) = made[1:]
    del made, asked
    with pytest.raises(BufferError):
        payload.clear()
    assert message.body == b"body" and message.record == frame
    assert not gc.is_tracked(message), "millions are made, and none refers to another"
    del message
    payload.clear()


def test_objects_and_pages_of_notebooks_are_the_same_of_both_forms() -> None:
    typed = encode_properties({"content-type": "application/json", "<b>": "&"})
    for body, properties in ((b'{"a":1}', typed), (b"<script>", b""), (b"\xff" * 9, typed)):
        raw = encode_record(Record("t", body, properties))
        both = [module.Message(raw, 1 << 20) for module in (native, pure_message)]
        decoded = [outcome(each.decode) for each in both]
        pages = [each._repr_html_() for each in both]
        assert decoded[0] == decoded[1] and pages[0] == pages[1]
        assert "<script>" not in pages[0] and "<b>" not in pages[0] and "body" in pages[0]
        assert [each.decode(bytes) for each in both] == [body, body]
    broken = native.Message(b"\0" * 9, 9)._repr_html_()
    assert "record" in broken and broken == pure_message.Message(b"\0" * 9, 9)._repr_html_()


def test_one_that_was_never_made_has_nothing_and_no_memory_of_others() -> None:
    empty = native.Message.__new__(native.Message)
    assert empty.record == b"" and empty == native.Message.__new__(native.Message)
    for name in FIELDS:
        expected = outcome(getattr, pure_message.Message(b""), name)
        assert outcome(getattr, empty, name) == expected, name


@pytest.mark.parametrize("seed", range(6))
def test_frames_pass_or_are_refused_alike_and_are_stored_with_the_same_bytes(seed: int) -> None:
    assert check_frames(seed, 1000) > 200


@pytest.mark.parametrize("seed", range(6))
def test_a_log_says_the_same_to_queues_and_index_however_damaged_it_is(seed: int) -> None:
    assert check_logs(seed, 700) > 200


TEXTS = (None, None, "", "x", "ü€", "a b", "\x01", "a\x02", "\ud800", "t" * 32700)


@pytest.mark.parametrize("seed", range(3))
def test_texts_become_the_same_properties_or_are_refused_alike(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        texts = rng.choices(TEXTS, (9, 9, 1, 9, 9, 9, 1, 1, 1, 1), k=3)
        end = rng.choice((b"", b"WAIT\x01false\x02", b"a\x01b\x02"))
        asked = (*texts, end)
        assert outcome(native.properties_of, *asked) == outcome(pure_encode.properties_of, *asked)


def drafts(rng: random.Random) -> list[Any]:
    """Messages of a queue, some of them with more properties than fit."""
    made: list[Any] = []
    for _ in range(rng.choice((0, 1, 1, 3))):
        body = rng.randbytes(rng.choice((0, 1, 63, 64, 65, 1024)))
        size = rng.choice((32700, 32747, 32767)) if rng.random() < 0.02 else rng.choice((0, 5, 90))
        flag, bits = rng.choice((0, -1, 2**31 - 1, -(2**31))), rng.choice((0, 1, 0x301))
        made.append(body if rng.random() < 0.4 else (body, rng.randbytes(size), flag, bits))
    return made


@pytest.mark.parametrize("born", HOSTS)
@pytest.mark.parametrize("shape", [Shape(), Shape(20), Shape(8, True), Shape(20, True)])
def test_messages_become_the_same_records(born: bytes, shape: Shape) -> None:
    rng = random.Random(len(born))
    origin = KeyOrigin("0A" * (len(born) + 2), 1_698_796_800_000)
    makers = [module.RecordMaker(born, origin, Shape()) for module in (native, pure_encode)]
    names = [len(t).to_bytes(1 if len(t) < 128 else 2, "big") + t for t in (b"a", b"t" * 200)]
    whole = 0
    for number in range(1000):
        if number == 10:
            for maker in makers:
                maker.take_shape(shape)
        runs = []
        for _ in range(rng.choice((1, 3))):
            made = drafts(rng)
            keys = [rng.choice((rng.randrange(2**48), rng.randrange(2**57), -(2**20)))] * len(made)
            runs.append((rng.choice(names), rng.randrange(99), made, array("q", keys)))
        buffers = bytearray(size := rng.choice((300, 3000, 40_000))), bytearray(size)
        made = [outcome(m.pack, into, runs) for m, into in zip(makers, buffers, strict=True)]
        assert made[0] == made[1], number
        if isinstance(made[0], array):
            whole += 1
            end = made[0][-1]
            assert buffers[0][:end] == buffers[1][:end] and not any(buffers[0][end:]), number
    assert whole > 500


def test_nothing_is_written_behind_the_room_for_records() -> None:
    maker = native.RecordMaker(HOSTS[0], KeyOrigin("0A" * 10, 0), Shape())
    guarded = bytearray(b"g" * 1000)
    with pytest.raises(ValueError):
        maker.pack(
            memoryview(guarded)[300:700], [(b"\1a", 3, [bytes(100)] * 2, array("q", [0, 0]))]
        )
    assert guarded[:300] == guarded[700:] == b"g" * 300


@pytest.mark.parametrize("portable", [False, True])
def test_checksums_are_those_of_zlib_at_any_length_and_place(portable: bool) -> None:
    raw = random.Random(1).randbytes(3000)
    for length in (*range(300), 511, 512, 513, 1024, 2900):
        for start in (0, 1, 7, 64):
            piece = raw[start : start + length]
            assert native.crc32(piece, portable) == zlib.crc32(piece), (start, length)


@pytest.mark.parametrize(
    "starts", [[0, 500], [0, 90], [-91, 0], [0, 120, 60], [0, 91, 2**40], [50, 0, 150], [0, 2**62]]
)
def test_places_outside_a_frame_are_refused_and_nothing_is_written_there(starts: list[int]) -> None:
    guarded = bytearray(b"g" * 1000)
    target, stamp = memoryview(guarded)[300:420], Stamp(1, HOSTS[1])
    with pytest.raises(ValueError):
        native.put_stamped(target, bytes(120), starts, [0] * (len(starts) - 1), 0, stamp)
    assert guarded[:300] == b"g" * 300 and guarded[420:] == b"g" * 580


def test_what_is_read_only_is_not_written_to() -> None:
    frame = encode_record(Record("a", b"x"))
    target, stamp = memoryview(bytes(200)), Stamp(1, HOSTS[0])
    with pytest.raises(BufferError):
        native.put_stamped(target, frame, [0, len(frame)], [0], 0, stamp)


@pytest.mark.parametrize("offsets", [[], [1, 2]])
def test_each_record_has_a_queue_offset(offsets: list[int]) -> None:
    frame, stamp = encode_record(Record("a", b"x")), Stamp(1, HOSTS[0])
    for loops in (native, pure_frame):
        with pytest.raises(ValueError):
            loops.put_stamped(bytearray(200), frame, [0, len(frame)], offsets, 0, stamp)


# --- which of the two a process has ---


def chosen(**environment: str) -> str:
    """What a new process says of its loops."""
    asked = (
        "from penstock.shared.loops import active as h; print(h.dispatch.__module__, h.why_pure)"
    )
    place = os.pathsep.join(sys.path)
    run = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": place, **environment},
    )
    return run.stdout.strip()


def test_the_compiled_loops_are_used_unless_the_environment_says_no() -> None:
    assert chosen(PENSTOCK_PURE="") == chosen(PENSTOCK_PURE="0") == "penstock.shared.loops.compiled"
    assert chosen(PENSTOCK_PURE="1") == "penstock.shared.loops.pure.walk PENSTOCK_PURE is set"


def test_every_module_of_the_twin_is_found_where_the_compiled_loops_look_for_it() -> None:
    files = Path(pure.__file__).parent.glob("*.py")
    for name in {path.stem for path in files} - {"__init__"}:
        assert getattr(pure, name).__name__ == f"{pure.__name__}.{name}"
    assert not hasattr(pure, "nothing")


def test_compiled_loops_of_another_interface_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.INTERFACE == INTERFACE
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert active._why_pure() == ""
    monkeypatch.setattr(native, "INTERFACE", INTERFACE - 1)
    assert f"built for interface {INTERFACE - 1}" in active._why_pure()


def test_compiled_loops_that_have_another_layout_are_not_used() -> None:
    """They are stopped when they are loaded; a process that goes on without them says why."""
    asked = (
        "from penstock.shared.formats import record_layout as layout;"
        "layout.AT_RECONSUME_TIMES_V4 += 4;"
        "from penstock.shared.loops import active; print(active.why_pure)"
    )
    run = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PENSTOCK_PURE": ""},
    )
    assert run.stdout == (
        "the compiled module cannot be loaded: it has AT_RECONSUME_TIMES_V4 72, a record has 76\n"
    )
