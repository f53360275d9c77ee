"""What the writer does about topics: route, create, list, describe, update, delete.

It alone changes config/topics.json and penstock/deleted-topics.json. It does not know sockets:
requests come in as structs and answers go out as structs. What a request makes of a topic is
decided in shared/messaging/topic_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol

from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import (
    InvalidArgument,
    PenstockError,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import sync_directory
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import (
    OWN_QUEUES,
    QUEUES,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
)
from penstock.shared.messaging.topic_rules import (
    TopicConfig,
    check_changeable,
    check_ends,
    check_queues,
    check_routable,
    created,
    made_by_first_use,
    updated,
)
from penstock.shared.names import LIGHT_QUEUE_PREFIX, check_topic
from penstock.shared.next_steps import no_such_queue, no_such_topic, topic_hint
from penstock.shared.queue.deleted_topics import (
    save_deleted_topics,
    settle_deleted_topics,
)
from penstock.shared.store.topics import (
    Topics,
    load_topics,
    save_topics,
)
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Route,
    Routed,
    TopicDescribed,
    UpdateTopic,
)

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
# Topics whose route a producer may ask for. Messages for SCHEDULE_TOPIC and TIMER_TOPIC wait there
# for another topic, and the producer asks for the route of that one.
_ROUTED = QUEUES.keys() - {SCHEDULE_TOPIC, TIMER_TOPIC}

_UPDATED = ("read_queues", "write_queues", "perm", "order", "filter_type", "sys_flag")

Change = Route | CreateTopic | UpdateTopic | DeleteTopic
Answer = Routed | TopicDescribed


class LogTail(Protocol):
    """What a change of topics asks the end of the log, and tells it."""

    wrote: int

    def next_offset(self, topic: str, queue_id: int) -> int: ...

    def forget_topic(self, topic: str) -> None: ...


class TopicAdmin:
    """The topics of the store. Every change is durable before it is answered.

    `version` grows with each change, and `deleted` is the number of the last deletion.
    """

    def __init__(self, paths: StorePaths, config: Config, clock: Clock) -> None:
        self._paths = paths
        self._file = paths.topics
        self._config = config
        self._clock = clock
        self._topics = load_topics(self._file)
        # topic -> the most queues it ever had; those it no longer has may still hold messages
        self._had: dict[str, int] = {}
        self.version = 0
        if self._file.exists():  # a predecessor may have died between renaming and syncing
            sync_directory(self._file.parent)
        self.gone = settle_deleted_topics(paths.deleted_topics, self._topics.names())

    @property
    def deleted(self) -> int:
        """The number up to which all deletions are done."""
        return min([row.number - 1 for row in self.gone.rows if not row.is_done] + [self.gone.last])

    def note_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Note queues with messages, by topic and id. A queue that its topic no longer has takes as
        much room as any other."""
        for topic, queue_id in queues:
            if topic not in QUEUES and queue_id >= _count(self._topics.get(topic)):
                self._had[topic] = max(self._had.get(topic, 0), queue_id + 1)

    def queues(self, topic: str) -> int:
        """How many queues may be written; 0 when there is no such topic.

        RocketMQ takes messages for the queues that are read, too: while a topic shrinks its
        producers do not all know it yet. Nor does it look at the permission here.
        """
        if topic in RESERVED_TOPICS:
            return QUEUES.get(topic, 0)
        found = self._topics.get(topic)
        return found.queues if found is not None else 0

    def not_found(self, topic: str) -> TopicNotFound:
        """The error for a topic that does not exist; its hint names topics that do."""
        return no_such_topic(topic, topic_hint(topic, self._topics.names(), self._paths.root))

    def no_such_queue(self, topic: str, queue: int, count: int) -> QueueNotFound:
        """The error for a queue that a topic of `count` queues does not have."""
        return no_such_queue(topic, queue, count, self._paths.root)

    def changes(self, request: messages.TopicRequest) -> bool:
        """Whether the request may change the file, which takes a disk some ms."""
        if isinstance(request, Route):
            is_known = request.topic in _ROUTED or request.topic in self._topics.names()
            return request.create and not is_known
        return not isinstance(request, ListTopics | DescribeTopic)

    def look_up(self, request: messages.TopicRequest) -> messages.TopicAnswer:
        """Answer a request that changes nothing.

        Raises InvalidArgument, TopicNotFound, NoPermission.
        """
        if isinstance(request, ListTopics):
            return messages.TopicList(request.request, self._topics.all(), self._topics.others())
        if isinstance(request, DescribeTopic):
            return _described(request, self._known(request.topic, self._topics))
        assert isinstance(request, Route), "it changes nothing"
        if request.topic in _ROUTED:
            return Routed(request.request, request.topic, QUEUES[request.topic])
        return _answer(request, self._wanted(request, self._topics, None, 0))

    def answer_all(
        self, requests: Sequence[Change], log: LogTail, deleted_queues: int = 0
    ) -> list[Answer | PenstockError]:
        """Do all requests in order; those that come together change the file once.

        `deleted_queues` is how many slots of the queue table come free only at the next start.
        """
        answers: list[Answer | PenstockError] = []
        for is_delete, group in groupby(requests, lambda each: isinstance(each, DeleteTopic)):
            several = list(group)
            try:
                self._settle()
                if is_delete:
                    answers += self._delete(several, log)
                else:
                    answers += self._change(several, log, deleted_queues)
            except OSError as error:
                answers += [_unsaved(error)] * len(several)
        return answers

    def _change(
        self, requests: Sequence[Change], log: LogTail, deleted_queues: int
    ) -> list[Answer | PenstockError]:
        """All requests except deletions, with one change of the file."""
        # changed on a copy: memory must not have what the file does not
        changed: Topics | None = None
        answers: list[Answer | PenstockError] = []
        for request in requests:
            try:
                topics = changed or self._topics
                wanted = self._wanted(request, topics, log, deleted_queues)
                dry = isinstance(request, UpdateTopic) and request.dry_run
                if wanted != topics.get(request.topic) and not dry:
                    changed = changed or load_topics(self._file)
                    changed.set(request.topic, wanted, self._clock.now_ms())
            except PenstockError as error:
                answers.append(error)
            except OSError as error:
                answers.append(_unsaved(error))
            else:
                answers.append(_answer(request, wanted))
        if changed is None:
            return answers
        try:
            save_topics(self._file, changed)
        except OSError as error:
            unsaved = _unsaved(error)
            return [
                self._unless_changed(request, answer, unsaved)
                for request, answer in zip(requests, answers, strict=True)
            ]
        for topic in {request.topic for request in requests}:
            before = _count(self._topics.get(topic))
            if before > _count(changed.get(topic)):
                self._had[topic] = max(self._had.get(topic, 0), before)
        self._topics = changed
        self.version += 1
        return answers

    def _unless_changed(
        self, request: Change, answer: Answer | PenstockError, unsaved: StoreUnavailable
    ) -> Answer | PenstockError:
        now = self._topics.get(request.topic)
        if isinstance(answer, PenstockError) or now and answer == _answer(request, now):
            return answer
        return unsaved

    def _known(self, topic: str, topics: Topics) -> TopicConfig:
        found = topics.get(check_topic(topic))
        if found is None:
            raise self.not_found(topic)
        return found

    def _wanted(
        self, request: Change, topics: Topics, log: LogTail | None, deleted_queues: int
    ) -> TopicConfig:
        """The settings that the topic is to have. Raises PenstockError."""
        topic = check_topic(request.topic)
        is_own = topic in OWN_QUEUES and isinstance(request, CreateTopic)
        # readers take what is in a light queue for entries of other topics' messages
        is_light = topic.startswith(LIGHT_QUEUE_PREFIX)
        if topic in RESERVED_TOPICS or is_own or is_light:
            raise InvalidArgument(
                "this topic is one of RocketMQ's own", topic, "choose another name"
            )
        now = topics.get(topic)
        if isinstance(request, Route):
            made = None
            if now is None and request.create:
                template = topics.get(TEMPLATE_TOPIC)
                made = made_by_first_use(
                    topic, request.queues, template, self._config, request.sys_flag
                )
            found = now or made
            if found is None:
                raise self.not_found(topic)
            check_routable(topic, found)
            if now is not None:
                return now
        elif isinstance(request, CreateTopic):
            found = created(topic, request.queues, now)
        else:
            assert isinstance(request, UpdateTopic) and log is not None
            check_changeable(topic)
            now = self._known(topic, topics)
            changes = {name: getattr(request, name) for name in _UPDATED}
            found = updated(topic, now, changes, request.attributes)
            if request.ends is not None:
                going = range(found.queues, now.queues)
                check_ends(topic, going, request.ends, log.next_offset)
        check_queues(found)
        beyond = sum(max(0, had - _count(topics.get(each))) for each, had in self._had.items())
        own = self._had.get(topic, 0)
        queues = topics.queue_count + max(found.queues, own) - max(_count(now), own)
        self._check_room(queues, deleted_queues + beyond)
        return found

    def _check_room(self, queues: int, gone_queues: int) -> None:
        in_all = queues + gone_queues
        if in_all <= self._config.max_queues:
            return
        of_deleted = ", deleted ones among them" if gone_queues else ""
        raise StoreUnavailable(
            f"all topics together would have more than {self._config.max_queues} queues"
            f"{of_deleted}",
            in_all,
            f"start the broker with more: penstock up --set max_queues={in_all}",
        )

    # --- deleting ---

    def _delete(self, requests: Sequence[Change], log: LogTail) -> list[Answer | PenstockError]:
        """Deletions, with one change of the files. Raises OSError; see `_settle`."""
        going: dict[str, TopicConfig] = {}
        answers: list[Answer | PenstockError] = []
        for request in requests:
            assert isinstance(request, DeleteTopic)
            try:
                check_changeable(request.topic)
                found = self._known(request.topic, self._topics)
                if request.topic in going:
                    raise self.not_found(request.topic)
            except PenstockError as error:
                answers.append(error)
                continue
            if not request.dry_run:
                going[request.topic] = found
            answers.append(_described(request, found, deleted=not request.dry_run))
        if going:
            topics, now_ms = load_topics(self._file), self._clock.now_ms()
            for topic in going:
                topics.remove(topic, now_ms)
            noted = self.gone.with_rows(going, log.wrote, now_ms)
            save_deleted_topics(self._paths.deleted_topics, noted)
            crash_point("topic.deletion_noted")
            save_topics(self._file, topics)
            crash_point("topic.deleted")
            self._topics, self.gone = topics, noted
            self.version += 1
            for topic in going:
                self._had.pop(topic, None)
                log.forget_topic(topic)
            self._settle()
        return answers

    def _settle(self) -> None:
        """Finish or strike off each deletion that is noted and not done, as topics.json says.

        Raises OSError; then the next request settles them before it changes anything.
        """
        settled = self.gone.settled(self._topics.names())
        if settled != self.gone:
            save_deleted_topics(self._paths.deleted_topics, settled)
            crash_point("topic.deletion_done")
            self.gone = settled


def _count(topic: TopicConfig | None) -> int:
    """How many queues a topic has; 0 without one."""
    return topic.queues if topic is not None else 0


def _answer(request: Change, config: TopicConfig) -> Answer:
    if isinstance(request, UpdateTopic):
        return _described(request, config)
    return Routed(request.request, request.topic, config.write_queues)


def _described(
    request: DescribeTopic | UpdateTopic | DeleteTopic, config: TopicConfig, deleted: bool = False
) -> TopicDescribed:
    return TopicDescribed(
        request.request,
        request.topic,
        config.read_queues,
        config.write_queues,
        config.perm,
        config.order,
        config.attributes,
        config.filter_type,
        config.sys_flag,
        deleted,
    )


def _unsaved(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        "config/topics.json cannot be written",
        error,
        "look at the disk, then try again: penstock status",
    )
