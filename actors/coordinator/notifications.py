"""Telling members that their group has changed: each one once, however much has changed.

    members or queues of topics have changed      all members that know an older version
    a queue has come free                         those that asked for one of its topic in vain
    an operator has set an offset                 who had the queue, at once

Changes that come close together are told together, and the more groups change, the longer their
news is gathered: each piece makes all of a group's members join and claim again. What a member
does not read is dropped by ZeroMQ: its heartbeat brings the same. It returns what is to be sent,
and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.actors.coordinator.claims import Queue
from penstock.actors.coordinator.membership import Member, Membership
from penstock.shared.wire.group_messages import Changed, HeldClaim

# After telling a group of a change the next one waits for this long.
GATHER_MS = 200
# A change waits a ms for each four changes of the last second, up to the second number; another one
# of the group begins its time again, up to that number after the first.
CHANGES_PER_MS, MOST_HELD_MS = 4, 1000
WINDOW_MS = 1000


class Notifications:
    """What members have not been told yet."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._freed: dict[str, set[str]] = {}
        self._resets: list[tuple[str, str, HeldClaim]] = []
        # groups that have changed and are not told yet: since when, and from when on they may be
        self._late: dict[str, tuple[int, int]] = {}
        # changes in this window of time, and in the one before it
        self._changes = self._changes_before = self._window_ms = 0

    @property
    def waits(self) -> bool:
        """Whether there will soon be something to tell."""
        return bool(self._late)

    def freed(self, group: str, queues: Iterable[Queue]) -> None:
        """These queues are nobody's."""
        topics = {topic for topic, _ in queues}
        if topics:
            self._freed.setdefault(group, set()).update(topics)

    def reset(self, group: str, owner: str, held: HeldClaim) -> None:
        """An operator has set an offset; the owner's claim is gone."""
        self._resets.append((group, owner, held))

    def changed(self, group: str, now_ms: int) -> None:
        """The group has another version."""
        if (passed_ms := now_ms - self._window_ms) >= WINDOW_MS:
            self._changes_before = self._changes if passed_ms < 2 * WINDOW_MS else 0
            self._changes, self._window_ms = 0, now_ms
        self._changes += 1
        held_ms = max(self._changes, self._changes_before) // CHANGES_PER_MS
        since_ms, _ = self._late.get(group, (now_ms, 0))
        until_ms = min(now_ms + held_ms, since_ms + MOST_HELD_MS)
        self._late[group] = since_ms, until_ms

    def due(self, now_ms: int) -> Iterator[tuple[bytes, Changed]]:
        """(peer, message) of all that is to be told now."""
        yield from self._told_of_resets()
        freed, self._freed = self._freed, {}
        woken: set[Member] = set()
        for name, topics in freed.items():
            group = self._members.groups.get(name)
            for member in group.members.values() if group else ():
                if member.waits_for & topics:
                    member.waits_for -= topics
                    woken.add(member)
        for name, (_, until_ms) in list(self._late.items()):
            group = self._members.groups.get(name)
            if group is not None and now_ms < max(group.tell_ms, until_ms):
                continue
            del self._late[name]
            if group is None:
                continue
            unaware = [m for m in group.members.values() if m.told_version < group.version]
            if unaware:
                group.tell_ms = now_ms + GATHER_MS
                woken.update(unaware)
        for member in woken:
            member.told_version = member.group.version
            if member.peer:
                yield member.peer, Changed(0, member.group.name)

    def _told_of_resets(self) -> Iterator[tuple[bytes, Changed]]:
        resets, self._resets = self._resets, []
        told: dict[tuple[str, str], list[HeldClaim]] = {}
        for group, owner, held in resets:
            told.setdefault((group, owner), []).append(held)
        for (group, owner), claims in told.items():
            member = self._members.member(group, owner)
            if member is not None and member.peer:
                yield member.peer, Changed(0, group, tuple(claims))
