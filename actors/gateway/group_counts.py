"""What groups have got of topics and given back, lately, and where they pull: by clients of
RocketMQ's protocol.

There are any number of groups and topics, so those are forgotten that have been quiet the longest.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.actors.gateway.rates import SAMPLE_MS, Rate
from penstock.shared.names import MAX_GROUP_CHARACTERS

# Topics by their groups that are counted at once.
MOST_COUNTED = 1000
# Of which it is known where they pull. Those that are forgotten count as pulling where they commit.
MOST_PULLED = 10_000
# An operator asks of the last minute, hour and day. [StatsItem's samplings]
_FINE, _COARSE_MS = 14, 600_000


class Counted:
    """Of one topic and one group."""

    __slots__ = ("back", "back_rate", "bytes", "message_rate", "messages", "size_rate")

    def __init__(self, now_ms: int) -> None:
        self.messages = self.bytes = self.back = 0
        self.message_rate = Rate(lambda: self.messages, now_ms, _FINE, _COARSE_MS)
        self.size_rate = Rate(lambda: self.bytes, now_ms, _FINE, _COARSE_MS)
        self.back_rate = Rate(lambda: self.back, now_ms, _FINE, _COARSE_MS)

    def sample(self, now_ms: int) -> bool:
        """Whether there was anything since the last time."""
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
        """A pull has been answered, or held, by which the next one begins at an offset. Each pull
        comes by here, and is of a group whose name has been checked."""
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
        """An operator has set the group's offsets: where it pulled before is nothing it has."""
        found = self._pulled.get((topic, group), {})
        for queue_id in queue_ids:
            found.pop(queue_id, None)

    def _begin(self, topic: str, group: str, now_ms: int) -> Counted:
        found = Counted(now_ms)
        if len(group) <= MAX_GROUP_CHARACTERS:  # else it is no group, and may take any memory
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
