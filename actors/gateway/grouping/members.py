"""RocketMQ's clients as members of Penstock's groups, and the claims that the gateway has for them.

RocketMQ's members divide queues among themselves and tell nobody. Here a queue is read with a
claim, so the gateway claims each queue that a member locks, or whose offset it asks for, and gives
the claim back when the member goes on without the queue. That can be seen: after a change of its
group a member rebalances, and from then on neither pulls from that queue nor commits in it. Once it
has rebalanced its held pulls are answered, so that it pulls at once from the queues that it keeps.
No sockets; times are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.actors.gateway.connecting.connection import Connection
from penstock.remoting.bodies import PASSIVELY, ConsumerBody
from penstock.shared.errors import InvalidArgument
from penstock.shared.names import check_group
from penstock.shared.wire.group_messages import (
    MAX_CLAIMS,
    HeldClaim,
    Join,
    Model,
    StartRule,
    SubscriptionData,
)

Queue = tuple[str, int]  # topic, queue id

SESSION_MS = 30_000
MAX_CLIENT_CHARACTERS = 255
# A member that keeps a queue commits in it every 5 s, if not sooner.
PROBATION_MS = 7000
# A pull or commit this soon after a change may be a member's last one in a queue.
LAST_WORD_MS = 2000
# How long a lock outlives its last renewal; clients renew theirs every 20 s.
# [RebalanceLockManager's REBALANCE_LOCK_MAX_LIVE_TIME]
LOCKED_MS = 60_000


class Claim:
    """A queue that a member has, and when it showed that it does."""

    __slots__ = ("committed_ms", "epoch", "pulled_ms")

    def __init__(self, epoch: int, now_ms: int) -> None:
        self.epoch = epoch
        self.pulled_ms, self.committed_ms = now_ms, 0

    def is_kept(self, changed_ms: int) -> bool:
        """Whether its member has used it since it rebalanced after a change."""
        return max(self.pulled_ms, self.committed_ms) > changed_ms + LAST_WORD_MS

    def is_left(self, changed_ms: int) -> bool:
        """Whether its member seems to be done with it: it has committed after a change, and not
        pulled."""
        return self.committed_ms > changed_ms >= self.pulled_ms


class Member:
    """One client id in one group. Several clients may have it, as Java's that broadcast on one
    host."""

    def __init__(self, group: str, client_id: str) -> None:
        self.group, self.client_id = group, client_id
        # those that its heartbeats come by, the one of the newest heartbeat last
        self.connections: dict[Connection, None] = {}
        self.model: Model = "clustering"
        self.start: StartRule = "last"
        self.consume_type = PASSIVELY
        self.orderly = False
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.claims: dict[Queue, Claim] = {}
        # queues whose offset an operator has set: the next pull is told so
        self.moved: set[Queue] = set()
        # when a heartbeat named it last
        self.heard_ms = 0
        # when the coordinator is to hear of it again; and when it leaves, unless it comes back: 0
        # while it stays
        self.join_ms = self.leave_ms = 0
        # when it locked queues last
        self.locked_ms = 0
        self.retry_max_times, self.retry_queue_nums = 16, 1

    @property
    def connection(self) -> Connection | None:
        """The one that its last heartbeat came by; None while it is away."""
        return next(reversed(self.connections), None)

    @property
    def name(self) -> tuple[str, str]:
        """The key by which only the last of its joins and leaves counts: no older join brings it
        back."""
        return self.group, self.client_id

    def take(self, said: ConsumerBody, now_ms: int) -> None:
        """Take over what a heartbeat says."""
        self.heard_ms = now_ms
        self.model, self.start = said.model, said.start
        self.consume_type = said.consume_type_name
        self.subscriptions = {
            each.topic: SubscriptionData(
                each.topic,
                each.expression_type or "TAG",
                each.sub_string or "*",
                max(0, each.sub_version),
            )
            for each in said.subscription_data_set
        }

    def has_locks(self, now_ms: int) -> bool:
        """Whether it has queues by locks that have not expired."""
        return self.orderly and bool(self.claims) and now_ms < self.locked_ms + LOCKED_MS

    def locks(self, now_ms: int) -> None:
        """It has its queues from now on for as long as locks last, even while it is away."""
        self.locked_ms = now_ms
        if not self.connections:  # it is away
            self.leave_ms = now_ms + LOCKED_MS

    def join(self, number: int, run_id: str) -> Join:
        """The member as it joins."""
        held = [HeldClaim(*queue, claim.epoch) for queue, claim in self.claims.items()]
        return Join(
            number,
            self.group,
            self.client_id,
            tuple(self.subscriptions.values()),
            SESSION_MS,
            self.model,
            self.start,
            orderly=self.orderly,
            held=tuple(held[:MAX_CLAIMS]),
            run=run_id,
            # operators' tools find a group by the route of this topic, even one that broadcasts
            retry_topic=True,
            carried=True,
        )


def check_client_id(client_id: str) -> None:
    """Raises InvalidArgument for an id that no actor takes, however often it is sent."""
    if not 0 < len(client_id) <= MAX_CLIENT_CHARACTERS:
        what = f"a client's id has 1 to {MAX_CLIENT_CHARACTERS} characters"
        raise InvalidArgument(what, repr(client_id[:80]))


class Members:
    """All members that the gateway speaks for."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Member]] = {}
        self._by_connection: dict[Connection, dict[str, Member]] = {}
        # group -> when it changed, as long as it is not known which queues its members keep
        self.changed: dict[str, int] = {}
        # those of `changed` whose members have been made to show it
        self._shown: set[str] = set()

    def __iter__(self) -> Iterator[Member]:
        for members in self._groups.values():
            yield from members.values()

    def of(self, connection: Connection, group: str) -> Member | None:
        return self._by_connection.get(connection, {}).get(group)

    def get(self, group: str, client_id: str) -> Member | None:
        return self._groups.get(group, {}).get(client_id)

    def all_of(self, group: str) -> list[Member]:
        return list(self._groups.get(group, {}).values())

    def subscriber(self, group: str, topic: str) -> Member | None:
        """The member that has the newest subscription to a topic."""
        of_topic = [each for each in self.all_of(group) if topic in each.subscriptions]
        return max(of_topic, key=lambda each: each.subscriptions[topic].version, default=None)

    def has_locks(self, group: str, now_ms: int) -> bool:
        """Whether any member of the group has."""
        return any(each.has_locks(now_ms) for each in self.all_of(group))

    def on(self, connection: Connection) -> list[Member]:
        return list(self._by_connection.get(connection, {}).values())

    def put(self, group: str, client_id: str, connection: Connection) -> Member:
        """The member, whose heartbeats come by this connection, too. Raises InvalidArgument."""
        member = self.get(group, client_id)
        if member is None:
            check_group(group)
            check_client_id(client_id)
            member = Member(group, client_id)
            self._groups.setdefault(group, {})[client_id] = member
        member.connections.pop(connection, None)
        member.connections[connection] = None
        member.leave_ms = 0
        self._by_connection.setdefault(connection, {})[group] = member
        return member

    def lost(self, connection: Connection, now_ms: int) -> list[Member]:
        """A connection has ended: returns the members that leave with it. One that has locked
        queues may be in the middle of a message, and reconnect: it keeps them meanwhile."""
        leaving = []
        for member in self.on(connection):
            self.drop(member, connection)
            if member.connections:
                continue
            if member.has_locks(now_ms) and not member.leave_ms:
                member.leave_ms = member.locked_ms + LOCKED_MS
            else:
                leaving.append(member)
        return leaving

    def remove(self, member: Member) -> None:
        group = self._groups.get(member.group, {})
        if group.pop(member.client_id, None) is not None and not group:
            del self._groups[member.group]
            self.changed.pop(member.group, None)
            self._shown.discard(member.group)
        for connection in list(member.connections):
            self.drop(member, connection)

    def drop(self, member: Member, connection: Connection) -> None:
        """A member's heartbeats do not come by this connection any more."""
        member.connections.pop(connection, None)
        there = self._by_connection.get(connection, {})
        if there.get(member.group) is member:
            del there[member.group]
        if not there:
            self._by_connection.pop(connection, None)

    def owner(self, group: str, queue: Queue) -> Member | None:
        """Which member of this gateway has a queue."""
        for member in self._groups.get(group, {}).values():
            if queue in member.claims:
                return member
        return None

    def change(self, group: str, now_ms: int) -> None:
        """A group's members or queues have changed."""
        self.changed[group] = now_ms
        self._shown.discard(group)

    def to_be_shown(self, now_ms: int) -> list[str]:
        """Groups whose members have rebalanced by now: from now on they pull only queues that they
        keep."""
        found = [
            group
            for group, changed_ms in self.changed.items()
            if group not in self._shown and now_ms - changed_ms > LAST_WORD_MS
        ]
        self._shown.update(found)
        return found

    def left_over(self, now_ms: int) -> Iterable[tuple[Member, Queue]]:
        """Queues that their members have not used since the last change."""
        found = []
        for group, changed_ms in list(self.changed.items()):
            if now_ms - changed_ms < PROBATION_MS:
                continue
            del self.changed[group]
            self._shown.discard(group)
            for member in self.all_of(group):
                for queue, claim in member.claims.items():
                    if not claim.is_kept(changed_ms):
                        found.append((member, queue))
        return found
