"""Round robin: every queue has its share, and a frame has messages of few of them."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable
from threading import Condition

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.sending.encoding import BrokerLimits
from penstock.client.core.sending.frames import Frame, Sender, SendFuture
from penstock.client.core.sending.outbox import Outbox
from penstock.client.core.sending.round_robin import QUEUES_OF_A_FRAME, RoundRobin, any_queue
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.loops.active import Intake, KeyNumbers
from penstock.shared.loops.forms import FRAME_BYTES, Plain

PAIR = array("q", [0, 1])
ORIGIN = KeyOrigin("0A" * 10, 0)
SENDER = Sender(Condition(), ORIGIN)


class Sends:
    """Messages of one producer, on their way into frames."""

    def __init__(self, first: Callable[[int], int] = lambda queues: 0, **topics: int) -> None:
        self.turns = RoundRobin(first)
        plain = Plain(SendFuture, SENDER, "", KeyNumbers(ORIGIN), BrokerLimits(), 0, 0)
        self.outbox = Outbox(Intake(plain, self.turns.now, {}), self.turns)
        for topic, queues in topics.items():
            self.turns.begin(topic, queues)

    def send(self, topic: str, size: int = 10, queue: int = -1) -> int:
        """One without a key, unless it is told its queue; where it goes."""
        queue = next(self.turns.now[topic]) if queue < 0 else queue
        self.outbox.put(topic, queue, "", b"", size, SendFuture(SENDER, 0))
        return queue

    def batch(self, topic: str) -> int:
        """Two without a key that are stored together; where they go."""
        queue = next(self.turns.now[topic])
        self.outbox.put_batch(topic, queue, "", [b"", b""], 20, SendFuture(SENDER, 0, PAIR))
        return queue

    def frames(self) -> list[Frame]:
        found = []
        while self.outbox:
            found.append(self.outbox.take())
        return found


@pytest.mark.parametrize("queues", [1, 4, QUEUES_OF_A_FRAME])
def test_a_topic_of_few_queues_has_them_all_in_turn(queues: int) -> None:
    sends = Sends(t=queues)
    sent = [sends.send("t", 5000) for _ in range(500)]
    assert sent == [number % queues for number in range(500)]


@pytest.mark.parametrize("queues", [1, 4, QUEUES_OF_A_FRAME, 3 * QUEUES_OF_A_FRAME])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_turns_begin_with_any_queue_and_go_on_from_there(queues: int, first: int) -> None:
    sends = Sends(lambda count: first % count, t=queues)
    sent = []
    for _ in range(3 * queues):
        sent.append(sends.send("t"))
        sends.frames()
    assert sent == [(first + number) % queues for number in range(3 * queues)]


def test_which_queue_is_the_first_is_left_to_chance_and_to_no_seed_of_the_program() -> None:
    """Twelve producers with one message each: all in one queue of four once in 4**11 times."""
    found = set()
    for _ in range(12):
        random.seed(1)
        sends = Sends(any_queue, t=4)
        found.add(sends.send("t"))
    assert len(found) > 1 and found <= set(range(4))


@given(
    queues=st.lists(st.integers(1, 80), min_size=1, max_size=4),
    frames=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    kinds=st.tuples(st.booleans(), st.booleans()),
)
def test_frames_have_few_queues_and_queues_have_the_same_share(
    queues: list[int], frames: list[int], kinds: tuple[bool, bool]
) -> None:
    """Whatever they hold: this many messages of each topic, batches or not, others with keys."""
    batches, keyed = kinds
    topics = {f"t{number}": count for number, count in enumerate(queues)}
    sends = Sends(**topics)
    counts = {topic: [0] * count for topic, count in topics.items()}
    most = 0
    for number, per_topic in enumerate(frames):
        turns: Counter[tuple[str, int]] = Counter()
        for topic in list(topics)[: 1 + number % len(topics)]:
            for _ in range(per_topic):
                queue = sends.batch(topic) if batches else sends.send(topic)
                counts[topic][queue] += 1
                turns[topic, queue] += 1
            if keyed:
                sends.send(topic, queue=number % topics[topic])
        most = max(most, *turns.values())
        # a topic that was not in the frame before has as many as one that is alone
        few = sum(min(count, QUEUES_OF_A_FRAME) for count in queues)
        (frame,) = sends.frames()
        assert len({(run.topic, run.queue_id) for run in frame.runs}) <= few + keyed * len(topics)
    for had in counts.values():
        assert max(had) - min(had) <= most, "no more than one frame gave to one queue"


def test_batches_alone_go_to_all_queues() -> None:
    sends = Sends(many=100)
    sent = []
    for _ in range(200):
        sent.append(sends.batch("many"))
        sends.frames()
    assert sent == [number % 100 for number in range(200)]


def test_frames_of_one_size_prefer_no_queue() -> None:
    """24 messages to 16 of 32 queues: who has had two in one frame has one in another."""
    sends = Sends(t=32)
    counts: Counter[int] = Counter()
    for _ in range(40):
        counts.update(sends.send("t") for _ in range(24))
        sends.frames()
    assert max(counts.values()) - min(counts.values()) <= 2


def test_the_next_frame_goes_on_with_the_queues_whose_turn_it_is() -> None:
    sends = Sends(many=100, few=2)
    first = [sends.send("many") for _ in range(3 * QUEUES_OF_A_FRAME)]
    assert first == [*range(QUEUES_OF_A_FRAME)] * 3, "16 queues, and then the same ones again"
    assert [sends.send("few") for _ in range(3)] == [0, 1, 0]
    sends.frames()
    # two topics have half as many each, and what was in turn goes on
    assert [sends.send("many") for _ in range(17)] == [*range(16, 24), *range(16, 24), 16]
    assert [sends.send("few") for _ in range(3)] == [1, 0, 1]


def test_a_frame_of_one_message_costs_no_other_queue_its_turn() -> None:
    sends = Sends(many=100)
    sent = []
    for _ in range(250):
        sent.append(sends.send("many"))
        sends.frames()
    assert sent == [number % 100 for number in range(250)]


def test_full_frames_go_on_with_the_queues_that_follow() -> None:
    sends = Sends(many=100)
    sent = [sends.send("many", FRAME_BYTES) for _ in range(250)]
    assert sent == [number % 100 for number in range(250)]


def test_queues_have_their_turns_whether_topics_come_alone_or_together() -> None:
    """10 queues are few for a frame of one topic, and many for one of four."""
    sends = Sends(a=10, b=10, c=10, d=10)
    counts: Counter[int] = Counter()
    for number in range(400):
        for topic in "abcd" if number % 2 else "a":
            counts[sends.send(topic)] += topic == "a"
        sends.frames()
    assert [counts[queue] for queue in range(10)] == [40] * 10


@given(
    queues=st.lists(st.integers(1, 5), min_size=QUEUES_OF_A_FRAME, max_size=40),
    frames=st.lists(st.integers(0, 7), min_size=1, max_size=30),
    resting=st.none() | st.integers(0, 4),
)
def test_a_frame_of_more_topics_than_it_may_have_queues_has_one_queue_of_each(
    queues: list[int], frames: list[int], resting: int | None
) -> None:
    topics = {f"t{number}": count for number, count in enumerate(queues)}
    sends = Sends(lambda count: 1 % count, **topics)
    if resting is not None:
        sends.turns.rest("t0", frozenset({resting}))
    # until then each has several queues
    counts = {topic: Counter([sends.send(topic)]) for topic in topics}
    sends.frames()
    for messages in frames:
        for topic in topics:
            sent = {sends.send(topic) for _ in range(1 + messages)}
            assert len(sent) == 1
            counts[topic].update({sent.pop(): 1 + messages})
        sends.frames()
    for topic, count in topics.items():
        awake = set(range(count)) - {resting if topic == "t0" else None} or set(range(count))
        shares = [counts[topic][queue] for queue in awake]
        assert max(shares) - min(shares) <= 1 + max(frames) + 1, (topic, counts[topic])
        assert counts[topic].keys() <= awake


def test_a_topic_that_has_more_queues_now_uses_them() -> None:
    sends = Sends(t=1)
    assert [sends.send("t") for _ in range(2)] == [0, 0]
    sends.turns.begin("t", 3)
    assert [sends.send("t") for _ in range(4)] == [0, 1, 2, 0]


def test_a_topic_whose_queues_are_not_known_any_more_has_no_turns_until_they_are() -> None:
    sends = Sends(t=4, other=2)
    sends.send("t")
    sends.turns.end("t")
    assert sends.turns.now.keys() == {"other"}
    assert len(sends.frames()) == 1, "which ends the turns of its topic"
    sends.turns.rest("t", frozenset({0}))
    assert sends.turns.now.keys() == {"other"}
    sends.turns.begin("t", 2)
    assert Counter(sends.send("t") for _ in range(10)) == {0: 5, 1: 5}


def test_a_queue_that_has_rested_goes_on_with_the_others_and_catches_up_with_none() -> None:
    sends = Sends(t=4)
    for resting in (frozenset({1}), frozenset({1, 2})):
        sends.turns.rest("t", resting)
        for _ in range(30):
            assert sends.send("t") not in resting
            sends.frames()
    sends.turns.rest("t", frozenset({2}))
    counts: Counter[int] = Counter()
    for _ in range(30):
        counts[sends.send("t")] += 1
        sends.frames()
    assert set(counts) == {0, 1, 3}
    assert max(counts.values()) - min(counts.values()) <= 2


ALL, LAST, NONE = frozenset({0, 1}), frozenset({1}), frozenset[int]()


@pytest.mark.parametrize(
    ("steps", "sent"),
    [
        # where all rest, none does
        ([ALL, 4], [0, 1, 0, 1]),
        ([ALL, ALL, 4], [0, 1, 0, 1]),
        ([ALL, 3, NONE, 4], [0, 1, 0, 1, 0, 1, 0]),
        ([LAST, 3, NONE, 4], [0, 0, 0, 0, 1, 0, 1]),
        ([3, LAST, LAST, ALL, 4], [0, 1, 0, 1, 0, 1, 0]),
    ],
)
def test_two_queues_of_which_some_rest(steps: list[frozenset[int] | int], sent: list[int]) -> None:
    """A number is how many messages are sent; a set is which queues rest from then on."""
    sends = Sends(t=2)
    found: list[int] = []
    for step in steps:
        if isinstance(step, frozenset):
            sends.turns.rest("t", step)
        else:
            found += [sends.send("t") for _ in range(step)]
    assert found == sent


def test_a_queue_rests_on_when_its_topic_was_not_known_for_a_while() -> None:
    sends = Sends(t=3)
    sends.turns.rest("t", LAST)
    sends.turns.end("t")
    sends.turns.begin("t", 3)
    assert [sends.send("t") for _ in range(4)] == [0, 2, 0, 2]


@given(
    queues=st.integers(1, 40),
    frames=st.lists(
        st.tuples(st.integers(0, 60), st.none() | st.frozensets(st.integers(0, 41), max_size=41)),
        max_size=30,
    ),
)
def test_queues_that_rest_have_no_turns_and_the_others_share_alike(
    queues: int, frames: list[tuple[int, frozenset[int] | None]]
) -> None:
    """Against a plain count. While the same rest, none has more than what one frame gave beyond
    another; one that comes back catches up with nobody."""
    sends = Sends(t=queues)
    everyone, resting = set(range(queues)), frozenset[int]()
    counts: Counter[int] = Counter()
    most = 0
    for messages, rests in frames:
        if rests is not None:
            sends.turns.rest("t", resting := rests)
            counts.clear()
            most = 0
        sent = [sends.send("t") for _ in range(messages)]
        sends.frames()
        awake = everyone - resting or everyone
        assert set(sent) <= awake
        counts.update(sent)
        few = min(len(awake), QUEUES_OF_A_FRAME)
        most = max(most, -(-messages // few))
        shares = [counts[queue] for queue in awake]
        # what they had before they began to share differs by as much
        assert max(shares) - min(shares) <= 2 * max(most, 60 // few + 1)
    sends.turns.rest("t", frozenset())
    last: set[int] = set()
    for _ in range(100):
        last |= {sends.send("t") for _ in range(60)}
        sends.frames()
    assert last == everyone, "nobody was lost"
