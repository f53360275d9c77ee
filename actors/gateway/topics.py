"""The topics as the gateway tells its clients of them: config/topics.json, as it is now.

The writer owns the file and counts its changes in `topic_changes`; the file is read again only when
that has moved.
"""

from __future__ import annotations

import random

from penstock.shared.config import Config
from penstock.shared.errors import NoPermission, QueueNotFound, StoreDamaged, TopicNotFound
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.system_topics import NOT_SENT_TO, QUEUES, TEMPLATE_TOPIC
from penstock.shared.messaging.topic_rules import PERM_DEFAULT, PERM_INHERIT, TopicConfig
from penstock.shared.next_steps import no_such_queue, no_such_topic, topic_hint
from penstock.shared.store.topics import Topics, load_topics

# Messages of such a topic have a flag that the fast path for plain messages does not set.
MULTI_TAG = "MULTI_TAG"


class TopicTable:
    """The topics at the last look."""

    def __init__(self, config: Config, positions: Positions) -> None:
        self._config = config
        self._paths = StorePaths(config.store)
        self._positions = positions
        self._changes = -1
        self._topics = Topics()
        # the ones that are asked for: each message asks
        self._known: dict[str, TopicConfig] = {}
        # topic -> queues, for those that plain messages may be sent to
        self.plain: dict[str, int] = {}
        # grows with each look that found the file changed
        self.version = 0

    def look(self) -> None:
        # before the file: a change in between is seen at the next look
        changes = self._positions["topic_changes"]
        if changes == self._changes:
            return
        try:
            self._topics = load_topics(self._paths.topics)
        except (StoreDamaged, OSError):
            return  # what was read before stays; the writer reports what is wrong
        self._changes = changes
        self._known.clear()
        self.plain.clear()
        self.version += 1

    def get(self, topic: str) -> TopicConfig | None:
        try:
            return self._known[topic]
        except KeyError:
            found = self._topics.get(topic)
            if found is not None:  # names of missing topics have no limit
                self._known[topic] = found
                if topic not in NOT_SENT_TO and found.filter_type != MULTI_TAG:
                    self.plain[topic] = found.queues
            return found

    def routed(self, topic: str) -> TopicConfig:
        """What a client is told of a topic. Raises TopicNotFound."""
        found = self.get(topic) or self._own().get(topic)
        if found is None:
            raise self.not_found(topic)
        return found

    def all_routed(self) -> dict[str, TopicConfig]:
        """All that clients are told of."""
        return self._own() | self._topics.configs()

    def _own(self) -> dict[str, TopicConfig]:
        """Topics that are in no file: the broker's own, and the template of those that are made by
        their first message. A producer whose topic is missing asks for the template, and gives up
        if there is none."""
        found = {name: TopicConfig(queues, queues) for name, queues in QUEUES.items()}
        if self._config.auto_create_topic_enable:
            queues = self._config.default_topic_queue_nums
            found[TEMPLATE_TOPIC] = TopicConfig(queues, queues, PERM_DEFAULT | PERM_INHERIT)
        return found

    def is_template(self, topic: str) -> bool:
        """Whether a message whose sender names this topic as the template may make its own topic.
        RocketMQ's clients name TBW102, unless they are set to name another."""
        if topic == TEMPLATE_TOPIC:
            return True  # if no topic may be made, the writer says so, and what to do
        found = self.get(topic)
        return found is not None and bool(found.perm & PERM_INHERIT)

    def known(self, topic: str) -> TopicConfig:
        """All settings of a topic. Raises TopicNotFound."""
        found = self._topics.get(topic)
        if found is None:
            raise self.not_found(topic)
        return found

    def not_found(self, topic: str) -> TopicNotFound:
        hint = topic_hint(topic, self._topics.names(), self._paths.root)
        return no_such_topic(topic, hint)

    def queue_for(self, topic: str, config: TopicConfig, queue_id: int) -> int:
        """The queue that a message is for; a random one if its sender names a negative one.

        Raises QueueNotFound. Queues that are only readable take messages, too: a topic that shrinks
        loses its write queues first.
        """
        if queue_id < 0:
            return random.randrange(max(1, config.write_queues))
        if queue_id >= config.queues:
            raise self.no_such_queue(topic, queue_id, config.queues)
        return queue_id

    def no_such_queue(self, topic: str, queue_id: int, queues: int) -> QueueNotFound:
        return no_such_queue(topic, queue_id, queues, self._paths.root)

    def check_pull(self, topic: str, queue_id: int) -> None:
        """Raises TopicNotFound, QueueNotFound, NoPermission where nobody may pull."""
        config = self.routed(topic)
        if not 0 <= queue_id < config.read_queues:
            raise self.no_such_queue(topic, queue_id, config.read_queues)
        if not config.is_readable:
            raise self._not_readable(topic, config)

    def _not_readable(self, topic: str, config: TopicConfig) -> NoPermission:
        return NoPermission(
            "the topic cannot be read",
            f"{topic} has permission {config.perm}, without the bit 4, to read",
            f"allow it: penstock topics update {topic} --perm rw",
        )
