"""Failures of one producer's messages that nobody has asked about, to be reported once.

A caller that asks for an outcome deals with it. Of all other failures this keeps the number, the
topics and the first error. Memory is bounded: of many failures the oldest are only counted.
No sockets; the caller holds the producer's lock.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple, Protocol

from penstock.client.core import log

# Failed futures that are kept in case somebody still asks; older ones count as never asked for.
MOST_KEPT = 1000
MOST_TOPICS_NAMED = 3


class Failed(Protocol):
    """A future that has failed."""

    @property
    def seen(self) -> bool: ...

    def exception(self, timeout: float | None = None) -> BaseException | None: ...


class Lost(NamedTuple):
    """Failures that nobody has asked about: the messages of each topic, and the first error."""

    topics: Counter[str]
    error: BaseException

    @property
    def messages(self) -> int:
        return self.topics.total()

    def __str__(self) -> str:
        count = self.messages
        what = "1 message was" if count == 1 else f"{count:,} messages were"
        return f"{what} not acknowledged: {named(self.topics)}"

    def log(self, why: str) -> None:
        """Log it in one line."""
        log().error("%s, %s. The first error: %s", why, self, self.error)

    def exception(self) -> BaseException:
        """The first error, with a note if there are more."""
        if self.messages > 1:
            self.error.add_note(f"in all, {self}")
        return self.error


def named(topics: Counter[str]) -> str:
    """The topics with the most messages, and how many others there are."""
    most = [f"{count:,} of {topic}" for topic, count in topics.most_common(MOST_TOPICS_NAMED)]
    others = len(topics) - MOST_TOPICS_NAMED
    more = f" and others of {others} more topic{'s' if others > 1 else ''}" if others > 0 else ""
    return ", ".join(most) + more


class Failures:
    """Counts one producer's failures until they are taken; forgets those that were asked about."""

    def __init__(self) -> None:
        self._kept: deque[tuple[str, int, Failed]] = deque()
        self._older: Counter[str] = Counter()
        self._first: BaseException | None = None

    def add(self, topic: str, messages: int, future: Failed) -> None:
        """Note that a future of this many messages of the topic has failed, or is about to."""
        if len(self._kept) == MOST_KEPT:
            self._count(*self._kept.popleft())
        self._kept.append((topic, messages, future))

    def take(self) -> Lost | None:
        """All failures that nobody has asked about by now, once."""
        while self._kept:
            self._count(*self._kept.popleft())
        first, topics = self._first, self._older
        self._first, self._older = None, Counter()
        return None if first is None else Lost(topics, first)

    def _count(self, topic: str, messages: int, future: Failed) -> None:
        if not future.seen and (error := future.exception(0)) is not None:
            self._older[topic] += messages
            self._first = self._first or error
