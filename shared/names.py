"""The rules for names of topics and groups, after RocketMQ 5.3.

Every name from outside is checked here before it becomes part of a path or of a file: a topic is a
directory's name, so "..", "/" and the empty name must never get past this.
"""

from __future__ import annotations

from penstock.shared.errors import InvalidArgument

# A record stores the length of its properties as a signed 16-bit number.
MAX_PROPERTIES_BYTES = 32767
# A record stores the length of its topic in one signed byte; version 2 of the record has two bytes,
# for the names that a broker derives from a group's.
MAX_TOPIC_BYTES = 127
MAX_RETRY_TOPIC_BYTES = 255
MAX_GROUP_CHARACTERS = 120
# RocketMQ's prefixes for a group's messages that come again, and those that came too often.
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# A light queue's entries point at records of other topics.
LIGHT_QUEUE_PREFIX = "%LMQ%"
MAX_QUEUES_PER_TOPIC = 1024
TOPIC_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
# RocketMQ names its own topics after clusters and brokers, and those after machines and addresses.
# Such a topic may be in a store that RocketMQ wrote, but a user may not create one.
STORED_TOPIC_CHARACTERS = TOPIC_CHARACTERS | frozenset(".:")


def listed(text: str) -> list[str]:
    """The names in a comma-separated list, as in options."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_topic(topic: str) -> str:
    """The topic, or raise InvalidArgument. Every topic is checked here before it meets a path."""
    if not topic:
        raise InvalidArgument("the topic's name is empty", repr(topic), "name a topic")
    # a set of allowed characters instead of forbidden ones: what nobody thought of is refused
    bad = sorted(set(topic) - TOPIC_CHARACTERS)
    if bad:
        raise InvalidArgument(
            "the topic's name has characters that none may have",
            f"{''.join(bad[:8])!r} in {topic[:80]!r}",
            "use ASCII letters, digits and % | - _ only",
        )
    limit = MAX_RETRY_TOPIC_BYTES if is_group_topic(topic) else MAX_TOPIC_BYTES
    if len(topic) > limit:
        raise InvalidArgument(
            f"the topic's name is longer than {limit} characters", len(topic), "use a shorter one"
        )
    return topic


def is_stored_topic(topic: str) -> bool:
    """Whether a store may have records of this topic: topics that users may create, and those that
    RocketMQ makes itself. Either kind is safe as a directory's name."""
    return (
        0 < len(topic) <= MAX_RETRY_TOPIC_BYTES
        and not set(topic) - STORED_TOPIC_CHARACTERS
        and topic not in (".", "..")
    )


def check_group(group: str) -> str:
    """Return the name of a consumer group, or raise InvalidArgument."""
    if not 0 < len(group) <= MAX_GROUP_CHARACTERS or set(group) - TOPIC_CHARACTERS:
        raise InvalidArgument(
            "this can be no name of a group",
            repr(group[:80]),
            f"use 1 to {MAX_GROUP_CHARACTERS} ASCII letters, digits and % | - _",
        )
    return group


def is_group_topic(topic: str) -> bool:
    """Whether the topic holds a group's retries or dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
