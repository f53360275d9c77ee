"""Telling members that their group has changed: each one once, however much has changed.

    members or queues of topics have changed      all members that know an older version
    somebody has joined                           the answer, which names all that came with it
    a queue has come free                         those that asked for one of its topic in vain
    an operator has set an offset                 the queue's owner, at once

Changes that come close together are told together. The more groups change, the longer a group's
news is gathered, because each piece of news has its members divide, release and claim. A joining
member gets its answer with the others' news, so that when many join at once each claims only what
will stay its own. ZeroMQ drops what a member does not read: its heartbeat brings the same news.
This file returns what is to be sent, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.actors.coordinator.claims import Queue
from penstock.actors.coordinator.membership import Member, Membership
from penstock.shared.wire.group_messages import Changed, HeldClaim, TopicQueues

# After a group is told of a change, the next news waits this long.
GATHER_MS = 200
# A change waits 1 ms for each four changes of the last second. Another change of the group begins
# this time again, but the wait ends at most the second number of ms after the first change.
CHANGES_PER_MS, MOST_HELD_MS = 4, 1000
WINDOW_MS = 1000
# A member that was told this often and has said nothing since may not read at all, and unread news
# takes memory.
MOST_UNHEARD = 16


class Joining(NamedTuple):
    """A new member's request that has no answer yet; `lost` are claims that it does not have."""

    member: Member
    request: int
    lost: tuple[HeldClaim, ...]


class Notifications:
    """The news that members have not been told yet."""

    def __init__(self, members: Membership, queues: Callable[[str], int]) -> None:
        """`queues` says how many queues a topic has to read."""
        self._members, self._queues = members, queues
        self._joining: dict[str, list[Joining]] = {}
        self._freed: dict[str, set[str]] = {}
        self._resets: list[tuple[str, str, HeldClaim]] = []
        # group with untold changes -> when the first came, and the time before which it waits
        self._late: dict[str, tuple[int, int]] = {}
        # changes in this window of time, and in the one before it
        self._changes = self._changes_before = self._window_ms = 0

    @property
    def waits(self) -> bool:
        """Whether there will soon be something to tell."""
        return bool(self._late or self._joining)

    def freed(self, group: str, queues: Iterable[Queue]) -> None:
        """These queues are nobody's."""
        topics = {topic for topic, _ in queues}
        if topics:
            self._freed.setdefault(group, set()).update(topics)

    def reset(self, group: str, owner: str, held: HeldClaim) -> None:
        """An operator has set an offset; the owner's claim is gone."""
        self._resets.append((group, owner, held))

    def changed(self, group: str, now_ms: int) -> None:
        """The group has a new version."""
        if (passed_ms := now_ms - self._window_ms) >= WINDOW_MS:
            self._changes_before = self._changes if passed_ms < 2 * WINDOW_MS else 0
            self._changes, self._window_ms = 0, now_ms
        self._changes += 1
        held_ms = max(self._changes, self._changes_before) // CHANGES_PER_MS
        since_ms, _ = self._late.get(group, (now_ms, 0))
        until_ms = min(now_ms + held_ms, since_ms + MOST_HELD_MS)
        self._late[group] = since_ms, until_ms

    def joined(self, joining: Joining) -> None:
        """A member has joined. `welcomed` returns it when it is to be answered."""
        self._joining.setdefault(joining.member.group.name, []).append(joining)

    def welcomed(self, now_ms: int, everyone: bool) -> Iterator[Joining]:
        """Joins to answer now: `everyone`, or those whose groups wait for no more changes."""
        for name in list(self._joining):
            if everyone or now_ms >= self._late.get(name, (0, 0))[1]:
                for each in self._joining.pop(name):
                    if self._members.member(name, each.member.client_id) is each.member:
                        each.member.told_version = each.member.group.version
                        yield each

    def due(self, now_ms: int) -> Iterator[tuple[list[bytes], Changed]]:
        """(peers, message) of everything that is to be told now."""
        yield from self._told_of_resets()
        freed, self._freed = self._freed, {}
        woken: dict[str, dict[Member, None]] = {}
        for name, topics in freed.items():
            group = self._members.groups.get(name)
            for member in group.members.values() if group else ():
                if member.waits_for & topics and _hears(member):
                    member.waits_for -= topics
                    woken.setdefault(name, {})[member] = None
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
                woken.setdefault(name, {}).update(dict.fromkeys(unaware))
        for members in woken.values():
            yield from self._told([*members])

    def _told(self, members: Sequence[Member]) -> Iterator[tuple[list[bytes], Changed]]:
        """The news of one group; members that have the same topics get the same message."""
        group = members[0].group
        peers: dict[tuple[str, ...], set[bytes]] = {}
        for member in members:
            if _hears(member):
                member.told_version = group.version
                member.told_unheard += 1
                topics = tuple([each.topic for each in member.row.subscriptions])
                peers.setdefault(topics, set()).add(member.peer)
        for topics, told in peers.items():
            found = tuple([TopicQueues(topic, self._queues(topic)) for topic in topics])
            yield sorted(told), Changed(0, group.name, (), group.version, group.ids, found)

    def _told_of_resets(self) -> Iterator[tuple[list[bytes], Changed]]:
        resets, self._resets = self._resets, []
        told: dict[tuple[str, str], list[HeldClaim]] = {}
        for group, owner, held in resets:
            told.setdefault((group, owner), []).append(held)
        for (group, owner), claims in told.items():
            member = self._members.member(group, owner)
            if member is not None and member.peer:
                yield [member.peer], Changed(0, group, tuple(claims))


def _hears(member: Member) -> bool:
    """Whether it gets news: it has a connection, and has said something lately."""
    return bool(member.peer) and member.told_unheard < MOST_UNHEARD
