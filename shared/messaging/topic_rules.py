"""What a topic may be, and how a request changes it: RocketMQ's rules, as pure functions.

Nothing here knows the file or the log. A function returns the new topic, computed from the present
one, or refuses the request, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import structs

from penstock.shared.config import Config
from penstock.shared.errors import InvalidArgument, NoPermission, QueueNotFound, StoreUnavailable
from penstock.shared.messaging.system_topics import (
    OWN_QUEUES,
    is_system_topic,
)
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, is_group_topic

# The bits of `perm`. A topic with INHERIT can be the template of others.
PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
PERM_DEFAULT = PERM_READ | PERM_WRITE
# The bits of a topic's own `sys_flag`: it is one of a unit, or its messages come from units. Name
# servers list topics by them, and nothing else asks.
UNIT, UNIT_SUB = 1, 2


class TopicConfig(msgspec.Struct, frozen=True):
    """A topic's settings: RocketMQ's TopicConfig.

    Consumers see queues 0 to `read_queues` - 1, producers those to `write_queues` - 1. The two
    differ while a topic grows or shrinks.
    """

    read_queues: int
    write_queues: int
    perm: int = PERM_DEFAULT
    order: bool = False
    attributes: dict[str, str] = {}
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0

    @property
    def queues(self) -> int:
        """The number of queues: a message may be in any that somebody writes or reads."""
        return max(self.read_queues, self.write_queues)

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)


# The attributes of RocketMQ's that may change on an existing topic. The others say how its queues
# are stored, for which there is only one way here.
_MESSAGE_TYPES = frozenset(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"))
_CHANGEABLE = ("message.type", "reserve.time")
# signs of a change that sets an attribute, and of one that removes it
_SIGNS = ("+", "-")


def with_changes(attributes: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Attributes after changes in RocketMQ's form: "+key" sets one, "-key" removes it.

    Raises InvalidArgument for a key without a sign, and for removing one that is not there.
    """
    found = dict(attributes)
    for sign_key, value in changes.items():
        sign, key = sign_key[:1], sign_key[1:]
        if sign not in _SIGNS or not key:
            raise InvalidArgument(
                "an attribute's name does not begin with + or -",
                repr(sign_key),
                "write +KEY=VALUE to set one, -KEY to remove it",
            )
        if sign == "+":
            found[key] = value
        elif found.pop(key, None) is None:
            raise InvalidArgument(
                "the topic has no such attribute",
                key,
                "name one that it has: penstock topics describe TOPIC",
            )
    return found


def check_routable(topic: str, config: TopicConfig) -> None:
    """Raise NoPermission or QueueNotFound where producers have no queue in a topic."""
    if not config.is_writable:
        raise NoPermission(
            "the topic takes no messages",
            f"{topic} has permission {config.perm}, without the bit 2, to write",
            f"allow it: penstock topics update {topic} --perm rw",
        )
    if config.write_queues < 1:
        raise QueueNotFound(
            "the topic has no queue to write",
            topic,
            f"give it some: penstock topics update {topic} --write-queues 4",
        )


def made_by_first_use(
    topic: str, most: int, template: TopicConfig | None, config: Config, sys_flag: int = 0
) -> TopicConfig | None:
    """The topic that a first message makes; None where none may be made.

    The client asks for at most `most` queues. A group's own topics have one queue; these and
    Penstock's own are made whatever is configured. Others follow the template, if it can be
    inherited from.
    """
    if is_group_topic(topic) or topic in OWN_QUEUES:
        queues = OWN_QUEUES.get(topic, 1)
        return TopicConfig(queues, queues, sys_flag=sys_flag)
    queues = config.default_topic_queue_nums
    template = template or TopicConfig(queues, queues, PERM_DEFAULT | PERM_INHERIT)
    if not (template.perm & PERM_INHERIT and config.auto_create_topic_enable):
        return None
    queues = min(most, template.write_queues)
    perm = template.perm & ~PERM_INHERIT
    kind = template.filter_type
    return TopicConfig(queues, queues, perm, filter_type=kind, sys_flag=sys_flag)


def created(topic: str, queues: int, now: TopicConfig | None) -> TopicConfig:
    """A topic with this many queues. Raises InvalidArgument for fewer than it has."""
    found = now or TopicConfig(0, 0)
    if now is not None and queues < now.write_queues:
        raise InvalidArgument(
            f"topic {topic} has {now.write_queues} queues, and creating it takes none away",
            queues,
            f"ask for {now.write_queues} or more; to take some away: penstock topics update "
            f"{topic} --queues {max(queues, 1)}",
        )
    # RocketMQ shrinks a topic by its write queues first: what can be read can still be read
    read_queues = max(queues, found.read_queues)
    return structs.replace(found, read_queues=read_queues, write_queues=queues)


def updated(
    topic: str,
    now: TopicConfig,
    changes: Mapping[str, int | bool | str | None],
    attributes: Mapping[str, str],
) -> TopicConfig:
    """A topic after changes of its fields; None leaves a field as it is.

    `attributes` are changes in RocketMQ's form. Raises InvalidArgument.
    """
    perm = changes.get("perm") or 0
    if not isinstance(perm, int) or not 0 <= perm < PERM_PRIORITY:
        raise InvalidArgument(
            "there is no such permission", perm, "4 is to read, 2 to write, 6 both, 1 to inherit"
        )
    for key, value in attributes.items():
        if key[:1] in _SIGNS:
            _check_attribute(key[1:], value)
    given = {name: value for name, value in changes.items() if value is not None}
    return structs.replace(now, **given, attributes=with_changes(now.attributes, attributes))


def _check_attribute(key: str, value: str) -> None:
    if key not in _CHANGEABLE:
        raise InvalidArgument(
            "a topic's attribute of this name cannot be changed",
            key,
            f"those that can be: {', '.join(_CHANGEABLE)}",
        )
    if key == "message.type" and value and value not in _MESSAGE_TYPES:
        raise InvalidArgument(
            "there is no such message.type", value, f"choose {', '.join(sorted(_MESSAGE_TYPES))}"
        )
    if key == "reserve.time" and value and not value.lstrip("-").isdecimal():
        raise InvalidArgument("reserve.time is not a number of ms", value, "write digits only")


def check_ends(
    topic: str, queues: range, ends: Mapping[int, int], next_offset: Callable[[str, int], int]
) -> None:
    """Raise StoreUnavailable if a queue that goes has got a message since `ends` were read."""
    for queue_id in queues:
        end = next_offset(topic, queue_id)
        if end != ends.get(queue_id, 0):
            raise StoreUnavailable(
                f"queue {queue_id} of topic {topic} has got messages since it was looked at",
                f"it ended at {ends.get(queue_id, 0)}, and ends at {end}",
                "see that all its groups have read it, then try again",
            )


def check_queues(config: TopicConfig) -> None:
    """Raise InvalidArgument for a number of queues that no topic can have."""
    for queues in (config.write_queues, config.read_queues):
        if not 1 <= queues <= MAX_QUEUES_PER_TOPIC:
            raise InvalidArgument(
                "a topic cannot have so many queues", queues, f"choose 1 to {MAX_QUEUES_PER_TOPIC}"
            )


def check_changeable(topic: str) -> None:
    """Raise InvalidArgument for a topic that is the broker's own."""
    if is_system_topic(topic):
        raise InvalidArgument(
            "this topic is the broker's own, and stays as it is", topic, "name another topic"
        )
