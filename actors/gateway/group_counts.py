"""What groups have lately got of topics and given back, and where they pull: only of clients that
speak RocketMQ's protocol.

There may be any number of groups and topics, so those that have been quiet the longest are
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.actors.gateway.rates import SAMPLE_MS, Rate
from penstock.shared.names import MAX_GROUP_CHARACTERS

# Pairs of topic and group that are counted at once.
MOST_COUNTED = 1000
# Pairs of which it is known where they pull. A forgotten one counts as pulling where it commits.
MOST_PULLED = 10_000
# An operator asks about the last minute, hour and day. [StatsItem's samplings]
_FINE, _COARSE_MS = 14, 600_000


class Counted:
    """The counts of one topic and one group."""

    __slots__ = ("back", "back_rate", "bytes", "message_rate", "messages", "size_rate")

    def __init__(self, now_ms: int) -> None:
        self.messages = self.bytes = self.back = 0
        self.message_rate = Rate(lambda: self.messages, now_ms, _FINE, _COARSE_MS)
        self.size_rate = Rate(lambda: self.bytes, now_ms, _FINE, _COARSE_MS)
        self.back_rate = Rate(lambda: self.back, now_ms, _FINE, _COARSE_MS)

    def sample(self, now_ms: int) -> bool:
        """Returns whether there was anything since the last sample."""
        before = self.message_rate.total, self.back_rate.total
        for each in (self.message_rate, self.size_rate, self.back_rate):
            each.sample(now_ms)
        return before != (self.messages, self.back)


class GroupCounts:
    """All that are counted: the one that has been quiet the longest first."""

    def __init__(self) -> None:
        # by topic and group
        self._all: dict[tuple[str, str], Counted] = {}
        # likewise: queue -> where the next pull is to begin
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}
        self._due_ms = 0

    def get(self, topic: str, group: str) -> Counted | None:
        return self._all.get((topic, group))

    def got(self, topic: str, group: str, messages: int, size: int, now_ms: int) -> None:
        counted = self._all.get((topic, group)) or self._begin(topic, group, now_ms)
        counted.messages += messages
        counted.bytes += size

    def gave_back(self, topic: str, group: str, now_ms: int) -> None:
        counted = self._all.get((topic, group)) or self._begin(topic, group, now_ms)
        counted.back += 1

    def pulled(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """A pull has been answered or held, so that the next one begins at `offset`. Each pull
        calls this, after its group's name has been checked."""
        found = self._pulled.get((topic, group))
        if found is None:
            if len(self._pulled) >= MOST_PULLED:
                del self._pulled[next(iter(self._pulled))]
            found = self._pulled[topic, group] = {}
        found[queue_id] = offset

    def pull_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where the next pull is to begin; -1 where none has been seen."""
        return self._pulled.get((topic, group), {}).get(queue_id, -1)

    def moved(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        """An operator has set the group's offsets: what it pulled before is no longer in its
        hands."""
        found = self._pulled.get((topic, group), {})
        for queue_id in queue_ids:
            found.pop(queue_id, None)

    def _begin(self, topic: str, group: str, now_ms: int) -> Counted:
        found = Counted(now_ms)
        if len(group) <= MAX_GROUP_CHARACTERS:  # longer ones name no group, and may take any memory
            if len(self._all) >= MOST_COUNTED:
                del self._all[next(iter(self._all))]
            self._all[topic, group] = found
        return found

    def work(self, now_ms: int) -> None:
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + SAMPLE_MS
        for key, counted in list(self._all.items()):
            if counted.sample(now_ms):
                self._all[key] = self._all.pop(key)

    def tps(self, topic: str, group: str) -> float:
        """How many messages a second the group has got of the topic in the last minute."""
        counted = self.get(topic, group)
        return counted.message_rate.within(60) / 60 if counted else 0.0
