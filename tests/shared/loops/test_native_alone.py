"""On sound input the compiled loops work alone: they ask the twin only where something is odd.

Otherwise both would agree because only the twin works, and the loops would be no faster than it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import body_crc, with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops import pure
from penstock.shared.loops.forms import RANGE, Rows

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

KEY = b"UNIQ_KEY\x01" + b"0A" * 16 + b"\x02"
SHAPE = Shape(prop_crc=True)
FRAME = [
    encode_record(Record("orders", body, with_prop_crc_room(KEY, True), queue_id=queue))
    for queue, body in ((1, b""), (1, b"body"), (2, b"body" * 30))
]
STARTS = [0, len(FRAME[0]), len(FRAME[0] + FRAME[1]), len(b"".join(FRAME))]
RUNS = [(b"orders", 1, 2), (b"orders", 2, 1)]
NAMED = (
    b"".join(FRAME),
    (array("q", STARTS[:-1]), array("q", map(len, FRAME)), *(array("q", [0] * 3),) * 2)
    + (array("q", [1, 1, 2]),),
    b"orders",
    array("q", [6]),
)
BODIES = b"onethree"
# a log offset of which twice as much is more than any
FAR = 1 << 61
AT, SIZES = array("q", [0, 3, 8]), array("q", [3, 5, 0])
CRCS = array("q", [body_crc(b"one"), body_crc(b"three"), 0])
DRAFTS = [b"one", (b"three", b"k\x01v\x02", 0, 0)]
KEYS = array("q", [7, 8])
# the same two as rows of a table, in another topic and queue each
ROWS = Rows(
    [b"\x01a", b"\x06orders"],
    *(array("i", [0, 1]), array("i", [1, 2]), KEYS),
    *(array("i", [0, 3, 8]), BODIES),
    *(array("i", [0, 0, 4]), b"k\x01v\x02"),
)
ITEM = b"".join(
    [
        *((16 + 4 + 4 + 2 + 4).to_bytes(4, "big"), bytes(12)),
        *((4).to_bytes(4, "big"), b"body", (4).to_bytes(2, "big"), b"k\x01v\x02"),
    ]
)


@pytest.mark.parametrize(
    ("room", "name", "asked"),
    [
        # the last record and its body are as long as they may be
        ("frame", "check_frame", lambda: (b"".join(FRAME), RUNS, len(FRAME[2]), 120, SHAPE)),
        ("frame", "check_properties", lambda: (b"".join(FRAME), STARTS, True)),
        ("plain", "batch_records", lambda: (ITEM * 3, encode_record(Record("a", b"")), False)),
        ("columns", "record_fields", lambda: (*NAMED, array("q", [0] * 24))),
        ("columns", "copy_bodies", lambda: (BODIES, AT, SIZES, CRCS, bytearray(8))),
        ("columns", "cut_properties", lambda: (KEY, AT[:1], array("q", [len(KEY)]), (b"KEYS",))),
        ("encode", "properties_of", lambda: ("tag", "a b", None, KEY)),
        ("encode", "join_properties", lambda: ([(b"TAGS", array("i", [0, 3, 8]), BODIES)],)),
        ("ranges", "log_ranges", lambda: (ENTRY.pack(0, 100, 7) * 2, 1000, 1000)),
        ("ranges", "gather", lambda: ([(memoryview(BODIES), 5, RANGE.pack(5, 13))],)),
        ("ranges", "gather", lambda: ([(memoryview(BODIES), FAR, RANGE.pack(FAR, FAR + 8) * 2)],)),
    ],
)
def test_what_is_sound_is_done_without_the_twin(
    monkeypatch: pytest.MonkeyPatch, room: str, name: str, asked: Callable[[], Any]
) -> None:
    twins = getattr(pure, room)
    expected = getattr(twins, name)(*asked())
    monkeypatch.setattr(twins, name, None)
    assert getattr(native, name)(*asked()) == expected


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("pack", ([(b"\x06orders", 1, DRAFTS, KEYS)],)),
        ("pack_rows", (ROWS, array("q", [1, 0]))),
    ],
)
def test_sound_records_are_made_without_the_twin(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: tuple[Any, ...]
) -> None:
    made = []
    for loops in (pure.encode, native):
        maker = loops.RecordMaker(pack_host("10.1.2.3", 5), KeyOrigin("0A" * 10, 0), SHAPE)
        into = bytearray(999)
        made.append((getattr(maker, name)(into, *asked), into))
        monkeypatch.setattr(pure.encode.RecordMaker, name, None)
    assert made[0] == made[1]
