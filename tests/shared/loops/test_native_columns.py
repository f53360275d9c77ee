"""Records to columns: the compiled loops and their twins make the same, and refuse the same."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_crc import body_crc
from penstock.shared.loops.pure import columns as pure

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

NAMES = (b"KEYS", b"TAGS")
words = st.sampled_from([b"KEYS", b"TAGS", b"k", b"\x01", b"\x02", b"\xc3\xa9", b"\xff", b"\x00"])
texts = st.lists(st.lists(words, max_size=12).map(b"".join), max_size=6)


def spans(pieces: list[bytes]) -> tuple[bytes, array[int], array[int]]:
    """The pieces one after the other, with a byte between."""
    at, sizes, raw = array("q"), array("q"), b"|"
    for piece in pieces:
        at.append(len(raw))
        sizes.append(len(piece))
        raw += piece + b"|"
    return raw, at, sizes


@given(texts)
@example([b"k\x01v\x02" * 3])
@example([b"".join(b"k%d\x01v\x02" % number for number in range(70))])
@example([b"a\x01\xc3\x02", b"\xa9\x01b\x02"])
def test_properties_are_cut_alike(pieces: list[bytes]) -> None:
    given_ = spans(pieces)
    assert native.cut_properties(*given_, NAMES) == pure.cut_properties(*given_, NAMES)


def test_a_name_s_entry_is_found_in_each_record_and_in_no_other() -> None:
    given_ = spans(
        [
            b"a\x01v\x02KEYS\x01k\x02b\x01w\x02",
            b"",
            b"TAGS\x01t\x02KEYS\x01\x02KEYS\x01x\x02",
            b"KEY\x01s\x02KEYSS\x01s\x02TAG\x01s\x02KAYS\x01s\x02",
            b"x\x01y\x02TAGS\x01last\x02",
        ]
    )
    for loops in (native, pure):
        found = loops.cut_properties(*given_, NAMES)
        assert list(array("i", found.firsts)) == [0, 3, 3, 5, 9, 11]
        keys, tags = (list(array("i", each)) for each in found.places)
        assert (keys, tags) == ([1, -1, 4, -1, -1], [-1, -1, 3, -1, 10])


@pytest.mark.parametrize("names", ["a b a", "a b b", "a b c a", "aa ab aa", "c aa b aa", "a a"])
@pytest.mark.parametrize("before", [b"", b"first\x01v\x02a\x01v\x02"])
def test_a_key_that_comes_again_counts_once_wherever_it_stands(names: str, before: bytes) -> None:
    entries = [b"%b\x01%d\x02" % (name.encode(), n) for n, name in enumerate(names.split())]
    given_ = spans([before, b"".join(entries), before])
    found = native.cut_properties(*given_, (b"a", b"aa"))
    assert found == pure.cut_properties(*given_, (b"a", b"aa"))
    first, last = array("i", found.firsts)[1:3]
    assert last - first == len({*names.split()})


HOSTS = st.sampled_from([pack_host("10.1.2.3", 1), pack_host("2001:db8::1", 9)])
records = st.builds(
    Record,
    st.sampled_from(["a", "orders", "t" * 127, "t" * 130]),
    st.binary(max_size=9),
    st.sampled_from([b"", b"k\x01v\x02"]),
    queue_id=st.integers(0, 3),
    queue_offset=st.integers(0, 1 << 40),
    physical_offset=st.integers(0, 1 << 62),
    born_timestamp_ms=st.integers(-5, 1 << 40),
    store_timestamp_ms=st.integers(-5, 1 << 40),
    born_host=HOSTS,
    store_host=HOSTS,
)


def named_as(chosen: list[Record]) -> tuple[Any, ...]:
    """Records, and what `record_fields` is told of them."""
    pieces = [encode_record(each) for each in chosen]
    raw, at, sizes = spans(pieces)
    offsets = [[each.physical_offset for each in chosen], [each.queue_offset for each in chosen]]
    queues = [each.queue_id for each in chosen]
    named = at, sizes, *(array("q", each) for each in (*offsets, queues))
    topics = [each.topic.encode() for each in chosen]
    ends = array("q", accumulate(map(len, topics)))
    return raw, named, b"".join(topics), ends


@given(st.lists(records, min_size=1, max_size=5))
def test_each_record_has_the_fields_that_were_put_into_it(chosen: list[Record]) -> None:
    asked = raw, named, *_ = named_as(chosen)
    for loops in (native, pure):
        into = array("q", bytes(64 * len(chosen)))
        assert loops.record_fields(*asked, into) == -1
        columns = [into[first : first + len(chosen)] for first in range(0, len(into), len(chosen))]
        fields = zip(*columns, strict=True)
        for each, start, size, found in zip(chosen, *named[:2], fields, strict=True):
            body_at, body_bytes, own_at, own_bytes, crc, sys_flag, born_ms, stored_ms = found
            assert raw[body_at : body_at + body_bytes] == each.body
            assert raw[own_at : own_at + own_bytes] == each.properties
            assert own_at + own_bytes == start + size
            assert crc == body_crc(each.body)
            assert sys_flag == decode_record(raw[start : start + size]).sys_flag
            assert (born_ms, stored_ms) == (each.born_timestamp_ms, each.store_timestamp_ms)
    made = [array("q", bytes(64 * len(chosen))) for _ in range(2)]
    native.record_fields(*asked, made[0])
    pure.record_fields(*asked, made[1])
    assert made[0] == made[1]


@given(st.data(), st.lists(records, min_size=1, max_size=4))
def test_bent_records_and_wrong_names_are_found_alike(
    data: st.DataObject, chosen: list[Record]
) -> None:
    raw, named, topics, ends = named_as(chosen)
    bent = bytearray(raw)
    if data.draw(st.booleans(), "bend a byte"):
        bent[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    words = data.draw(st.sampled_from([*named, ends]))
    words[data.draw(st.integers(0, len(words) - 1))] += data.draw(
        st.sampled_from([0, 1, -1, 1 << 61])
    )
    told = []
    for loops in (native, pure):
        try:
            made = array("q", bytes(64 * len(chosen)))
            told.append(loops.record_fields(bytes(bent), named, topics, ends, made))
        except ValueError as error:
            told.append(str(error))
    assert told[0] == told[1]


@pytest.mark.parametrize("loops", [native, pure])
@pytest.mark.parametrize(
    ("field", "by"), [(0, 1), (1, -1), (1, 1), (2, 1), (3, 1), (4, 1), ("topic", 1), ("end", -1)]
)
def test_a_record_that_is_not_the_one_that_is_named_is_found(
    loops: Any, field: int | str, by: int
) -> None:
    chosen = [Record("orders", b"body", b"", queue_id=1, queue_offset=5, physical_offset=9)] * 3
    raw, named, topics, ends = named_as(chosen)
    if field == "topic":
        topics = topics[:12] + b"others"
    elif field == "end":
        ends[-1] += by
    else:
        named[int(field)][2] += by
    assert loops.record_fields(raw, named, topics, ends, array("q", bytes(192))) == 2


@pytest.mark.parametrize("loops", [native, pure])
@pytest.mark.parametrize(
    "wrong",
    [
        Record("or/ders", b""),
        Record("", b""),
        Record("orders", b"", queue_id=-1),
        Record("orders", b"", queue_offset=-1),
        Record("orders", b"", physical_offset=-1),
    ],
)
def test_a_record_that_no_log_can_have_is_found_whoever_names_it(loops: Any, wrong: Record) -> None:
    asked = named_as([Record("orders", b"body"), wrong])
    assert loops.record_fields(*asked, array("q", bytes(128))) == 1


@pytest.mark.parametrize("loops", [native, pure])
def test_one_queue_and_one_topic_are_those_of_all(loops: Any) -> None:
    chosen = [Record("orders", b"body", b"", queue_id=1)] * 3
    raw, named, _, _ = named_as(chosen)
    one = *named[:4], array("q", [1])
    into = array("q", bytes(192))
    assert loops.record_fields(raw, one, b"orders", array("q", [6]), into) == -1
    assert list(into[3:6]) == [4, 4, 4]
    other = *named[:4], array("q", [2])
    assert loops.record_fields(raw, other, b"orders", array("q", [6]), into) == 0


@pytest.mark.parametrize("loops", [native, pure])
@pytest.mark.parametrize(
    ("named", "ends", "room"),
    [((2, 1, 2, 2, 2), 2, 16), ((2, 2, 2, 2, 3), 2, 16), ((2,) * 5, 3, 16), ((2,) * 5, 2, 15)],
)
def test_arrays_that_do_not_fit_together_are_refused(
    loops: Any, named: tuple[int, ...], ends: int, room: int
) -> None:
    words = tuple(array("q", [0] * count) for count in named)
    with pytest.raises(ValueError, match="of 2 records"):
        loops.record_fields(bytes(200), words, b"", array("q", [0] * ends), array("q", [0] * room))


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(-1, 7))
def test_bodies_are_copied_and_compared_alike(bodies: list[bytes], bent: int) -> None:
    raw, at, sizes = spans(bodies)
    crcs = array("q", [body_crc(body) for body in bodies])
    if 0 <= bent < len(bodies):
        crcs[bent] ^= 1
    made = [bytearray(sum(sizes)), bytearray(sum(sizes))]
    found = [
        loops.copy_bodies(raw, at, sizes, crcs, into)
        for loops, into in zip((native, pure), made, strict=True)
    ]
    assert found[0] == found[1] and made[0] == made[1]
    wrong = next((n for n, body in enumerate(bodies) if body and body_crc(body) != crcs[n]), -1)
    assert found[0] == wrong
    if wrong < 0:
        assert made[0] == b"".join(bodies)


@pytest.mark.parametrize(
    ("at", "size"), [(-1, 2), (0, -1), (8, 3), (11, 0), (1 << 62, 1 << 62), (0, 1 << 62)]
)
@pytest.mark.parametrize("loops", [native, pure])
def test_a_place_outside_is_refused(loops: object, at: int, size: int) -> None:
    places, target = (array("q", [at]), array("q", [size])), bytearray(100)
    with pytest.raises(ValueError, match="not in a buffer"):
        loops.cut_properties(bytes(10), *places, NAMES)  # type: ignore[attr-defined]  # a module
    with pytest.raises(ValueError, match="not in a buffer"):
        loops.copy_bodies(bytes(10), *places, array("q", [0]), target)  # type: ignore[attr-defined]  # a module


@pytest.mark.parametrize("loops", [native, pure])
def test_a_target_that_is_too_small_is_not_written_past(loops: object) -> None:
    raw, at, sizes = spans([b"one", b"three"])
    crcs = array("q", [body_crc(b"one"), body_crc(b"three")])
    with pytest.raises(ValueError, match="do not take"):
        loops.copy_bodies(raw, at, sizes, crcs, bytearray(7))  # type: ignore[attr-defined]  # a module


@pytest.mark.parametrize("lacking", [0, 1, 2])
@pytest.mark.parametrize("loops", [native, pure])
def test_a_body_without_its_place_size_or_checksum_is_refused(loops: object, lacking: int) -> None:
    raw, at, sizes = spans([b"one", b"three"])
    words = [at, sizes, array("q", [body_crc(b"one"), body_crc(b"three")])]
    words[lacking] = words[lacking][:1]
    with pytest.raises(ValueError):
        loops.copy_bodies(raw, *words, bytearray(8))  # type: ignore[attr-defined]  # a module


@pytest.mark.parametrize("loops", [native, pure])
def test_empty_bodies_need_no_target(loops: object) -> None:
    words = array("q", [0, 0])
    # Arrow's buffers are of signed bytes
    found = loops.copy_bodies(b"", words, words, words, array("b"))  # type: ignore[attr-defined]  # a module
    assert found == -1
