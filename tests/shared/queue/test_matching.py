"""What matches a filter is found in order, up to the first limit that is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.queue_entry import BLANK_ENTRY
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_outline import entry_tags_code, outline
from penstock.shared.layout import CQ_ENTRY_BYTES, segment_name
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.log.found_records import piece_of
from penstock.shared.queue.matching import read_matching
from tests.shared.queue.conftest import Store

COUNT = 40
TAGS = "abc"


class Chosen:
    """Records of some tags and, where it looks at them, some bodies; it counts its looks."""

    def __init__(self, tags: set[str], bodies: set[bytes] | None) -> None:
        self.decided_by_broker = bodies is not None
        self._codes = [_code(tag) for tag in tags]
        self._bodies = bodies or set()
        self.looks = 0

    def may_match(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.isin(codes, np.array(self._codes, np.int64))

    def matches(self, record: memoryview) -> bool:
        self.looks += 1
        return decode_record(record).body in self._bodies


def _record(tag: str, body: bytes = b"") -> Record:
    return Record("orders", body, encode_properties({"TAGS": tag}), 0, born_host=bytes(8))


def _code(tag: str) -> int:
    return int(entry_tags_code(outline(memoryview(encode_record(_record(tag))))))


class Stored(NamedTuple):
    """A record as the test knows it."""

    tag: str
    body: bytes
    size: int
    segment: int


@pytest.fixture
def forty(open_store: Callable[..., Store]) -> tuple[Store, list[Stored]]:
    """Records of several sizes and tags, in some segments of the log and one of the queue."""
    records = [
        _record(TAGS[number * number % 3], b"%02d" % number + bytes(number * 37 % 400))
        for number in range(COUNT)
    ]
    store = open_store(records)
    store.count(0, "orders", 0, 0, COUNT)
    found, start = list[Stored](), 0
    for record in records:
        pieces, start = store.reader.read(0, start, 1)
        tag = decode_properties(record.properties)["TAGS"]
        found.append(Stored(tag, record.body, pieces.size, pieces.base))
    return store, found


def _plain(
    stored: list[Stored],
    start: int,
    stop: int,
    max_bytes: int,
    tags: set[str],
    bodies: set[bytes] | None,
    most: int,
    looks: int,
) -> tuple[list[bytes], int]:
    """The same by a look at one record after the other."""
    taken, looked = list[Stored](), 0
    for number in range(start, stop):
        each = stored[number]
        if each.tag not in tags:
            continue
        is_full = sum(one.size for one in taken) + each.size > max_bytes
        if taken and (is_full or each.segment != taken[0].segment):
            return [one.body for one in taken], number
        if bodies is not None:
            if looked and looked >= looks:
                return [one.body for one in taken], number
            looked += 1
            if each.body not in bodies:
                continue
        taken.append(each)
        if len(taken) >= most:
            return [one.body for one in taken], number + 1
    return [one.body for one in taken], stop


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_what_matches_is_found_up_to_the_first_limit_that_is_reached(
    forty: tuple[Store, list[Stored]], data: st.DataObject
) -> None:
    store, stored = forty
    start = data.draw(st.integers(0, COUNT - 1), "start")
    stop = data.draw(st.integers(start + 1, COUNT), "stop")
    tags = set(data.draw(st.lists(st.sampled_from(TAGS)), "tags"))
    some = st.sets(st.sampled_from([each.body for each in stored]), min_size=5)
    bodies = data.draw(st.one_of(st.none(), some), "bodies")
    sizes = [each.size for each in stored[start : start + 5]]
    max_bytes = data.draw(st.one_of(st.integers(1, 5000), st.just(sum(sizes))), "bytes")
    most = data.draw(st.sampled_from((1, 2, 3, 1 << 62)), "most")
    looks = data.draw(st.sampled_from((0, 1, 2, 5, 1 << 62)), "looks")
    chosen = Chosen(tags, bodies)
    limits = () if looks == most == 1 << 62 else (lambda: chosen.looks < looks, most)
    found, next_offset = read_matching(store.reader, 0, start, stop, max_bytes, chosen, *limits)
    raw, at, seen = bytes(piece_of([found])), 0, []
    while at < len(raw):
        record = decode_record(raw, at)
        seen.append(record.body)
        at += record.total_size
    wanted = _plain(stored, start, stop, max_bytes, tags, bodies, most, looks)
    assert (seen, next_offset) == wanted


def test_a_limit_is_reached_by_what_goes_beyond_it(forty: tuple[Store, list[Stored]]) -> None:
    store, stored = forty
    everything = Chosen(set(TAGS), {each.body for each in stored})
    for count in (2, 3, 4):
        size = sum(each.size for each in stored[:count])
        found, next_offset = read_matching(store.reader, 0, 0, COUNT, size, everything)
        assert (found.size, next_offset) == (size, count)


def test_a_blank_matches_nothing_whatever_its_tags_code(
    forty: tuple[Store, list[Stored]],
) -> None:
    store, stored = forty
    with open(store.paths.queue("orders", 0) / segment_name(0), "r+b") as file:
        file.write(BLANK_ENTRY * 3)
    chosen = Chosen(set(TAGS), None)
    chosen._codes.append(0)
    found, next_offset = read_matching(store.reader, 0, 0, 5, 1 << 20, chosen)
    assert (found.size, next_offset) == (stored[3].size + stored[4].size, 5)
    assert len(BLANK_ENTRY) == CQ_ENTRY_BYTES


def test_the_log_s_first_record_is_found_though_blanks_before_it_name_its_place(
    open_store: Callable[..., Store],
) -> None:
    store = open_store([_record("a"), _record("b"), _record("a")], first_offsets={("orders", 0): 7})
    store.count(0, "orders", 0, 0, 10)
    size = len(encode_record(_record("a")))
    for start in range(7):
        found, next_offset = read_matching(store.reader, 0, start, 10, 1 << 20, Chosen({"a"}, None))
        assert (found.size, next_offset) == (2 * size, 10)


@pytest.mark.parametrize("lost", range(5))
def test_what_matches_is_found_up_to_a_match_that_is_damaged(
    forty: tuple[Store, list[Stored]], lost: int
) -> None:
    """Its consumer is then told of the loss. What does not match is missed by nobody."""
    store, stored = forty
    position = sum(each.size for each in stored[:lost])
    damage = damage_between(store.paths, 1 << 20, position, position + 1, "lost")
    store.reader.log.damaged = DamagedRanges(damage)
    for tag in TAGS:
        found, next_offset = read_matching(store.reader, 0, 0, 5, 1 << 20, Chosen({tag}, None))
        stop = lost if stored[lost].tag == tag else 5
        assert next_offset == stop
        assert found.size == sum(each.size for each in stored[:stop] if each.tag == tag)
