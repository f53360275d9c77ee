"""Which records have the queue offset that they name, by the order in which they lie in the log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shared.queue.slot_order import SlotOrder

Order = SlotOrder[str, int]


def _walk(order: Order, slots: list[int], queue: str = "q") -> dict[int, int]:
    """Slot -> the number of the record that has it in the end."""
    served: dict[int, int] = {}
    for number, slot in enumerate(slots):
        accepted, has_slot = order.take(queue, slot, number)
        if accepted is not None:
            served[slots[accepted]] = accepted
        if has_slot:
            served[slot] = number
    order.finish()
    return served


@pytest.mark.parametrize(
    ("slots", "served", "left_out", "overtaken", "undecided", "missing"),
    [
        ([5, 6, 7], [(5, 0), (6, 1), (7, 2)], [], [], [], []),
        ([5, 8, 9], [(5, 0), (8, 1), (9, 2)], [], [], [], [(6, 8)]),
        # back to a slot that is taken, and then on as if nothing had been
        ([5, 6, 7, 6, 9], [(5, 0), (6, 1), (7, 2), (9, 4)], [3], [], [], [(8, 9)]),
        # ahead of its time: what it left out comes, and then whose slot that is
        ([5, 8, 7, 8, 9], [(5, 0), (7, 2), (8, 3), (9, 4)], [], [1], [], [(6, 7)]),
        # by one, which makes two of the same slot next to each other
        ([5, 7, 7, 8], [(5, 0), (7, 2), (8, 3)], [], [1], [], [(6, 7)]),
        # the same the other way round: the next one is missing
        ([5, 6, 6, 8], [(5, 0), (6, 1), (8, 3)], [2], [], [], [(7, 8)]),
        # nothing leads up to the first record of a queue
        ([1, 1, 2], [(1, 1), (2, 2)], [], [0], [], []),
        # but a topic begins with its slot 0
        ([0, 0, 1], [(0, 0), (1, 2)], [], [], [1], []),
        # a record of another queue: nothing here tells which of the two it is
        ([5, 6, 6, 7], [(5, 0), (6, 1), (7, 3)], [], [], [2], []),
        # the topic was made again
        ([0, 1, 2, 0, 1], [(0, 3), (1, 4), (2, 2)], [], [], [], []),
        # a slot that was left out comes, and then all goes on
        (
            [5, 8, 9, 6, 10],
            [(5, 0), (6, 3), (8, 1), (9, 2), (10, 4)],
            [],
            [],
            [],
            [(7, 8)],
        ),
        # back to the slot of the one that left out others: what follows says which is wrong
        (
            [5, 20, 21, 20, 23],
            [(5, 0), (20, 1), (21, 2), (23, 4)],
            [3],
            [],
            [],
            [(6, 20), (22, 23)],
        ),
        # what is contradicted keeps its slot where all of the log was not read
        (
            [5, 6, 40, 8, 9],
            [(5, 0), (6, 1), (8, 3), (9, 4), (40, 2)],
            [],
            [],
            [],
            [(7, 8), (10, 40)],
        ),
        # or damage at the end: nobody comes after it who could tell
        ([0, 1, 2, 0], [(0, 0), (1, 1), (2, 2)], [], [], [3], []),
    ],
)
def test_a_record_has_the_slot_that_it_names_or_another_one_has_it(
    slots: list[int],
    served: list[tuple[int, int]],
    left_out: list[int],
    overtaken: list[int],
    undecided: list[int],
    missing: list[tuple[int, int]],
) -> None:
    order = Order()
    assert sorted(_walk(order, slots).items()) == served
    assert (order.left_out, order.overtaken, order.undecided) == (left_out, overtaken, undecided)
    assert order.missing.get("q", []) == missing
    assert order.ends == {"q": max(slots) + 1}


@pytest.mark.parametrize(
    ("slots", "tail"),
    [
        ([0, 1, 2, 0], [3]),
        ([0, 1, 2, 1, 0], [3, 4]),
        ([0, 1, 2, 2], [3]),
        ([0, 1, 2, 0, 4], []),  # the slot before the last one is missing: it was counted
        ([0, 1, 2, 0, 1], []),  # the topic was made again
        ([0, 1, 2, 0, 1, 9], []),
        ([0, 1, 2, 99], [3]),
        ([0, 1, 2, 99, 3], []),
        ([0, 1, 2, 99, 3, 99], [5]),
    ],
)
def test_what_comes_without_a_slot_at_a_queue_s_end_is_counted(
    slots: list[int], tail: list[int]
) -> None:
    order = Order()
    for number, slot in enumerate(slots):
        order.take("q", slot, number, room=50)
    order.finish()
    assert order.tails.get("q", []) == tail


@pytest.mark.parametrize(
    ("slots", "overtaken", "missing"),
    [
        ([5, 6, 40, 8, 9], [2], [(7, 8)]),
        ([5, 6, 40, 8, 9, 99, 42], [2, 5], [(7, 8), (41, 42)]),
        ([5, 6, 40], [], [(7, 40)]),
        ([5, 6, 40, 41], [], [(7, 40)]),
        # the one after it speaks for it, whatever comes then
        ([5, 6, 40, 41, 8, 9], [], [(7, 8), (10, 40)]),
        # another is missing as well: nothing tells which of two it is
        ([5, 6, 40, 9], [], [(7, 9), (10, 40)]),
        # whose slot that is comes later
        ([5, 8, 7, 8, 9], [1], [(6, 7)]),
        # the topic was made again
        ([5, 6, 40, 0, 1], [], [(7, 40)]),
    ],
)
def test_who_has_read_all_of_the_log_knows_which_record_leapt(
    slots: list[int], overtaken: list[int], missing: list[tuple[int, int]]
) -> None:
    order = Order()
    for number, slot in enumerate(slots):
        order.take("q", slot, number)
    order.finish(is_all=True)
    assert (order.overtaken, order.missing["q"]) == (overtaken, missing)


def test_several_that_leapt_together_are_not_contradicted_by_one() -> None:
    order = Order()
    for slot, count in ((5, 2), (40, 3), (8, 1)):
        order.take("q", slot, slot, count)
    order.finish(is_all=True)
    assert order.overtaken == []


def test_what_is_known_of_a_slot_decides_between_two_next_to_each_other() -> None:
    order = Order(is_known=lambda queue, slot, record: (queue, slot, record) == ("q", 6, 2))
    assert _walk(order, [5, 6, 6, 7]) == {5: 0, 6: 2, 7: 3}
    assert order.undecided == []


def test_a_queue_that_holds_something_goes_on_behind_it() -> None:
    order = Order(lambda queue: 3)
    assert order.end("q", 9) == 3
    assert _walk(order, [1, 3, 5]) == {3: 1, 5: 2}
    assert (order.left_out, order.missing) == ([0], {"q": [(4, 5)]})
    back = Order(lambda queue: 100)
    assert _walk(back, [100, 41, 42]) == {100: 0, 41: 1, 42: 2}, "its slots lead up to the first"
    assert (back.overtaken, back.ends, back.begun_again) == ([], {"q": 101}, {})
    again = Order(lambda queue: 3)
    assert _walk(again, [1, 2, 3]) == {1: 0, 2: 1, 3: 2}, "from where a predecessor had come to"


def test_runs_and_single_records_are_judged_alike() -> None:
    order = Order()
    assert order.take("q", 5, 0, 3) == (None, True)
    assert order.take("q", 7, 1, 2) == (None, False), "the first is 7 again, the second is 8"
    assert (order.undecided, order.ends) == ([1], {"q": 9})
    assert order.take("q", 20, 2) == (None, True)
    assert order.take("q", 9, 3, 11) == (None, True), "all that was missing"
    assert (order.overtaken, order.missing["q"], order.ends) == ([], [], {"q": 21})
    assert order.take("q", 9, 3, 13) == (None, True), "again, and 20"
    assert (order.overtaken, order.missing["q"], order.ends) == ([2], [], {"q": 22})
    assert order.take("q", 0, 4, 2) == (None, True), "the topic was made again"


@pytest.mark.parametrize(
    ("slots", "served", "left_out", "overtaken", "end"),
    [
        # only a topic that was made again goes back, and to 0: all that follow contradict the first
        ([99, 41, 42, 43], {41: 1, 42: 2, 43: 3}, [], [0], 44),
        ([99, 41, 43, 44], {43: 2, 44: 3}, [1], [0], 45),
        ([99, 41, 41, 42], {42: 3}, [1], [0], 43),
        ([1 << 40, 1, 2], {1: 1, 2: 2}, [], [0], 3),
        # by one, and one more of the others is wrong
        ([99, 98, 97, 98], {97: 2, 98: 3}, [1], [0], 99),
        # its slot has another record later on
        ([99, 41, 42, 99], {41: 1, 42: 2, 99: 3}, [], [0], 100),
        # a second record of its slot takes it, and is the one that leads up to it
        ([41, 41, 30, 31], {41: 1, 30: 2, 31: 3}, [], [0], 42),
        # the second one is what is wrong
        ([99, 41, 100, 101], {99: 0, 100: 2, 101: 3}, [1], [], 102),
        ([99, 41], {99: 0}, [], [], 100),
        ([99, 0, 1, 2], {99: 0, 0: 1, 1: 2, 2: 3}, [], [], 100),
        # several lead up to it
        ([98, 99, 41, 42], {98: 0, 99: 1, 41: 2, 42: 3}, [], [], 100),
    ],
)
def test_a_first_record_that_all_others_go_back_behind_is_not_of_its_queue(
    slots: list[int], served: dict[int, int], left_out: list[int], overtaken: list[int], end: int
) -> None:
    order = Order()
    found = _walk(order, slots)
    found = {slot: number for slot, number in found.items() if number not in order.overtaken}
    assert (found, order.left_out, order.overtaken) == (served, left_out, overtaken)
    assert order.ends == {"q": end}


@pytest.mark.parametrize("count", [2, 3])
def test_several_at_once_contradict_a_first_record_as_well(count: int) -> None:
    order = Order()
    assert order.take("q", 99, 0) == (None, True) and order.is_alone("q")
    assert order.take("q", 41, 1, count) == (None, True) and not order.is_alone("q")
    assert (order.overtaken, order.ends) == ([0], {"q": 41 + count})
    assert order.begun_again == {"q": 41}


def test_a_queue_whose_first_record_is_not_of_it_begins_at_the_next_that_is() -> None:
    for count in (3, 4):
        order = Order()
        _walk(order, [99, 41, 42, 43][:count])
        assert order.begun_again == {"q": 41} and not order.is_alone("q")
        assert (order.missing, order.ends) == ({}, {"q": 40 + count})


def test_several_that_begin_a_queue_are_of_it_whatever_goes_back_past_them() -> None:
    order = Order()
    assert order.take("q", 40, 0, count=3) == (None, True) and not order.is_alone("q")
    order.take("q", 7, 1)
    order.take("q", 8, 2)
    order.finish()
    assert (order.overtaken, order.begun_again, order.ends) == ([], {}, {"q": 43})


def test_several_that_are_next_all_have_their_slots() -> None:
    order = Order()
    order.take("q", 5, 0)
    order.take("q", 6, 1)
    assert order.take("q", 7, 2, count=3) == (None, True)
    assert order.ends == {"q": 10} and order.is_next("q", 10)


def test_several_for_which_the_log_has_no_room_contradict_a_first_record() -> None:
    order = Order()
    order.take("q", 42, 0, room=10)
    assert order.take("q", 59, 1, count=2, room=10) == (None, True)
    assert (order.overtaken, order.left_out, order.tails) == ([0], [], {})
    assert (order.ends, order.begun_again) == ({"q": 61}, {"q": 59})


@given(
    st.lists(st.sampled_from("ab"), min_size=3, max_size=40),
    st.integers(0, 39),
    st.integers(0, 6),
)
def test_a_flipped_bit_of_one_record_takes_no_slot_from_another(
    queues: list[str], bent: int, bit: int
) -> None:
    """Of a slot number; each record is that of its queue that comes next."""
    bent %= len(queues)
    nexts = {"a": 0, "b": 0}
    order = Order(lambda queue: 0)
    served: dict[tuple[str, int], int] = {}
    named: list[tuple[str, int]] = []
    for number, queue in enumerate(queues):
        slot = nexts[queue]
        nexts[queue] += 1
        named.append((queue, slot ^ 1 << bit if number == bent else slot))
        accepted, has_slot = order.take(*named[-1], number)
        if accepted is not None:
            served[named[accepted]] = accepted
        if has_slot:
            served[named[-1]] = number
    order.finish()
    for number, place in enumerate(named):
        assert number == bent or served[place] == number


@pytest.mark.parametrize(
    ("slots", "served", "left_out", "overtaken"),
    [
        # nothing leads up to the first one, and all that follow it contradict it
        ([42, 59, 60, 61], {59: 1, 60: 2, 61: 3}, [], [0]),
        ([42, 59, 61], {59: 1, 61: 2}, [], [0]),
        # the second one is what is wrong
        ([42, 59, 43, 44], {42: 0, 43: 2, 44: 3}, [1], []),
        ([42, 59], {42: 0}, [1], []),
        ([42, 59, 59, 43], {42: 0, 43: 3}, [1, 2], []),
        # there is room for just what would lie between
        ([42, 53], {42: 0, 53: 1}, [], []),
        ([42, 54], {42: 0}, [1], []),
        # several lead up to where it does not belong
        ([41, 42, 59, 43], {41: 0, 42: 1, 43: 3}, [2], []),
    ],
)
def test_where_the_log_has_no_room_between_two_the_next_one_tells_which_is_wrong(
    slots: list[int], served: dict[int, int], left_out: list[int], overtaken: list[int]
) -> None:
    order, found = Order(), dict[int, int]()
    for number, slot in enumerate(slots):
        accepted, has_slot = order.take("q", slot, number, room=10)
        found |= {slots[accepted]: accepted} if accepted is not None else {}
        found |= {slot: number} if has_slot else {}
    order.finish()
    found = {slot: number for slot, number in found.items() if number not in order.overtaken}
    assert (found, order.left_out, order.overtaken) == (served, left_out, overtaken)


def test_several_that_go_back_over_one_that_leapt_take_its_slot() -> None:
    order = Order()
    for number, slot in enumerate([42, 59, 60]):
        order.take("q", slot, number, room=10)
    assert order.overtaken == [0]
    assert order.take("q", 59, 3, count=3) == (None, True)
    assert order.overtaken == [0, 1]


class _Slow(SlotOrder[str, int]):
    """Without the short way."""

    def take_next(self, queue: str, slot: int) -> bool:
        return False


@settings(max_examples=500)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            # mostly the next one, else any
            st.one_of(st.none(), st.none(), st.none(), st.integers(0, 12)),
            st.sampled_from((1, 1, 1, 2, 3)),
            st.sampled_from((1000, 4)),
        ),
        max_size=25,
    ),
    st.sampled_from((None, 5)),
    st.booleans(),
)
def test_the_short_way_of_a_record_that_just_follows_comes_to_the_same(
    steps: list[tuple[str, int | None, int, int]], known_end: int | None, is_all: bool
) -> None:
    quick: SlotOrder[str, int] = SlotOrder(lambda queue: known_end)
    slow = _Slow(quick._end_of)
    after: dict[str, int] = {}
    for number, (queue, named, count, room) in enumerate(steps):
        slot = after.get(queue, 0) if named is None else named
        after[queue] = slot + count
        taken = [each.take(queue, slot, number, count, room) for each in (quick, slow)]
        assert taken[0] == taken[1], (number, queue, slot)
    for each in (quick, slow):
        each.finish(is_all=is_all)
    quick._ahead |= {queue: quick._ahead.get(queue, {}) for queue in slow._ahead}
    assert vars(quick) == vars(slow) | {"_is_known": quick._is_known}
