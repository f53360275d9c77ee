"""What is asked about queues at the consume endpoint: those of a topic, and those of several.

The answers cover all that was acknowledged when the question came. Import them through messages.py,
with the rest of that endpoint.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.shared.wire.header import Number, WireMessage

# With this many a request has room for names of any length. More need another request.
MAX_LISTED_TOPICS = 512


class Describe(WireMessage, frozen=True):
    """The queues of a topic; with `at_ms` >= 0 also the first offset stored at or after it."""

    request: Number
    topic: str
    at_ms: int
    run: str = ""


class QueueRange(WireMessage, frozen=True):
    """A queue's first offset, its next one, and the one asked for by time, or else the next."""

    queue_id: int
    min_offset: int
    max_offset: int
    at_offset: int


class Described(WireMessage, frozen=True):
    request: int
    topic: str
    exists: bool
    queues: tuple[QueueRange, ...]
    hint: str = ""  # if it does not exist: which topics do, and how to create it
    queued: int = -1  # a log offset: until it moves, no queue of any topic has anything new


class ListQueues(WireMessage, frozen=True):
    """The queues of these topics; topics that do not exist have none."""

    request: Number
    topics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_LISTED_TOPICS)]
    run: str = ""


class QueueList(WireMessage, frozen=True):
    """The queues of each of the first topics that were asked for, at least of one. It ends when
    there are as many queues as a topic may have; the client asks again for the rest."""

    request: int
    topics: Annotated[tuple[tuple[QueueRange, ...], ...], msgspec.Meta(min_length=1)]
