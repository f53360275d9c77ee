"""Selectors: what RocketMQ's own choose, and what a caller's own may do wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.sending.encoding import BatchMessage
from penstock.client.core.sending.selectors import SelectedBy, at_random, by_hash, queue_choice
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.formats.java_hash import shard_queue


def java_choice(code: int, queues: int) -> int:
    """SelectMessageQueueByHash: the remainder has the dividend's sign, which is dropped."""
    remainder = abs(code) % queues * (-1 if code < 0 else 1)
    return -remainder if remainder < 0 else remainder


@given(st.text(max_size=20), st.integers(1, 1024))
def test_of_a_text_the_queue_is_the_one_that_shard_has(text: str, queues: int) -> None:
    assert by_hash(text)(range(queues)) == shard_queue(text, queues)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 1024))
def test_a_number_is_hashed_as_java_hashes_integer_and_long(number: int, queues: int) -> None:
    bits = number % 2**64
    folded = (bits ^ bits >> 32) % 2**32  # Long.hashCode, as unsigned
    code = number if -(2**31) <= number < 2**31 else folded - (folded >> 31 << 32)
    assert by_hash(number)(range(queues)) == java_choice(code, queues)


@pytest.mark.parametrize(
    ("argument", "queues", "queue"),
    # By hand: "b" is 98, Integer.MIN_VALUE % 7 is -2; Long's hash of 2^32 + 5 is 4, and that of
    # -2^31 - 1 is Integer.MIN_VALUE.
    [("b", 10, 8), (-7, 4, 3), (-(2**31), 7, 2), (2**32 + 5, 100, 4), (-(2**31) - 1, 2**10, 0)],
)
def test_known_choices(argument: str | int, queues: int, queue: int) -> None:
    assert by_hash(argument)(range(queues)) == queue


@pytest.mark.parametrize("argument", [None, True, 1.5, b"k", 2**63, -(2**63) - 1])
def test_what_has_no_such_hash_is_refused(argument: Any) -> None:
    with pytest.raises(InvalidArgument, match="argument is not a str, or an int of 64 bits"):
        by_hash(argument)


def test_chance_leaves_no_queue_out() -> None:
    chosen = Counter(at_random(range(4)) for _ in range(4000))
    assert sorted(chosen) == [0, 1, 2, 3] and min(chosen.values()) > 700


@pytest.mark.parametrize("wrong", [4, -1, None, "0", True, 1.0])
def test_a_selector_that_chooses_no_queue_is_told(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="has chosen no queue of topic t: .*0 to 3"):
        SelectedBy(lambda queues: wrong).queue("t", 4)


def test_a_selector_that_raises_is_told_with_its_error() -> None:
    with pytest.raises(InvalidArgument, match="the selector has failed") as told:
        SelectedBy(lambda queues: queues[9]).queue("t", 4)
    assert isinstance(told.value.__cause__, IndexError)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((at_random, "k", None), "shard='k', selector="),
        ((None, "k", 3), "queue=3, shard='k'"),
        ((at_random, None, 0), "queue=0, selector="),
        ((at_random, "", 0), "queue=0, shard='', selector="),
    ],
)
def test_only_one_argument_may_choose(arguments: Any, named: str) -> None:
    with pytest.raises(InvalidMessage, match="more than one argument chooses") as told:
        queue_choice(*arguments)
    assert named in str(told.value)


def test_a_selector_is_something_to_call() -> None:
    wrong: Any = 3
    with pytest.raises(InvalidMessage, match="selector is not a callable"):
        queue_choice(wrong, None, None)


def test_of_an_unknown_topic_it_is_asked_when_the_queues_are_known(
    make_wire: Callable[..., Any],
) -> None:
    """And what it does wrong then fails its message, and not the producer."""
    wire, seen = make_wire(), []

    def last(queues: Any) -> int:
        seen.append(list(queues))
        return int(queues[-1])

    def send(topic: str, selector: Any) -> Any:
        return wire.core.send(topic, BatchMessage(b"x"), None, SelectedBy(selector), "", True, 0)

    good, bad = send("a", last), send("b", lambda queues: 1 // 0)
    assert seen == [], "nobody knows the queues"
    wire.heal(8)
    assert (good.result(0).queue_id, seen) == (1, [[0, 1]])
    assert isinstance(bad.exception(0), InvalidArgument)
    assert wire.core.send("b", BatchMessage(b"x"), None, None, "", True, 0) is not None
    wire.heal(8)
    assert wire.core.intake.unsettled == 0


@pytest.mark.parametrize("chosen", range(4))
def test_a_selector_may_choose_each_queue(chosen: int) -> None:
    assert SelectedBy(lambda queues: queues[chosen]).queue("orders", 4) == chosen
