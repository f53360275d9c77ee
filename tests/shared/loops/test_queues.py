"""Rows between the log and the queues, compared with dictionaries; both forms of the loops."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.loops import active
from penstock.shared.loops.forms import ROW, rows_of
from penstock.shared.loops.pure import queues as pure_queues

FORMS = [pure_queues] if active.why_pure else [active, pure_queues]
names = st.tuples(
    st.sampled_from([b"a", b"b", b"orders", b"\xc3\xb6" * 60]),
    st.integers(0, 9) | st.integers(1020, 1030) | st.integers(0, 2**31 - 1),
)
entry = st.binary(min_size=20, max_size=20)
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), entry), max_size=40)
QUEUES = [(b"orders", number) for number in range(5)]


def packed(found: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(ROW.pack(*each) for each in found)


@pytest.mark.parametrize("form", FORMS)
@given(asked=st.lists(names, max_size=50))
def test_queues_are_numbered_as_they_are_met(
    form: ModuleType, asked: list[tuple[bytes, int]]
) -> None:
    queues, met = form.QueueNumbers(asked[:3]), list(dict.fromkeys(asked))
    assert [queues.number(*each) for each in asked] == [met.index(each) for each in asked]
    assert queues.names == met


@pytest.mark.parametrize("form", FORMS)
@given(found=rows)
def test_each_queue_has_its_entries_in_order_joined_where_they_follow_each_other(
    form: ModuleType, found: list[tuple[int, int, bytes]]
) -> None:
    runs = form.by_queue(packed(found), form.QueueNumbers(QUEUES))
    expected: dict[tuple[bytes, int], list[tuple[int, bytearray]]] = {}
    for queue, offset, raw in found:
        pieces = expected.setdefault(QUEUES[queue], [])
        if not pieces or pieces[-1][0] + len(pieces[-1][1]) // 20 != offset:
            pieces.append((offset, bytearray()))
        pieces[-1][1].extend(raw)
    assert runs == expected and list(runs) == list(expected)


@pytest.mark.parametrize("form", FORMS)
@given(found=rows, windows=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=5))
def test_entries_go_to_their_places_and_those_without_one_come_back(
    form: ModuleType, found: list[tuple[int, int, bytes]], windows: list[tuple[int, int]]
) -> None:
    area, words, expected = bytearray(5 * 120), array("q"), bytearray(5 * 120)
    for queue, (first, count) in enumerate(windows[:5]):
        words.extend((first, first + count, 120 * queue))
    missed = []
    for queue, offset, raw in found:
        first, count = windows[queue]
        if first <= offset < first + count:
            at = 120 * queue + 20 * (offset - first)
            expected[at : at + 20] = raw
        else:
            missed.append((queue, offset, raw))
    assert form.put_entries(packed(found), words, memoryview(area)) == packed(missed)
    assert area == expected


@pytest.mark.parametrize("form", FORMS)
@given(
    found=rows,
    ends=st.lists(st.integers(0, 12), min_size=5, max_size=5),
    step=st.integers(1, 3),
)
def test_ends_move_behind_the_rows_and_never_back(
    form: ModuleType, found: list[tuple[int, int, bytes]], ends: list[int], step: int
) -> None:
    words = array("Q", [7] * (4 * step + 1))
    for queue, end in enumerate(ends):
        words[queue * step] = end
    form.move_ends(packed(found), memoryview(words), step)
    for queue, end in enumerate(ends):
        after = [offset + 1 for each, offset, _ in found if each == queue]
        assert words[queue * step] == max([end, *after])
    between = [word for at, word in enumerate(words) if at % step]
    assert between == [7] * len(between)


@given(st.integers(0, 9), st.integers(0, 99), st.lists(entry, max_size=9))
def test_entries_that_follow_each_other_are_rows(
    number: int, first: int, found: list[bytes]
) -> None:
    expected = [(number, first + at, raw) for at, raw in enumerate(found)]
    assert rows_of(number, first, b"".join(found)) == packed(expected)


@pytest.mark.parametrize("form", FORMS)
def test_what_leads_outside_is_refused(form: ModuleType) -> None:
    """A number that nobody gave, a part of a row: the caller's mistakes, never a stray write."""
    row, area = ROW.pack(3, 0, bytes(20)), memoryview(bytearray(40))
    with pytest.raises((IndexError, ValueError)):
        form.put_entries(row, array("q", (0, 2, 0)), area)
    with pytest.raises((IndexError, ValueError)):
        form.move_ends(row, memoryview(array("Q", [0, 0, 0])), 1)
    with pytest.raises((IndexError, ValueError)):
        form.by_queue(row, form.QueueNumbers(QUEUES[:3]))
    for window in ((0, 9, 0), (0, 9, 21), (0, 1 << 60, 0), (0, 3, 1 << 60)):
        with pytest.raises((IndexError, ValueError)):
            form.put_entries(ROW.pack(0, 2, bytes(20)), array("q", window), area)
    cut = row[:-1]
    with pytest.raises(Exception, match="rows|multiple"):
        form.put_entries(cut, array("q", (0, 1, 0)), area)
    with pytest.raises(Exception, match="rows|multiple"):
        form.move_ends(cut, memoryview(array("Q", [0])), 1)
    with pytest.raises(Exception, match="rows|multiple"):
        form.by_queue(cut, form.QueueNumbers())
