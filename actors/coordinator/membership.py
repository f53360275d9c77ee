"""The members of each group, and whether they are alive. No I/O; the time is passed in.

    joins and repeats it       a member, until it is silent for longer than its session
    its connection is gone     a member for GRACE_MS more: by then it may be back
    its gateway is gone        a member for CARRIED_GRACE_MS more: its client lives, as a rule
    leaves                     not a member any more, at once

A group's `version` changes with its members and with the queues of its topics. Members that know an
older one are told: see notifications.py.

An orderly member that falls silent is removed after its session, but keeps its queues until
ORDERLY_KEEP_MS after it was last heard: it may be frozen in the middle of a message, and nobody may
handle the next one of that key meanwhile. The journal has that time, so that several coordinators
in a row do not each begin it again. The end of its connection shows that its process has ended, but
only if it was not silent before: a frozen process may be killed later. For a carried member it
shows nothing: the connection is the gateway's, and the client lives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from penstock.shared.errors import InvalidArgument
from penstock.shared.progress.group_journal import Entry, Gone, MemberRow
from penstock.shared.wire.group_messages import Join, Model, SubscriptionData

GRACE_MS = 500
# For carried members: until their gateway is replaced and their clients are back. Clients wait 1 to
# 3 s between two tries, and each change of the group until then has them rebalance.
CARRIED_GRACE_MS = 10_000
# A member of the previous coordinator has this many heartbeats to show up: a live one sees its
# connection end, and joins by a new one.
HEARTBEATS_TO_RETURN = 2
# [RebalanceLockManager's REBALANCE_LOCK_MAX_LIVE_TIME]
ORDERLY_KEEP_MS = 60_000
# Between two searches for silent members.
LOOK_MS = 250
_log = logging.getLogger(__name__)


class Member:
    """One member as it joined, and when it was heard."""

    __slots__ = (
        "address", "client_id", "connection", "gone_ms", "group", "instance", "is_parting", "peer",
        "row", "seen_ms", "silent_after_ms", "told_unheard", "told_version", "waits_for",
    )  # fmt: skip

    def __init__(self, group: Group, row: MemberRow, now_ms: int) -> None:
        self.group, self.row = group, row
        self.client_id = row.client_id
        self.peer = b""
        self.address = ""
        self.is_parting = False
        self.instance = ""  # until the member is heard, or if it sends none
        self.connection = -1
        self.seen_ms = now_ms
        self.silent_after_ms = row.session_timeout_ms
        # when its connection was found to be gone; -1 if it is there
        self.gone_ms = -1
        self.told_version = 0
        # how often it was told news since it was last heard
        self.told_unheard = 0
        # topics of which it asked for a queue in vain
        self.waits_for: set[str] = set()

    def is_anothers(self, peer: bytes) -> bool:
        """Whether the member's process is connected by another connection than this one."""
        return self.instance != "" and self.connection >= 0 and self.peer != peer

    @property
    def wants(self) -> list[str]:
        """Its subscriptions as text."""
        return sorted(f"{each.topic} ({each.expression})" for each in self.row.subscriptions)


class Group:
    """The members of a group."""

    __slots__ = ("ids", "is_warned", "members", "name", "tell_ms", "version")

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        # A start that no earlier life of the group has had: a time is one.
        self.version = version
        self.members: dict[str, Member] = {}
        # client ids of the members that divide the queues
        self.ids: tuple[str, ...] = ()
        # the group is not told of another change before this time
        self.tell_ms = 0
        # whether the broker's log has a warning that its members subscribe to different things
        self.is_warned = False


class Membership:
    """All groups that have members."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.count = 0
        # members whose connection is gone; and the members of each connection
        self._gone: set[Member] = set()
        self._by_connection: dict[int, set[Member]] = {}
        # (group, client id) of silent orderly members -> time until which they keep their queues
        self.kept: dict[tuple[str, str], int] = {}
        self._look_ms = 0
        self._changed: set[str] = set()
        self._changes: list[Entry] = []

    def member(self, group: str, client: str) -> Member | None:
        found = self.groups.get(group)
        return None if found is None else found.members.get(client)

    def join(self, join: Join, peer: bytes, connection: int, now_ms: int, version: int) -> Member:
        """A new member, or one that is heard again. `version` is for a group that is new.

        `connection` is -1 if it is unknown or has ended already. Raises InvalidArgument if another
        live process has the name: both would read the member's queues.
        """
        known = self.member(join.group, join.client_id)
        if known is not None and known.connection >= 0 and _differ(known.instance, join.instance):
            raise InvalidArgument(
                "another process is this member of the group",
                f"{join.client_id} of {join.group}" + (known.address and f", {known.address}"),
                "give each its own client_id; one that has died is forgotten after its session",
            )
        row = MemberRow(
            join.group, join.client_id, join.subscriptions, join.session_timeout_ms,
            join.model, join.start, join.start_timestamp_ms, join.orderly, carried=join.carried,
        )  # fmt: skip
        wants_other = known is None or known.row.subscriptions != row.subscriptions
        member = self._add(row, now_ms, version)
        if member.is_parting != join.parting:
            member.is_parting = join.parting
            self._count(member.group)
        if member.row != row:
            if _topics(member.row) != _topics(row):
                self.change(member.group)
            member.row = row
            self._changes.append(row)
        if wants_other:
            _compare(member)
        self.heard(member, now_ms, peer)
        member.instance = join.instance
        member.silent_after_ms = row.session_timeout_ms
        if member.peer != peer or member.connection != connection:
            self._connect(member, peer, connection)
        if connection < 0 and member.gone_ms < 0:
            self._lose(member, now_ms)  # this frame is the last of a connection that has ended
        return member

    def restore(self, row: MemberRow, now_ms: int, silent_after_ms: int, version: int) -> None:
        """A member of the previous coordinator; it is removed unless it shows up in time."""
        member = self._add(row, now_ms, version)
        # the previous coordinator may have heard it until it died, which was before now
        member.row = replace(row, unheard_ms=row.unheard_ms or now_ms)
        member.silent_after_ms = silent_after_ms

    def keep(self, group: str, client: str, until_ms: int) -> None:
        """A member that has gone keeps its queues until then."""
        self.kept[group, client] = until_ms
        self._changes.append(Gone(group, client, until_ms))

    def _add(self, row: MemberRow, now_ms: int, version: int) -> Member:
        group = self.groups.get(row.group)
        if group is None:
            group = self.groups[row.group] = Group(row.group, version)
        member = group.members.get(row.client_id)
        if member is None:
            member = group.members[row.client_id] = Member(group, row, now_ms)
            self._count(group)
            self.count += 1
            self.kept.pop((row.group, row.client_id), None)
            self._changes.append(row)
        return member

    def _count(self, group: Group) -> None:
        """The set of members that divide the queues has changed."""
        group.ids = tuple(sorted([n for n, each in group.members.items() if not each.is_parting]))
        self.change(group)

    def heard(self, member: Member, now_ms: int, peer: bytes) -> None:
        """Something from the member has come, by the connection that `peer` names.

        Late frames of an ended connection bring nobody back: ZeroMQ reports the end before they are
        read, and would not report it a second time.
        """
        if member.gone_ms >= 0 and member.peer == peer:
            return
        member.seen_ms, member.told_unheard = now_ms, 0
        if member.row.unheard_ms:
            member.row = replace(member.row, unheard_ms=0)
            self._changes.append(member.row)
        if member.gone_ms >= 0:
            member.gone_ms = -1
            self._gone.discard(member)

    def remove(self, member: Member) -> None:
        group = member.group
        del group.members[member.client_id]
        self._count(group)
        if not group.members:
            del self.groups[group.name]
        self.count -= 1
        self._gone.discard(member)
        self._disconnect(member)
        self._changes.append(Gone(group.name, member.client_id))

    # --- connections ---

    def _connect(self, member: Member, peer: bytes, connection: int) -> None:
        self._disconnect(member)
        member.peer, member.connection = peer, connection
        if connection >= 0:
            self._by_connection.setdefault(connection, set()).add(member)

    def _disconnect(self, member: Member) -> None:
        there = self._by_connection.get(member.connection)
        if there is not None:
            there.discard(member)
            if not there:
                del self._by_connection[member.connection]

    def lost(self, connection: int, now_ms: int) -> None:
        """A connection is gone."""
        for member in self._by_connection.pop(connection, set()):
            self._lose(member, now_ms)

    def _lose(self, member: Member, now_ms: int) -> None:
        member.connection = -1
        member.gone_ms = now_ms
        self._gone.add(member)

    # --- who is dead ---

    def dead(self, now_ms: int) -> list[Member]:
        """Dead members. The caller removes them, and frees their queues or keeps them for the time
        that `keep_until` says."""
        found = {member for member in self._gone if now_ms - member.gone_ms >= _grace_ms(member)}
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            found |= {
                member
                for group in self.groups.values()
                for member in group.members.values()
                if now_ms - member.seen_ms > member.silent_after_ms
            }
        return sorted(found, key=lambda each: (each.group.name, each.client_id))

    @staticmethod
    def keep_until(member: Member) -> int:
        """Until when nobody else may have a dead member's queues; 0 if they are free at once."""
        was_alive = 0 <= member.gone_ms - member.seen_ms <= member.row.session_timeout_ms
        has_ended = was_alive and not member.row.carried
        if has_ended or not member.row.orderly:
            return 0
        return (member.row.unheard_ms or member.seen_ms) + ORDERLY_KEEP_MS

    def keeps_over(self, now_ms: int) -> list[tuple[str, str]]:
        """Silent members that may no longer keep their queues."""
        over = [owner for owner, until_ms in self.kept.items() if now_ms >= until_ms]
        for owner in over:
            del self.kept[owner]
        return over

    # --- looking ---

    def subscribed(self, topics: Iterable[str]) -> Iterator[Group]:
        """Groups with a member that has one of these topics."""
        wanted = set(topics)
        for group in self.groups.values():
            if any(wanted & _topics(member.row) for member in group.members.values()):
                yield group

    def model(self, group: str, but: str) -> Model | None:
        """How the other members of a group consume."""
        found = self.groups.get(group)
        for client, member in found.members.items() if found else ():
            if client != but:
                return member.row.model
        return None

    def change(self, group: Group) -> None:
        """The members of the group, or the queues of its topics, have changed."""
        group.version += 1
        self._changed.add(group.name)

    def take_changed(self) -> set[str]:
        """Groups that have changed since the last call."""
        found, self._changed = self._changed, set()
        return found

    def changes(self) -> list[Entry]:
        """Members that have come or gone since the last call."""
        found, self._changes = self._changes, []
        return found

    def rows(self) -> Iterator[MemberRow | Gone]:
        """Members, and those that have gone but keep their queues."""
        for group in self.groups.values():
            for member in group.members.values():
                yield member.row
        for (name, client), until_ms in self.kept.items():
            yield Gone(name, client, until_ms)


def return_ms(row: MemberRow, heartbeat_ms: int) -> int:
    """How long a member of the previous coordinator has to show up, which it was told to do every
    `heartbeat_ms`; that is 0 if unknown."""
    # an orderly one may be in the middle of a message
    if row.orderly or not heartbeat_ms:
        return row.session_timeout_ms
    # the gateway of a carried one may have died too
    least_ms = CARRIED_GRACE_MS if row.carried else 0
    return min(row.session_timeout_ms, max(least_ms, HEARTBEATS_TO_RETURN * heartbeat_ms))


def _differ(instance: str, other: str) -> bool:
    """Whether these are two processes. One that a gateway speaks for has no instance."""
    return "" not in (instance, other) and instance != other


def _compare(member: Member) -> None:
    """Warn, once in its group's life, if members want different things: each queue is divided
    among all of them, as RocketMQ's clients do it."""
    group = member.group
    # comparing with one is enough: the others want the same, or the warning is out
    other = next((each for each in group.members.values() if each is not member), member)
    if group.is_warned or other.wants == member.wants:
        return
    group.is_warned = True
    _log.warning(
        "group %s: its members subscribe to different things, %s to %.200s and %s to %.200s; what "
        "is in a queue whose member does not want it reaches nobody",
        *(group.name, other.client_id, ", ".join(other.wants)),
        *(member.client_id, ", ".join(member.wants)),
    )


def _grace_ms(member: Member) -> int:
    return CARRIED_GRACE_MS if member.row.carried else GRACE_MS


def _topics(row: MemberRow) -> set[str]:
    return {each.topic for each in row.subscriptions}


def size_of(subscriptions: Iterable[SubscriptionData]) -> int:
    """Characters of a member's subscriptions: the cost of remembering them."""
    return sum(
        len(each.topic) + len(each.expression_type) + len(each.expression) for each in subscriptions
    )
