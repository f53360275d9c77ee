"""New topics in turns: one change of the file for many, and a pause after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.actors.writer.topic_turns import AT_ONCE, MAX_OF_PEER, PAUSE, TopicTurns
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.store.topics import load_topics
from penstock.shared.wire.messages import (
    CreateTopic,
    DeleteTopic,
    ListTopics,
    Refused,
    Route,
    Routed,
    TopicDescribed,
    TopicList,
    decode_produce_answer,
)
from penstock.shared.wire.unread_answers import SHORT_ANSWER_BYTES

DISK_MS, LIST_MS = 40, 5


class SlowTopics:
    """Very many topics, of which a list takes its time."""

    version = 1

    def __init__(self, made: SlowTurns) -> None:
        self._made = made

    def look_up(self, request: ListTopics) -> TopicList:
        self._made.clock.advance(LIST_MS)
        found = self._made.admin.look_up(request)
        assert isinstance(found, TopicList)
        return found


class Log:
    """The end of a log without a message."""

    wrote = 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def forget_topic(self, topic: str) -> None:
        return None


class SlowTurns:
    """Topic turns over a disk that takes its time."""

    def __init__(self, file: Path, config: Config) -> None:
        self.clock = ManualClock()
        self.admin = TopicAdmin(StorePaths(file.parent.parent), config, self.clock)
        self.changes = 0
        create_positions(page := file.parent / "positions")
        self.positions = Positions(page, owner="writer")
        self.turns = TopicTurns(self.admin, Log(), self.positions, self, self.clock)

    def answers(self, room_bytes: int = 1 << 20) -> list[tuple[bytes, Any]]:
        found = self.turns.turn(room_bytes)
        return [(peer, decode_produce_answer(answer)) for peer, answer in found]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *raised: object) -> None:
        self.changes += 1
        self.clock.advance(DISK_MS)


@pytest.fixture
def made(tmp_path: Path, make_config: Callable[..., Config]) -> SlowTurns:
    (tmp_path / "config").mkdir()
    (tmp_path / "penstock").mkdir()
    return SlowTurns(tmp_path / "config" / "topics.json", make_config(max_queues=10_000))


def test_what_is_asked_meanwhile_is_done_with_one_change(made: SlowTurns, tmp_path: Path) -> None:
    turns = made.turns
    assert made.positions["topic_changes"] == 1 and turns.idle
    assert turns.ask(b"one", CreateTopic(1, "a", 2)) is None
    assert not turns.idle
    assert turns.ask(b"two", CreateTopic(2, "../b", 2)) is None
    assert turns.ask(b"three", Route(3, "c", True)) is None
    answers = dict(made.answers())
    assert answers[b"one"] == Routed(1, "a", 2) and isinstance(answers[b"three"], Routed)
    refused = answers[b"two"]
    assert isinstance(refused, Refused) and refused.request == 2
    assert made.changes == 1 and not turns
    assert made.positions["topic_changes"] == 2, "a writer's start counts as a change"
    assert set(load_topics(tmp_path / "config" / "topics.json").all()) == {"a", "c"}


def test_what_changes_nothing_is_answered_at_once(made: SlowTurns) -> None:
    made.turns.ask(b"one", CreateTopic(1, "a", 2))
    made.answers()
    assert made.turns.ask(b"one", Route(2, "a", True)) == Routed(2, "a", 2)
    assert isinstance(made.turns.ask(b"one", Route(3, "b", False)), Refused)
    assert made.turns.ask(b"one", ListTopics(4)) is None
    assert made.answers() == [(b"one", TopicList(4, {"a": 2}))]
    assert made.changes == 1


def test_who_asks_for_all_topics_without_an_end_has_one_list_in_its_turn(
    made: SlowTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = made.turns
    monkeypatch.setattr(turns, "_topics", SlowTopics(made))
    for number in range(1000):
        assert turns.ask(b"evil", ListTopics(number)) is None
    assert turns.ask(b"honest", ListTopics(1)) is None
    assert made.answers() == [(b"evil", TopicList(999, {}))], "the last one, once"
    assert made.answers() == [], "it is too soon"
    made.clock.advance(PAUSE * LIST_MS - 1)
    assert made.answers() == []
    made.clock.advance(1)
    assert made.answers() == [(b"honest", TopicList(1, {}))]
    made.clock.advance(PAUSE * LIST_MS)
    assert made.answers() == []


def test_lists_wait_up_to_a_number_and_who_is_beyond_it_asks_again(
    made: SlowTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{TopicTurns.__module__}.MAX_WAITING", 2)
    for number, peer in enumerate((b"one", b"two", b"three", b"one")):
        assert made.turns.ask(peer, ListTopics(number)) is None
    answered = []
    for _ in range(4):
        assert made.turns.idle is (len(answered) == 2)
        made.clock.advance(1000)
        answered += [(peer, answer.request) for peer, answer in made.answers()]
    assert answered == [(b"one", 3), (b"two", 1)], "who asks again has its place, and the answer"


def test_no_list_is_made_while_too_many_are_unread(made: SlowTurns) -> None:
    assert made.turns.ask(b"one", ListTopics(1)) is None
    assert made.answers(room_bytes=SHORT_ANSWER_BYTES) == []
    assert made.answers() == [(b"one", TopicList(1, {}))]


def test_who_makes_topics_without_an_end_takes_a_share_of_the_time_and_no_turn_of_others(
    made: SlowTurns,
) -> None:
    turns = made.turns
    for number in range(MAX_OF_PEER):
        assert turns.ask(b"evil", CreateTopic(number, f"evil-{number}", 1)) is None
    assert isinstance(turns.ask(b"evil", CreateTopic(99, "evil-99", 1)), Refused)
    assert len(made.answers()) == AT_ONCE
    for number in range(MAX_OF_PEER):
        assert turns.ask(b"evil", CreateTopic(number, f"more-{number}", 1)) is None
    assert turns.ask(b"honest", CreateTopic(1, "orders", 4)) is None
    assert made.answers() == [], "it is too soon"
    made.clock.advance(PAUSE * DISK_MS - 1)
    assert made.answers() == []
    made.clock.advance(1)
    assert {peer for peer, _ in made.answers()} == {b"evil", b"honest"}
    began, before = made.clock.monotonic_ms(), made.changes
    while turns:
        made.answers()
        made.clock.advance(1)
    spent = (made.changes - before) * DISK_MS
    assert spent * (PAUSE + 1) <= made.clock.monotonic_ms() - began + (PAUSE + 1) * DISK_MS


def test_no_more_waits_or_is_done_at_once_than_is_said(
    made: SlowTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("AT_ONCE", 2), ("MAX_OF_PEER", 2), ("MAX_WAITING", 3)):
        monkeypatch.setattr(f"{TopicTurns.__module__}.{name}", most)
    turns = made.turns
    for number in (1, 2):
        assert turns.ask(b"one", CreateTopic(number, f"one-{number}", 1)) is None
    assert isinstance(turns.ask(b"one", CreateTopic(3, "one-3", 1)), Refused), "it has two"
    assert turns.ask(b"two", CreateTopic(4, "two-4", 1)) is None
    refused = turns.ask(b"three", CreateTopic(5, "three-5", 1))
    assert isinstance(refused, Refused) and "3 in all" in refused.value
    assert [answer.request for _, answer in made.answers()] == [1, 4], "one of each in its turn"
    assert turns.ask(b"three", CreateTopic(5, "three-5", 1)) is None
    assert turns.ask(b"three", CreateTopic(6, "three-6", 1)) is None
    assert isinstance(turns.ask(b"four", CreateTopic(7, "four-7", 1)), Refused)
    made.clock.advance(PAUSE * DISK_MS)
    assert [answer.request for _, answer in made.answers()] == [2, 5]
    made.clock.advance(PAUSE * DISK_MS)
    assert [answer.request for _, answer in made.answers()] == [6] and not turns


def test_others_are_told_of_a_deletion_with_the_answer(
    made: SlowTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.turns.ask(b"one", CreateTopic(1, "a", 2))
    made.answers()
    made.clock.advance(PAUSE * DISK_MS)
    assert made.turns.ask(b"one", DeleteTopic(2, "a")) is None
    assert made.positions["deleted_topics"] == 0
    publish, published = made.positions.publish, list[str]()

    def noted(name: str, value: int) -> None:
        published.append(name)
        publish(name, value)

    monkeypatch.setattr(made.positions, "publish", noted)
    ((_, answer),) = made.answers()
    assert isinstance(answer, TopicDescribed) and answer.deleted
    assert made.positions["deleted_topics"] == 1
    assert published == ["deleted_topics", "topic_changes"], "they look at the first by the second"
