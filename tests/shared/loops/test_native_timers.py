"""The scheduler's loops, compiled and in Python: the same timers and copies, whatever stands there.

Records come from seeds, good ones and odd ones; then bytes are changed at random.
"""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import complete_prop_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import MESSAGE, RECALL, TIMER
from penstock.shared.loops.pure import timers as pure
from penstock.shared.messaging.delayed import Delay, delayed
from penstock.shared.messaging.system_topics import TIMER_TOPIC

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOSTS = (pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9))
BASE, STORED_MS = 1 << 30, 1_700_000_000_000
ODD = (
    *(b"", b"x", b"0", b"-1", b"+5", b"007", b"1" * 15, b"1" * 16, b"\xff", "ü²".encode()),
    *(b"1000", b"1700000009000", b"orders", b"o" * 127, b"o" * 128, b"0" * 9, b"1" * 10),
)
NAMES = (
    *(b"TIMER_OUT_MS", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_ROLL_TIMES"),
    *(b"TIMER_DEL_UNIQKEY", b"REAL_TOPIC", b"REAL_QID", b"UNIQ_KEY", b"TIMER_", b"__CRC32#"),
    *(b"XREAL_QID", b"T", b"TAGS", b"", b"x__CRC32#"),
)


def odd_properties(rng: random.Random) -> bytes:
    count = rng.choices(range(4), (6, 4, 2, 1))[0]
    ends = rng.choices((b"\x02", b"", b"\x02\x02", b"\x01"), (20, 1, 1, 1), k=count)
    return b"".join(rng.choice(NAMES) + b"\x01" + rng.choice(ODD) + end for end in ends)


def waiting_record(rng: random.Random, position: int) -> bytes:
    """One that waits, most often as a client makes it."""
    host = rng.choice(HOSTS)
    plain = Record(
        rng.choice(("orders", "%RETRY%" + "g" * 120 + "x" * 100)),
        rng.randbytes(rng.choice((0, 1, 40))),
        rng.choice((b"", b"UNIQ_KEY\x01K1\x02", b"UNIQ_KEY\x01K2\x02a\x01\xff\x02")),
        rng.randrange(4),
        flag=rng.getrandbits(31),
        sys_flag=rng.choice((0, 0, 1, 8)),
        born_host=rng.choice(HOSTS),
        store_host=host,
        reconsume_times=rng.randrange(3),
    )
    out_ms = STORED_MS + rng.randrange(-100, 9000)
    delay = rng.choice(
        (
            Delay(out_ms=out_ms),
            Delay(out_ms=out_ms, delay_ms=rng.randrange(1, 9000)),
            Delay(out_ms=out_ms, recalls="K1"),
            Delay(level=1),
        )
    )
    record = delayed(plain, delay)
    properties = odd_properties(rng) + record.properties + odd_properties(rng)
    crc = rng.random() < 0.3
    properties = with_prop_crc_room(properties, True) if crc else properties
    stored_ms = rng.choice((STORED_MS, STORED_MS, STORED_MS, 0, -1, 1 << 62))
    record = replace(
        record,
        topic=TIMER_TOPIC,
        properties=properties,
        store_timestamp_ms=stored_ms,
        physical_offset=position,
    )
    raw = bytearray(encode_record(record))
    if crc and rng.random() < 0.8:
        complete_prop_crc(raw, 0, len(raw))
    return bytes(raw)


def segment_of(rng: random.Random, damage: bool) -> tuple[bytes, bytes]:
    """Some of the log from BASE on, and the entries of its queue."""
    raw, entries = bytearray(), b""
    for _ in range(30):
        one = waiting_record(rng, BASE + len(raw))
        size = len(one) + (rng.choice((-1, 1, 1 << 20, -(1 << 31))) if rng.random() < 0.02 else 0)
        entries += ENTRY.pack(BASE + len(raw), max(size, -(1 << 31)), 0)
        entries += BLANK_ENTRY * (rng.random() < 0.05)
        raw += one
    if damage:
        for _ in range(40):
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        del raw[len(raw) - rng.randrange(3) :]
    return bytes(raw), entries


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_both_forms_find_the_same_timers_and_make_the_same_copies(seed: int, damage: bool) -> None:
    rng = random.Random(seed)
    segment, entries = segment_of(rng, damage)
    view = memoryview(segment)
    for known, delivered_ms in ((0, -1), (10, STORED_MS + 4000), (99, STORED_MS + 4000)):
        asked = (entries, view, BASE, known, delivered_ms)
        assert native.timer_entries(*asked) == pure.timer_entries(*asked)
    timers = b"".join(
        TIMER.pack(due_ms + rng.choice((0, 0, 0, 1)), place, size, kind)
        for due_ms, place, size, kind in TIMER.iter_unpack(native.timer_entries(*asked))
    )
    timers += (
        b"".join(  # what is of a level has any time; and some that lead nowhere
            TIMER.pack(rng.choice((0, STORED_MS, (1 << 64) - 1)), place, size, MESSAGE)
            for place, size, _ in ENTRY.iter_unpack(entries)
            if size > 0
        )
        + TIMER.pack(1, (1 << 64) - 1, 100, 0)
        + TIMER.pack(1, BASE, (1 << 32) - 1, 0)
    )
    for shape in (Shape(8, False), Shape(20, True)):
        for timed in (True, False):
            for recalled in ((), {b"orders+K1"}, {b"orders+K2", "größe+K1".encode()}):
                how = (timers, view, BASE, shape, timed, recalled)
                assert native.delayed_copies(*how) == pure.delayed_copies(*how)


def test_most_copies_are_made_without_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loops are equal because there is one only."""
    raw, entries, twins = bytearray(), b"", []
    for number in range(50):
        # neither its length nor its name makes a property of its own one of a timer
        properties = b"UNIQ_KEY\x01K%d\x02KEYS\x01order-%d\x02" % (number, number)
        own = Record("orders", b"body", properties, 1, born_host=HOSTS[0])
        waits = delayed(own, Delay(out_ms=STORED_MS + number, recalls="K" if number == 7 else ""))
        waits = replace(
            waits,
            store_host=HOSTS[0],
            store_timestamp_ms=STORED_MS,
            physical_offset=BASE + len(raw),
            properties=with_prop_crc_room(waits.properties, number % 2 == 0),
        )
        one = encode_record(waits)
        entries += ENTRY.pack(BASE + len(raw), len(one), 0)
        raw += one
    view = memoryview(raw)
    expected = pure.timer_entries(entries, view, BASE, 0, -1)
    copies = pure.delayed_copies(expected, view, BASE, Shape(), True, ())
    for name in ("timer_entries", "delayed_copies"):
        monkeypatch.setattr(pure, name, lambda *given: twins.append(given))
    assert native.timer_entries(entries, view, BASE, 0, -1) == expected
    kinds = [kind for _, _, _, kind in TIMER.iter_unpack(expected)]
    assert kinds == [RECALL if number == 7 else MESSAGE for number in range(50)]
    assert native.delayed_copies(expected, view, BASE, Shape(), True, ()) == copies
    assert [copy is None for copy in copies] == [number == 7 for number in range(50)]
    assert twins == []


def test_entries_that_lead_elsewhere_have_no_timer() -> None:
    rng = random.Random(5)
    segment, entries = segment_of(rng, False)
    alone = native.timer_entries(entries, memoryview(segment), BASE, 0, -1)
    for place in (BASE - 1, BASE + len(segment), -1, (1 << 63) - 1, -(1 << 63)):
        asked = (entries + ENTRY.pack(place, 100, 0) + entries, memoryview(segment), BASE, 0, -1)
        assert native.timer_entries(*asked) == pure.timer_entries(*asked) == 2 * alone


CRC = b"__CRC32#\x010123456789\x02"
PLAIN = b"REAL_TOPIC\x01orders\x02REAL_QID\x011\x02TIMER_OUT_MS\x01%d\x02UNIQ_KEY\x01K1\x02"
PLAIN %= STORED_MS + 1000
VALUES = {
    b"TIMER_OUT_MS": b"%d" % (STORED_MS + 1000),
    b"TIMER_DELAY_MS": b"2000",
    b"TIMER_DELAY_SEC": b"3",
    b"TIMER_ROLL_TIMES": b"1",
    b"TIMER_DEL_UNIQKEY": b"K1",
    b"REAL_TOPIC": b"orders",
    b"REAL_QID": b"1",
    b"UNIQ_KEY": b"K1",
}


def assert_alike(properties: bytes, stored_ms: int = STORED_MS) -> list[bytes]:
    """What both forms make of a record with these properties; its copies."""
    record = Record(
        TIMER_TOPIC,
        b"body",
        properties,
        born_host=HOSTS[0],
        store_host=HOSTS[0],
        store_timestamp_ms=stored_ms,
        physical_offset=BASE,
    )
    raw = encode_record(record)
    asked = ENTRY.pack(BASE, len(raw), 0), memoryview(raw), BASE, 0, -1
    timers = native.timer_entries(*asked)
    assert timers == pure.timer_entries(*asked)
    timers += TIMER.pack(STORED_MS + 1000, BASE, len(raw), MESSAGE)
    copies = []
    for shape in (Shape(8, False), Shape(8, True)):
        for timed in (True, False):
            how = (timers, memoryview(raw), BASE, shape, timed, ())
            made = native.delayed_copies(*how)
            assert made == pure.delayed_copies(*how)
            copies += [bytes(copy.record) for copy in made if copy is not None]
    return copies


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_property_whose_last_value_is_empty_has_the_one_before_it(name: bytes) -> None:
    again = b"%b\x01%b\x02%b\x01\x02" % (name, VALUES[name], name)
    assert_alike(PLAIN + again)
    assert_alike(again + PLAIN)
    assert_alike(b"".join(b"%b\x01%b\x02" % each for each in VALUES.items()) + again)


@pytest.mark.parametrize(
    "properties",
    [
        PLAIN + CRC,
        CRC + PLAIN,
        PLAIN + CRC + CRC,
        CRC + PLAIN + CRC,
        PLAIN + CRC[:-1],
        PLAIN + CRC + b"a\x01b\x02",
        PLAIN + CRC + b"KEYS\x01" + b"k" * 14 + b"\x02",  # as long as a checksum
        PLAIN + CRC[:-3] + b"\x02b\x02",
        CRC,
        PLAIN + b"x" + CRC,
        PLAIN[:-1],
    ],
)
def test_a_copy_has_no_checksum_of_its_record_wherever_that_stands(properties: bytes) -> None:
    for copy in assert_alike(properties):
        assert b"0123456789" not in copy or b"x__CRC" in properties


@pytest.mark.parametrize("stored_ms", [-(1 << 63), -1, 0, 1 << 60, (1 << 63) - 1])
@pytest.mark.parametrize("more", [b"", b"TIMER_DELAY_SEC\x01999999999999999\x02"])
def test_a_time_that_no_clock_shows_delays_alike(stored_ms: int, more: bytes) -> None:
    assert_alike(PLAIN + more, stored_ms)
