"""Hints: near names are found, what is said stays short, and commands are words for a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.next_steps import (
    did_you_mean,
    move_away,
    nearest,
    no_such_queue,
    other_topics,
    rebuild,
    store_of,
    topic_hint,
    verify,
)

names = st.lists(st.text("abcdefgh-_%", min_size=1, max_size=127), max_size=30, unique=True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("order", "orders"), ("Orders", "orders"), ("ordres", "orders"), ("payment", "payments")],
)
def test_a_near_miss_names_what_was_meant(typed: str, meant: str) -> None:
    topics = ["payments", "orders", "zebras", *(f"log-{n}" for n in range(50))]
    assert nearest(typed, topics)[0] == meant
    assert other_topics(typed, topics).startswith(f"Did you mean {meant}? There are: {meant}, ")


def test_a_near_miss_is_found_among_ten_thousand() -> None:
    topics = [f"topic-{n:05d}" for n in range(10_000)]
    assert nearest("topic-070711", topics)[0] == "topic-07071"
    assert "and 9994 more" in other_topics("nothing-like-it", topics)


def test_what_is_near_nothing_is_told_what_there_is() -> None:
    assert other_topics("zzz", ["orders", "payments"]) == "There are: orders, payments"
    assert other_topics("zzz", []) == "there is no topic yet"
    assert did_you_mean("never", ["sync", "async"]) == "There are: sync, async"
    assert did_you_mean("synch", ["sync", "async"]) == "Did you mean sync or async?"
    assert did_you_mean("zzz", "abcdefgh") == "There are: a, b, c, d, e, f and 2 more"


def test_the_topics_of_groups_are_not_offered() -> None:
    assert other_topics("orders", ["%RETRY%orders", "%DLQ%orders"]) == "there is no topic yet"


@given(st.text(max_size=127), names)
def test_whatever_is_asked_the_answer_is_short_and_names_what_there_is(
    asked: str, known: list[str]
) -> None:
    said = other_topics(asked, known)
    assert len(said) < 8 * 130
    shown = said.partition("There are: ")[2].partition(" and ")[0]
    assert set(shown.split(", ")) - {""} <= set(known)


@given(st.text("ab c'$;\"", min_size=1), st.text("ab c'$;\"", min_size=1))
def test_commands_can_be_typed_whatever_names_and_paths_hold(topic: str, name: str) -> None:
    store = Path("/stores") / name
    command = topic_hint(topic, [], store).partition("to create it: ")[2]
    assert shlex.split(command) == [
        *("penstock", "topics", "create", topic, "--store", str(store)),
    ]
    assert shlex.split(verify(store).partition(": ")[2])[-1] == str(store)
    assert shlex.split(move_away(store)) == ["mv", str(store), f"{store}.broken"]


def test_a_queue_that_there_is_not_names_those_there_are_and_how_to_have_it() -> None:
    said = str(no_such_queue("orders", 7, 4, "/stores/a b"))
    assert said == (
        "[QUEUE_NOT_EXIST] topic orders has no such queue: 7. It has queues 0 to 3; "
        "for more: penstock topics create orders --queues 8 --store '/stores/a b'"
    )
    assert str(no_such_queue("orders", 7, 4, "")).endswith(" --queues 8 --store STORE")
    assert "create" not in str(no_such_queue("orders", 1024, 4, "/store"))
    assert str(no_such_queue("orders", -1, 1, "/store")).endswith("-1. It has 1 queue, 0")


def test_a_file_of_a_store_leads_to_the_store() -> None:
    for inside in ("", "commitlog", "commitlog/000", "consumequeue/orders/0/000", "index/2026"):
        assert store_of(Path("/stores/one") / inside) == Path("/stores/one")
    assert rebuild("/stores/one/consumequeue/orders/0").endswith("store rebuild /stores/one")
    assert verify(None).endswith("store verify STORE")


def test_a_name_that_nothing_may_have_is_compared_with_nothing() -> None:
    assert nearest("x" * 256, ["x" * 255]) == []
