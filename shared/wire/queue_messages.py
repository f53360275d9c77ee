"""What is asked about queues at the consume endpoint: those of a topic, and those of several.

The answers tell of all that was acknowledged when the question came. They are imported through
messages.py, with the rest of that endpoint.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.shared.wire.header import Number, WireMessage

# Names of any length fit into a request then. More are for another question.
MAX_LISTED_TOPICS = 512


class Describe(WireMessage, frozen=True):
    """The queues of a topic; with `at_ms` >= 0 also the first offset stored at or after it."""

    request: Number
    topic: str
    at_ms: int
    run: str = ""


class QueueRange(WireMessage, frozen=True):
    """A queue's first offset, its next one, and the one asked for by time, else the next."""

    queue_id: int
    min_offset: int
    max_offset: int
    at_offset: int


class Described(WireMessage, frozen=True):
    request: int
    topic: str
    exists: bool
    queues: tuple[QueueRange, ...]
    hint: str = ""  # where it does not exist: which do, and how to create it
    queued: int = -1  # a log offset: until it moves, no queue of any topic has anything new


class ListQueues(WireMessage, frozen=True):
    """The queues of these topics, of which some may not exist: those have none."""

    request: Number
    topics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_LISTED_TOPICS)]
    run: str = ""


class QueueList(WireMessage, frozen=True):
    """The queues of each of the first topics that were asked for: of one at least, and of no more
    when there are as many queues as a topic may have. The rest is to be asked for again."""

    request: int
    topics: Annotated[tuple[tuple[QueueRange, ...], ...], msgspec.Meta(min_length=1)]
