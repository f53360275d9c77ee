"""Filters that take long to read: read once, in turns, and noticed by nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.reader import Reader
from penstock.actors.reader.filter_turns import FilterTurns
from penstock.shared.clock import ManualClock
from penstock.shared.errors import FilterError
from penstock.shared.filters.message_filter import MAX_TAGS_CHARACTERS, SHORT_CHARACTERS, SQL92, TAG
from penstock.shared.store.consumer_filters import SAVE_EVERY_MS, ConsumerFilterFile
from penstock.shared.wire.messages import Pull, Subscription, encode

LONG = " OR ".join(f"a = {number}" for number in range(60))
WRONG = LONG + " OR"
WAIT_S = 30


def pull(kind: str, expression: str, request: int = 1) -> Pull:
    return Pull(request, "orders", {0: 0}, 1, 100, 0, Subscription(kind, expression, {}, "", 0))


@pytest.fixture
def turns(tmp_path: Path) -> FilterTurns:
    return FilterTurns(ConsumerFilterFile(tmp_path / "filters.json", ManualClock()), True)


def test_a_long_filter_waits_and_then_is_known(turns: FilterTurns) -> None:
    assert len(LONG) > SHORT_CHARACTERS
    for peer in (b"one", b"two", b"one"):  # asked again it is one question
        assert turns.has_to_wait(peer, pull(SQL92, LONG))
    for peer in (b"two", b"one"):
        turn = turns.next()
        assert turn is not None and turn[0] == peer
        first = turns.filter_of(turn[1])
    assert turns.next() is None
    assert not turns.has_to_wait(b"three", pull(SQL92, LONG))
    assert turns.filter_of(pull(SQL92, LONG)) is first, "read once"


@pytest.mark.parametrize(("kind", "expression"), [(TAG, "*"), (TAG, "a || b"), (SQL92, "a = 1")])
def test_short_filters_never_wait(turns: FilterTurns, kind: str, expression: str) -> None:
    assert not turns.has_to_wait(b"one", pull(kind, expression))


def test_a_wrong_filter_is_found_wrong_once(turns: FilterTurns) -> None:
    assert turns.has_to_wait(b"one", pull(SQL92, WRONG))
    with pytest.raises(FilterError) as first:
        turns.filter_of(pull(SQL92, WRONG))
    assert not turns.has_to_wait(b"one", pull(SQL92, WRONG)), "it costs nothing any more"
    with pytest.raises(FilterError) as again:
        turns.filter_of(pull(SQL92, WRONG))
    assert again.value is first.value


def test_the_condition_of_a_group_is_written_down_and_no_other_filter_is(tmp_path: Path) -> None:
    file = ConsumerFilterFile(tmp_path / "filters.json", ManualClock())
    turns = FilterTurns(file, True)
    for kind, group in ((SQL92, ""), (TAG, "tags"), (SQL92, "billing")):
        asked = Subscription(kind, "a = 1" if kind == SQL92 else "a", {}, group, 7)
        turns.filter_of(Pull(1, "orders", {0: 0}, 1, 100, 0, asked))
    (written,) = file.filters.all()
    named = (written["topic"], written["consumerGroup"], written["expression"])
    assert (*named, written["clientVersion"]) == ("orders", "billing", "a = 1", 7)


def test_a_new_question_takes_the_place_of_one_that_waits(turns: FilterTurns) -> None:
    assert turns.has_to_wait(b"one", pull(SQL92, LONG))
    assert not turns.has_to_wait(b"one", pull(TAG, "a", request=2))
    assert turns.next() is None


def test_very_many_tags_are_refused(turns: FilterTurns) -> None:
    expression = "||".join(f"tag-{number}" for number in range(MAX_TAGS_CHARACTERS // 6))
    assert not turns.has_to_wait(b"one", pull(TAG, expression)), "that costs nothing"
    with pytest.raises(FilterError, match="more than"):
        turns.filter_of(pull(TAG, expression))


def test_known_filters_are_few_and_short_together(turns: FilterTurns) -> None:
    for number in range(300):
        for kind, expression in ((SQL92, f"a = {number}"), (TAG, f"{number}||" * 4000)):
            turns.filter_of(pull(kind, expression))
    known = turns._known._known
    assert len(known) <= 128 and sum(len(expression) for _, expression in known) <= 128 << 10
    assert turns._known._characters == sum(len(expression) for _, expression in known)


def test_a_reader_that_has_read_a_long_filter_does_not_sleep_before_it_reads_the_next(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(transient_store_pool_enable=False, enable_property_filter=True)
    reader, deadline = broker.start(Reader), time.monotonic() + WAIT_S
    client = broker.client(broker.run.endpoints.consume)
    # a wrong one leaves nothing else to be done
    client.send(encode(pull(SQL92, WRONG)))
    while not (done := reader.work()):
        assert time.monotonic() < deadline
    assert done == 2, "a request and a filter: to read one is work, too"
    assert reader.has_more()
    while reader.work():
        assert time.monotonic() < deadline
    assert not reader.has_more()


@pytest.mark.parametrize("stops", [False, True])
def test_the_filter_of_a_group_is_in_the_file_after_a_while_and_when_the_reader_stops(
    pipeline: Callable[..., Any], stops: bool
) -> None:
    broker = pipeline(transient_store_pool_enable=False, enable_property_filter=True)
    reader = broker.start(Reader)
    client = broker.client(broker.run.endpoints.consume)
    wanted = Subscription(SQL92, "a = 1", {}, "billing", 7)
    asked = Pull(1, "orders", {0: 0}, 1, 100, 0, wanted)
    broker.ask(reader, client, encode(asked))
    if stops:
        broker.stop(reader)
    else:  # one that is killed saves nothing at its end
        broker.clock.advance(SAVE_EVERY_MS)
        reader.work()
    (written,) = ConsumerFilterFile(broker.paths.consumer_filters, broker.clock).filters.all()
    assert (written["consumerGroup"], written["expression"]) == ("billing", "a = 1")
