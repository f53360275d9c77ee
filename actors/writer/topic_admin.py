"""What the writer does about topics: route, create, list. It alone changes config/topics.json.

It does not know sockets: requests come in as structs and answers go out as structs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import (
    InvalidArgument,
    PenstockError,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.files.durable import sync_directory
from penstock.shared.messaging.system_topics import (
    OFFSETS_TOPIC,
    QUEUES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, check_topic
from penstock.shared.next_steps import no_such_queue, no_such_topic, topic_hint
from penstock.shared.store.topics import Topics, load_topics, save_topics
from penstock.shared.wire import messages

# RocketMQ keeps its own records in these; a producer may not.
RESERVED_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
    }
)
# Whose route a producer may ask for. To those where messages wait for another topic it sends by the
# route of that one.
_ROUTED = QUEUES.keys() - {SCHEDULE_TOPIC, TIMER_TOPIC}


class TopicAdmin:
    """The topics of the store. Every change is durable before it is answered."""

    def __init__(self, file: Path, config: Config, clock: Clock) -> None:
        self._file = file
        self._config = config
        self._clock = clock
        self._topics = load_topics(file)
        if file.exists():  # a predecessor may have died between renaming and syncing
            sync_directory(file.parent)

    def queues(self, topic: str) -> int:
        """How many queues producers may write; 0 when there is no such topic, or no such right."""
        if topic in RESERVED_TOPICS:
            return QUEUES.get(topic, 0)
        return self._topics.queues(topic)

    def not_found(self, topic: str) -> TopicNotFound:
        """What to raise for a topic that there is not: with those that there are."""
        return no_such_topic(topic, topic_hint(topic, self._topics.names(), self._store))

    def no_such_queue(self, topic: str, queue: int, count: int) -> QueueNotFound:
        """What to raise for a queue that a topic of `count` queues has not."""
        return no_such_queue(topic, queue, count, self._store)

    @property
    def _store(self) -> Path:
        return self._file.parent.parent

    def changes(self, request: messages.Route | messages.CreateTopic | messages.ListTopics) -> bool:
        """Whether the request may change the file, which takes a disk some ms."""
        if isinstance(request, messages.Route):
            if request.topic in _ROUTED:
                return False
            return request.create and not self._topics.queues(request.topic)
        return isinstance(request, messages.CreateTopic)

    def answer(
        self, request: messages.Route | messages.CreateTopic | messages.ListTopics
    ) -> messages.Routed | messages.TopicList:
        """Do what is asked. Raises InvalidArgument, TopicNotFound or StoreUnavailable, and then
        nothing has changed."""
        if isinstance(request, messages.ListTopics):
            return messages.TopicList(request.request, self._topics.all())
        if isinstance(request, messages.Route) and request.topic in _ROUTED:
            return messages.Routed(request.request, request.topic, QUEUES[request.topic])
        (answer,) = self.answer_all([request])
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def answer_all(
        self, requests: Sequence[messages.Route | messages.CreateTopic]
    ) -> list[messages.Routed | PenstockError]:
        """Do all that is asked, in order, with one change of the file."""
        # what the file does not say must not be true in memory either
        changed: Topics | None = None
        answers: list[messages.Routed | PenstockError] = []
        for request in requests:
            try:
                now = changed or self._topics
                queues = self._wanted(request, now)
                if queues != now.queues(request.topic):
                    changed = changed or load_topics(self._file)
                    changed.put(request.topic, queues, self._clock.now_ms())
            except PenstockError as error:
                answers.append(error)
            except OSError as error:
                answers.append(_unsaved(error))
            else:
                answers.append(messages.Routed(request.request, request.topic, queues))
        if changed is None:
            return answers
        try:
            save_topics(self._file, changed)
        except OSError as error:
            return [self._unless_changed(each, _unsaved(error)) for each in answers]
        self._topics = changed
        return answers

    def _unless_changed(
        self, answer: messages.Routed | PenstockError, unsaved: StoreUnavailable
    ) -> messages.Routed | PenstockError:
        if isinstance(answer, PenstockError) or self._topics.queues(answer.topic) == answer.queues:
            return answer
        return unsaved

    def _wanted(self, request: messages.Route | messages.CreateTopic, topics: Topics) -> int:
        """How many queues the topic is to have. Raises what `answer` does."""
        topic, now = check_topic(request.topic), topics.queues(request.topic)
        is_own = topic == OFFSETS_TOPIC and isinstance(request, messages.CreateTopic)
        if topic in RESERVED_TOPICS or is_own:
            raise InvalidArgument(
                "this topic is one of RocketMQ's own", topic, "choose another name"
            )
        if isinstance(request, messages.CreateTopic):
            queues = request.queues
        elif now:
            return now
        elif request.create and topic == OFFSETS_TOPIC:
            queues = 1  # the broker's own, whoever is the first to need it
        elif request.create and self._config.auto_create_topic_enable:
            queues = self._config.default_topic_queue_nums
        else:
            raise self.not_found(topic)
        if not 1 <= queues <= MAX_QUEUES_PER_TOPIC:
            raise InvalidArgument(
                "a topic cannot have so many queues", queues, f"choose 1 to {MAX_QUEUES_PER_TOPIC}"
            )
        if queues < now:
            raise InvalidArgument(
                f"topic {topic} has {now} queues, and a topic loses none",
                queues,
                f"ask for {now} or more",
            )
        in_all = sum(topics.all().values()) - now + queues
        if in_all > self._config.max_queues:
            raise StoreUnavailable(
                f"all topics together would have more than {self._config.max_queues} queues",
                in_all,
                f"start the broker with more: penstock up --set max_queues={in_all}",
            )
        return queues


def _unsaved(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        "config/topics.json cannot be written",
        error,
        "look at the disk, then try again: penstock status",
    )
