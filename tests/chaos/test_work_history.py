"""The judge of what members wrote down: it finds each kind of broken promise, and no other."""

from __future__ import annotations

from penstock.chaos.work_history import (
    Killed,
    Line,
    Owners,
    gone_back,
    in_hand_at_once,
    left_out,
    never_handled,
    read_lines,
    repeated,
    stored_too_often,
    unsaid,
)

KEYS = {"k": ["k.1", "k.2", "k.3"]}


def lines(program: str, *said: str) -> list[Line]:
    """Each line is: time, what, offset or epoch, body."""
    text = ""
    for each in said:
        at, what, number, body = each.split()
        text += f"{what} line steps 0 {number} {body} {at}\n"
    return read_lines(program, text)


def test_what_is_handled_in_order_is_right() -> None:
    found = lines("a", "1 own 7 -", "2 begin 0 k.1", "3 end 0 k.1", "4 done 1 -", "5 begin 1 k.2")
    found += lines("b", "9 own 8 -", "10 begin 1 k.2", "11 end 1 k.2", "12 begin 2 k.3")
    assert repeated(found) == []
    assert left_out(found, KEYS) == gone_back(found) == []
    assert in_hand_at_once(found, [Killed(6, "a")]) == []


def test_an_acknowledged_message_that_no_handler_has_ended_with_is_lost() -> None:
    found = lines("a", "2 begin 0 k.1", "3 end 0 k.1", "4 begin 1 k.2")
    assert never_handled(found, "line", ["k.1", "k.2", "k.3"]) == ["k.2", "k.3"]


def test_what_was_done_for_somebody_may_not_be_begun_again() -> None:
    found = lines("a", "2 begin 0 k.1", "3 end 0 k.1", "4 done 1 -")
    found += lines("b", "5 begin 0 k.1")
    (wrong,) = repeated(found)
    assert wrong.startswith("b begins k.1")
    # what was begun before nobody can take back
    assert repeated(lines("a", "2 begin 0 k.1", "4 done 1 -", "5 end 0 k.1")) == []


def test_what_was_begun_and_nobody_was_told_of_is_unsaid() -> None:
    found = lines("a", "2 begin 3 k.1", "3 end 3 k.1", "4 done 4 -")
    assert unsaid(found) == []
    found += lines("a", "5 begin 4 k.2")
    found += lines("b", "6 done 5 -")
    assert unsaid(found) == [] and unsaid(found[:-1]) == [("line", "steps", 0)]


def test_a_message_is_stored_once_and_once_more_for_each_time_it_was_given_back() -> None:
    found = lines("a", "2 begin 0 k.1", "3 again 0 k.1")
    twice = [("line", "k.1")] * 2
    assert stored_too_often(found, twice) == []
    assert len(stored_too_often(found, [*twice, ("line", "k.1")])) == 1


def test_two_of_one_key_are_not_in_hand_at_once_unless_a_kill_has_ended_one() -> None:
    found = lines("a", "2 begin 0 k.1") + lines("b", "5 begin 0 k.1")
    assert len(in_hand_at_once(found, [])) == 1
    assert len(in_hand_at_once(found, [Killed(6, "a")])) == 1
    assert in_hand_at_once(found, [Killed(4, "a")]) == []


def test_nothing_of_a_key_is_left_out() -> None:
    (wrong,) = left_out(lines("a", "2 begin 1 k.2"), KEYS)
    assert wrong.endswith("k.1 was not handled")


def test_a_member_does_not_go_back_while_it_has_a_queue() -> None:
    said = ("1 own 7 -", "2 begin 0 k.1", "3 end 0 k.1", "4 begin 1 k.2", "5 end 1 k.2")
    (wrong,) = gone_back(lines("a", *said, "6 begin 0 k.1"))
    assert "goes back" in wrong
    assert gone_back(lines("a", *said, "6 own 8 -", "7 begin 0 k.1")) == []


def test_a_queue_is_with_whoever_has_its_newest_claim() -> None:
    owners = Owners()
    owners.take(lines("a", "10 own 7 -"))
    owners.take(lines("b", "30 own 8 -"))
    owners.take(lines("a", "40 lost 7 -"))
    queue = ("line", "steps", 0)
    assert [owners.owner(queue, at) for at in (5, 10, 29, 30, 50)] == ["", "a", "a", "b", "b"]
    assert owners.had("a", 20) == [queue] and owners.had("a", 35) == []
    assert owners.taken_ns(queue, Killed(20, "a")) == 10
    assert owners.taken_ns(queue, Killed(20, "b")) == -1
