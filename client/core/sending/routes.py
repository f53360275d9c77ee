"""What a producer knows of topics: how many queues each has, what was asked, and what waits for it.

    queue_for() -1 -> park() -> Route request -> Routed -> the parked messages, or Refused -> error
    known -> asked again every 30 s, and when a queue was refused -> Routed, or forgotten

It also numbers requests. No sockets; calls that need the time pass it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from penstock.client.core.aim import Aim
from penstock.client.core.sending.encoding import WaitingForm, topic_bytes
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.round_robin import RoundRobin
from penstock.client.core.sending.selectors import SelectedBy
from penstock.shared.errors import PenstockError, TopicNotFound
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.loops.forms import Draft
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode

ASK_AGAIN_MS = 500
# A producer notices a changed topic within this time. [pollNameServerInterval]
REFRESH_MS = 30_000
# Topics that are asked for again at a time, because a producer may have thousands.
REFRESHED_AT_ONCE = 100
# How many queues a producer asks for when its message creates a topic, as in RocketMQ.
DEFAULT_TOPIC_QUEUE_NUMS = 4
_LONG_AGO_MS = -(1 << 62)

Request = (
    messages.Route
    | messages.CreateTopic
    | messages.ListTopics
    | messages.UpdateTopic
    | messages.DeleteTopic
    | messages.DescribeTopic
)
Answer = messages.TopicAnswer | PenstockError


class Parked(NamedTuple):
    """A message or a batch of at most `size` bytes, on its way into a frame.

    It waits if its topic's queues are not known yet.
    """

    topic: str
    drafts: list[Draft]
    size: int
    future: SendFuture
    shard: str | None
    queue: int | SelectedBy | None
    ack: str
    batch: bool = False
    # queues that have refused it
    tried: tuple[int, ...] = ()
    # set if it is delayed, or is a half message
    delay: WaitingForm | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether it is for one queue and may not go to another."""
        return self.queue is not None or self.shard is not None


class _Asked:
    """An unanswered question for a topic's route, and the messages that wait for it."""

    __slots__ = ("request", "since_ms", "asked_ms", "parked", "parked_ms")

    def __init__(self) -> None:
        # all 0 until the question is sent
        self.request = self.since_ms = self.asked_ms = 0
        self.parked: list[Parked] = []
        # since when they wait; the last ones have no time yet
        self.parked_ms: list[int] = []


class Routes:
    """The topics of one producer."""

    def __init__(self) -> None:
        self.aim = Aim()
        # topic -> how many queues it has, of those that are known
        self.queues: dict[str, int] = {}
        self.rotation = RoundRobin()
        # topic -> the queues of its next messages
        self.turns = self.rotation.now
        self._questions: dict[str, _Asked] = {}
        self._answers: dict[int, Answer] = {}
        # unanswered requests, and when each was last sent; 0 until the first `ask_again`
        self._asked: dict[int, tuple[Request, int]] = {}
        self._last_request = 0
        # encoded requests, and names of topics whose routes are to be asked for
        self._outbox: list[bytes | str] = []
        # topic -> when its route was last asked for; the one whose turn is next comes first
        self._refreshed: dict[str, int] = {}
        # request -> topic, of routes that are asked for again
        self._refreshing: dict[int, str] = {}
        self.default_queues = DEFAULT_TOPIC_QUEUE_NUMS

    def queue_of(self, parked: Parked) -> int:
        """The queue that it goes to now: one that it has not tried, if there is any.

        Raises what `queue_for` raises.
        """
        if parked.tried:
            for queue in islice(self.turns[parked.topic], self.queues[parked.topic]):
                if queue not in parked.tried:
                    return queue
        return self.queue_for(parked.topic, parked.shard, parked.queue)

    def queue_for(self, topic: str, shard: str | None, queue: int | SelectedBy | None) -> int:
        """The queue of the next message; -1 while the topic's route is not known.

        Raises QueueNotFound if the topic has no such queue, InvalidArgument if a selector fails.
        """
        count = self.queues.get(topic)
        if count is None:
            return -1
        if isinstance(queue, SelectedBy):
            return queue.queue(topic, count)
        if queue is not None:
            if not 0 <= queue < count:
                from penstock.shared.next_steps import no_such_queue

                raise no_such_queue(topic, queue, count, self.aim.store)
            return queue
        if shard is not None:
            return shard_queue(shard, count)
        return next(self.turns[topic])

    def park(self, parked: Parked) -> None:
        """Keep a message until its topic's route is known, and ask for that.

        Raises InvalidArgument for a name that no topic can have.
        """
        topic_bytes(parked.topic)
        self.ask(parked.topic).parked.append(parked)

    def ask(self, topic: str) -> _Asked:
        """Ask for a topic's route, unless that is being done already."""
        question = self._questions.get(topic)
        if question is None:
            question = self._questions[topic] = _Asked()
            self._outbox.append(topic)
        return question

    def _ask(self, topic: str, now_ms: int) -> bytes:
        question = self._questions[topic]
        question.since_ms = question.since_ms or now_ms
        question.asked_ms = now_ms
        question.request = self.number()
        return encode(
            messages.Route(question.request, topic, True, self.aim.run, self.default_queues)
        )

    def number(self) -> int:
        """The number of the next request."""
        self._last_request += 1
        return self._last_request

    def request(self, wanted: Request) -> int:
        """Send a request about topics. `answer` returns the answer once it has come."""
        number = self.number()
        self._asked[number] = wanted, 0
        self._outbox.append(self._numbered(number, wanted))
        return number

    def _numbered(self, number: int, wanted: Request) -> bytes:
        return encode(structs.replace(wanted, request=number, run=self.aim.run))

    def forget(self, number: int) -> None:
        """Nobody waits for the answer to this request any more."""
        self._asked.pop(number, None)
        self._answers.pop(number, None)

    def refresh(self, now_ms: int) -> None:
        """Ask again for routes that are old: a topic may have more queues by now, or fewer.

        Until an answer comes, messages use the known route.
        """
        for topic in list(islice(self._refreshed, REFRESHED_AT_ONCE)):
            if now_ms - self._refreshed[topic] < REFRESH_MS:
                return
            del self._refreshed[topic]
            self._refreshed[topic] = now_ms
            # This must not create the topic again if it was deleted: no message needs it now.
            self._refreshing[number := self.number()] = topic
            self._outbox.append(encode(messages.Route(number, topic, False, self.aim.run)))

    def note(self, error: PenstockError, topic: str) -> None:
        """A frame of this topic was refused, perhaps because the topic was deleted."""
        if isinstance(error, TopicNotFound):
            self._forget(topic)

    def _forget(self, topic: str) -> None:
        """The broker no longer has a route, so the next message asks for one as for a new topic."""
        self._refreshed.pop(topic, None)
        self.queues.pop(topic, None)
        self.rotation.end(topic)

    def _answered(self, number: int, answer: Answer) -> None:
        if self._asked.pop(number, None) is not None:  # else it is a second answer
            self._answers[number] = answer

    def answer(self, number: int) -> Answer | None:
        """The answer to a request, if it has come. It is returned only once."""
        return self._answers.pop(number, None)

    def outgoing(self, now_ms: int) -> list[tuple[bytes]]:
        """The requests to send now."""
        out, self._outbox = self._outbox, []
        requests = []
        for each in out:
            if isinstance(each, bytes):
                requests.append((each,))
            elif each in self._questions:  # else it was given up meanwhile
                requests.append((self._ask(each, now_ms),))
        return requests

    def routed(self, answer: messages.Routed, now_ms: int = 0) -> list[Parked]:
        """Take an answer. Returns the messages that can go on now."""
        is_refresh = self._refreshing.pop(answer.request, None) is not None
        if is_refresh and answer.topic not in self.queues:
            return []
        self._refreshed.setdefault(answer.topic, now_ms)
        if self.queues.get(answer.topic) != answer.queues:
            self.queues[answer.topic] = answer.queues
            self.rotation.begin(answer.topic, answer.queues)
        if is_refresh:
            return []
        question = self._questions.pop(answer.topic, None)
        if question is None or question.request != answer.request:
            self._answered(answer.request, answer)
        return question.parked if question is not None else []

    def told(self, answer: messages.TopicList | messages.TopicDescribed) -> None:
        """Take the answer to a request."""
        if isinstance(answer, messages.TopicDescribed) and answer.deleted:
            self._forget(answer.topic)
        self._answered(answer.request, answer)

    def refused(self, request: int, error: PenstockError) -> list[Parked]:
        """Take a refusal. Returns the messages that fail because of it."""
        if topic := self._refreshing.pop(request, ""):
            self._forget(topic)
            return []
        for topic, question in self._questions.items():
            if question.request == request:
                del self._questions[topic]
                return question.parked
        self._answered(request, error)
        return []

    def ask_again(self, now_ms: int) -> None:
        """Repeat questions whose answers seem to be lost."""
        for topic, question in self._questions.items():
            if question.request and now_ms - question.asked_ms > ASK_AGAIN_MS:
                self._outbox.append(topic)
        # these can be repeated too: creating a topic that exists changes nothing
        for number, (wanted, asked_ms) in self._asked.items():
            if not asked_ms:
                self._asked[number] = wanted, now_ms
            elif now_ms - asked_ms > ASK_AGAIN_MS:
                self._asked[number] = wanted, now_ms
                self._outbox.append(self._numbered(number, wanted))
        self.refresh(now_ms)

    def not_connected(self) -> None:
        """Requests in flight will not be answered: the next `ask_again` repeats them."""
        self.aim.away = True
        # these are asked for again in their turn
        self._refreshing.clear()
        for question in self._questions.values():
            question.asked_ms = _LONG_AGO_MS

    def give_up(self, now_ms: int, before_ms: int) -> Iterator[Parked]:
        """Remove and yield the messages that have waited for a route since before this time."""
        for topic, question in list(self._questions.items()):
            question.since_ms = question.since_ms or now_ms
            times = question.parked_ms
            times += [now_ms] * (len(question.parked) - len(times))
            late = bisect_left(times, before_ms)
            parked = question.parked[:late]
            del question.parked[:late], times[:late]
            if question.since_ms < before_ms and not question.parked:
                del self._questions[topic]
            yield from parked
