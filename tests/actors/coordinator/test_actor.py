"""The coordinator by itself: what it answers, what it keeps over a crash, whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.coordinator import Coordinator
from penstock.shared.store.topics import load_topics, save_topics
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode

GROUP, TOPIC = "CG", "orders"
SESSION_MS = 15_000


class MemberByHand:
    """One member's socket, and its requests."""

    def __init__(self, broker: Any, coordinator: Any, name: str, group: str = GROUP) -> None:
        self.broker, self.coordinator = broker, coordinator
        self.name, self.group = name, group
        self.socket = broker.client(broker.run.endpoints.group)
        self.told: list[Any] = []
        self._number = 0

    def ask(self, kind: type, *fields: Any, **named: Any) -> Any:
        """The answer. What is pushed meanwhile goes to `told`."""
        self._number += 1
        request = kind(self._number, self.group, *fields, **named)
        found = self.broker.ask(self.coordinator, self.socket, encode(request))
        while True:
            answer = words.decode_group_answer(found[0][0])
            if answer.request:
                assert answer.request == self._number
                return answer
            self.told.append(answer)
            found = self.broker.ask(self.coordinator, self.socket)

    def join(self, *topics: str, **named: Any) -> Any:
        subscriptions = [words.SubscriptionData(each, "TAG", "*", 1) for each in topics or (TOPIC,)]
        arguments = {"session_timeout_ms": SESSION_MS, **named}
        return self.ask(words.Join, self.name, tuple(subscriptions), **arguments)

    def claim(self, *queues: int, topic: str = TOPIC) -> Any:
        return self.ask(words.Claim, self.name, topic, queues)

    def commit(self, *commits: tuple[int, int, int], kind: type = words.Commit) -> Any:
        """Of (queue, offset, epoch)."""
        found = [words.QueueCommit(TOPIC, queue, at, epoch) for queue, at, epoch in commits]
        return self.ask(kind, self.name, tuple(found))

    def leave(self) -> Any:
        return self.ask(words.Leave, self.name)

    def hear(self) -> Any:
        """What is pushed, which has to come."""
        if not self.told:
            found = self.broker.ask(self.coordinator, self.socket)
            self.told.append(words.decode_group_answer(found[0][0]))
        return self.told.pop(0)


Started = tuple[Any, Any, Callable[..., MemberByHand]]


@pytest.fixture
def coordinator(pipeline: Callable[..., Any]) -> Callable[..., Started]:
    """The broker, its coordinator, and what makes a member; "orders" has four queues."""

    def make(queues: int = 4, **settings: object) -> Started:
        broker = pipeline(**settings)
        topics = load_topics(broker.paths.topics)
        topics.put(TOPIC, queues, 1)
        save_topics(broker.paths.topics, topics)
        actor = broker.start(Coordinator)
        return broker, actor, lambda name, **more: MemberByHand(broker, actor, name, **more)

    return make


def test_a_member_that_joins_learns_who_else_is_there_and_what_to_divide(
    coordinator: Callable[..., Started],
) -> None:
    _, _, member = coordinator(broker_name="b")
    first, second = member("b@1"), member("a@2")
    joined = first.join(TOPIC, "nothing")
    assert joined.members == ("b@1",)
    assert joined.topics == (words.TopicQueues(TOPIC, 4), words.TopicQueues("nothing", 0))
    assert (joined.broker_name, joined.retry_max_times, joined.lost) == ("b", 16, ())
    assert 0 < joined.heartbeat_ms <= SESSION_MS // 3
    other = second.join()
    assert other.members == ("a@2", "b@1") and other.version > joined.version
    assert first.hear() == words.Changed(0, GROUP)
    assert first.join(TOPIC, "nothing").version == other.version


def test_a_queue_is_one_members_until_it_gives_it_up_and_goes_on_where_it_was(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    broker.append(3)
    first, second = member("a"), member("b")
    first.join(), second.join()
    got = first.claim(0, 1)
    assert [(each.queue_id, each.offset) for each in got.queues] == [(0, 0), (1, 0)]
    assert second.claim(0, 2).taken == (0,)
    epoch = got.queues[0].epoch
    assert second.commit((0, 9, epoch)).lost == (words.HeldClaim(TOPIC, 0, epoch),)
    assert first.commit((0, 2, epoch)).lost == ()
    assert first.commit((0, 3, epoch), kind=words.Release) == words.Released(4, GROUP)
    told = second.hear()
    assert told == words.Changed(0, GROUP)
    (after,) = second.claim(0).queues
    assert after.offset == 3 and after.epoch > epoch
    assert first.commit((0, 1, epoch)).lost == (words.HeldClaim(TOPIC, 0, epoch),)
    assert second.claim(0).queues == (after,), "asked again it is the same claim"
