"""Which topics a query is about, by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

from penstock.shared.messaging.system_topics import is_system_topic
from penstock.shared.names import listed
from penstock.spark.reading.offsets import parse_assign
from penstock.spark.reading.options import Options


def named_topics(options: Options) -> list[str]:
    """The topics that `subscribe` or `assign` names. Raises ConfigError."""
    if options.assign:
        return [*parse_assign(options.assign)]
    return listed(options.subscribe)


def is_wanted(topic: str, named: Collection[str], pattern: str) -> bool:
    """Whether a topic is named or, if none is named, matches the pattern.

    The broker's own topics must be named: they hold no messages of users, and a pattern that
    matches them was meant for others.
    """
    if named:
        return topic in named
    return not is_system_topic(topic) and (not pattern or bool(re.fullmatch(pattern, topic)))


def topic_filter(options: Options) -> Callable[[str], bool]:
    """`is_wanted` for these options."""
    return partial(is_wanted, named=named_topics(options), pattern=options.subscribe_pattern)
