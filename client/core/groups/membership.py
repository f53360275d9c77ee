"""One member and the coordinator: bytes in, bytes out, and which queues the member has. Pure.

    Join -> Joined, Changed -> divide -> Claim  -> Claimed      `claims` has it
    Beat -> Beaten                   \\-> revoke -> Release      once nothing of it is in hand

Each member divides the queues for itself; a claim says who really has a queue. An unanswered
request is sent again: at once by the next connection if one has ended, and otherwise late, because
the coordinator may be busy. Any request may arrive twice, even after a later one: a released claim
stays over, and a claim granted to a second copy is given up. A member goes on working without a
coordinator for as long as its claims are known to hold: `lease_ends_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from penstock.client.core import log
from penstock.client.core.aim import Aim
from penstock.client.core.groups.asked import NOT_SENT_MS, REPEAT_MS, AllAsked, Asked
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.strategies import part_of
from penstock.shared.errors import NoPermission, PenstockError
from penstock.shared.wire.group_messages import (
    MAX_CLAIMS,
    Beat,
    Beaten,
    Changed,
    Claim,
    Claimed,
    Commit,
    Committed,
    GroupRequest,
    HeldClaim,
    Join,
    Joined,
    Leave,
    Left,
    QueueCommit,
    Release,
    Released,
    decode_group_answer,
)
from penstock.shared.wire.messages import Refused, WireMessage, encode, error_from_refusal

# How soon a queue that another member has is claimed again if the coordinator, which says when it
# becomes free, is silent. The pause doubles each time, up to the second number.
CLAIM_AGAIN_MS = 500
MAX_CLAIM_AGAIN_MS = 2000
# How long an orderly member works on without an answer. [RocketMQ's ProcessQueue.isLockExpired]
ORDERLY_LEASE_MS = 30_000
UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
# How often a member whose group is switched off asks whether it is on again.
OFF_AGAIN_MS = 1000

Queue = tuple[str, int]


class Membership:
    """One member's side of its group."""

    def __init__(self, options: MemberOptions) -> None:
        self.options = options
        self._own = options.group, options.client_id
        self.aim = Aim()
        self.joined: Joined | None = None
        # queue -> epoch of the claim
        self.claims: dict[Queue, int] = {}
        self.wanted: set[Queue] = set()
        self.assigned: Mapping[str, frozenset[int]] | None = None
        # claims granted since the last `take_gained`: queue -> offset
        self._gained: dict[Queue, int] = {}
        self._lost: list[Queue] = []
        self.refused: PenstockError | None = None
        self.is_off = False  # the group is switched off: the member gives its queues back and waits
        # `closing`: it claims nothing more, and leaves when its last handlers have ended
        self.left = self.leaving = self.closing = False
        # the others divide the queues without this member
        self._parting = False
        # claims that did not fit into the last join, and are therefore claimed once more
        self._unnamed: set[Queue] = set()
        # queue -> the epoch of the last claim that was given up
        self._given_up: dict[Queue, int] = {}
        # the answered commits of each queue
        self.committed: dict[Queue, int] = {}
        self._asked = AllAsked()
        self._join_at_ms = 0
        self._heard_ms = -1
        self._claim_at_ms = 0
        self._claim_pause_ms = CLAIM_AGAIN_MS
        # the coordinator knows this member; and by this connection, so that a heartbeat is enough
        self._known, self._beats = True, False

    # --- what the member has ---

    def take_gained(self) -> dict[Queue, int]:
        """Queues that the member has gained, and where to go on in each."""
        gained, self._gained = self._gained, {}
        return gained

    def take_lost(self) -> list[Queue]:
        """Queues that another member has, or whose offset was set: dropped without a commit."""
        lost, self._lost = self._lost, []
        return lost

    @property
    def revoked(self) -> list[Queue]:
        """Queues that the member still holds but that belong to others now: release them soon."""
        return [queue for queue in self.claims if queue not in self.wanted]

    @property
    def lease_ends_ms(self) -> int:
        """Until when no other member can have been given these queues; -1 before the first join."""
        if self._heard_ms < 0:
            return -1
        options = self.options
        lease_ms = ORDERLY_LEASE_MS if options.orderly else options.session_timeout_ms
        return self._heard_ms + lease_ms

    # --- what it asks ---

    def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Send how far queues are done. Queues that are not the member's are left out."""
        if (entries := self._entries(offsets)) and not self._asked.has(Commit):
            self._asked.ask(Commit, *self._own, entries[:MAX_CLAIMS])

    def begin_again(self, queue: Queue) -> None:
        """The member goes on elsewhere in this queue: answers to earlier commits do not count."""
        self.committed.pop(queue, None)
        self._asked.unsay(queue)

    def assign(self, queues: Mapping[str, frozenset[int]] | None) -> None:
        """Take these queues of these topics instead of a share of them; None: divide again."""
        self.assigned = queues
        if self.joined is not None:
            self._divide(self.joined)
        self._claim_at_ms = 0

    def release(self, offsets: Mapping[Queue, int]) -> None:
        """Commit these offsets (-1: no offset) and give the queues up."""
        entries = self._entries(offsets)
        for start in range(0, len(entries), MAX_CLAIMS):
            self._asked.ask(Release, *self._own, entries[start : start + MAX_CLAIMS])
        for each in entries:
            name = each.topic, each.queue_id
            self.claims.pop(name, None)
            self._given_up[name] = each.epoch

    def part(self) -> None:
        """Have the others divide the queues without this member. It gives up the rest of its queues
        when its last handlers have ended, which may take long, and leaves only then."""
        if not self._parting:
            self._parting = True
            self._must_join()

    def leave(self) -> None:
        """Leave, after all releases. `left` says when that is answered."""
        self.leaving = True
        self._asked.keep(Commit, Release)
        self._asked.ask(Leave, *self._own)

    def has_asked(self, *kinds: type[WireMessage]) -> bool:
        """Whether a request of these kinds has no answer yet."""
        return self._asked.has(*kinds)

    def _entries(self, offsets: Mapping[Queue, int]) -> tuple[QueueCommit, ...]:
        own = [each for each in offsets.items() if each[0] in self.claims]
        return tuple([QueueCommit(*queue, offset, self.claims[queue]) for queue, offset in own])

    def outgoing(self, now_ms: int) -> list[tuple[bytes, ...]]:
        """What is to be sent now."""
        if not self.leaving:
            self._join_if_due(now_ms)
            if now_ms >= self._claim_at_ms and not self._asked.has(Claim):
                self._claim(now_ms)
        out: list[tuple[bytes, ...]] = []
        for asked in self._asked:
            if now_ms < asked.due_ms or not self._may_ask(asked):
                continue
            if isinstance(asked.request, Join) and asked.request.run != self.aim.run:
                asked.request = replace(asked.request, run=self.aim.run)  # the broker has moved
            asked.sent(now_ms)
            out.append((encode(asked.request),))
        return out

    def _may_ask(self, asked: Asked) -> bool:
        """Requests that a coordinator without this member would refuse wait for the join."""
        return self._known or isinstance(asked.request, Join | Leave)

    def connection_lost(self) -> None:
        """The coordinator soon takes a member whose connection has ended for gone. So this member
        joins by the next connection, and repeats what it asked by the lost one."""
        self._must_join()
        self._asked.are_due_at(-1)

    def _must_join(self) -> None:
        """Send a join next, because a heartbeat is not enough."""
        self._beats, self._join_at_ms = False, 0
        self._asked.drop(Beat)

    def not_connected(self, now_ms: int) -> None:
        """The requests could not be sent: try again soon."""
        self.aim.away = True
        self._asked.are_due_at(now_ms + NOT_SENT_MS)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in or is asked."""
        if self.left:
            return REPEAT_MS
        due = [each.due_ms for each in self._asked if self._may_ask(each)]
        if not self.leaving and not self._asked.has(Join, Beat):
            due.append(self._join_at_ms)
        if not self.leaving and self._lacks and not self._asked.has(Claim):
            due.append(self._claim_at_ms)
        return max(0, min(due, default=now_ms + REPEAT_MS) - now_ms)

    def _join_if_due(self, now_ms: int) -> None:
        if now_ms < self._join_at_ms or self._asked.has(Join, Beat):
            return
        options = self.options
        self._join_at_ms = now_ms + options.session_timeout_ms // 2
        if self._beats and self.joined is not None:
            self._asked.ask(Beat, *self._own, self.joined.version, len(self.claims))
            return
        held = tuple([HeldClaim(*queue, epoch) for queue, epoch in self.claims.items()])
        self._unnamed = set(list(self.claims)[MAX_CLAIMS:])
        self._asked.ask(
            Join, *self._own, options.subscriptions, options.session_timeout_ms, options.model,
            options.start, options.start_timestamp_ms, options.orderly, held[:MAX_CLAIMS],
            self.aim.run, parting=self._parting, instance=options.instance,
        )  # fmt: skip

    @property
    def _lacks(self) -> set[Queue]:
        """Queues to be claimed. A member that broadcasts needs no claims."""
        if self.options.model == "broadcasting" or self.closing:
            return set()
        return self.wanted.difference(self.claims) | (self._unnamed & self.wanted)

    def _claim(self, now_ms: int) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._lacks):
            by_topic.setdefault(topic, []).append(queue_id)
        for topic, queue_ids in by_topic.items():
            self._asked.ask(Claim, *self._own, topic, tuple(queue_ids[:MAX_CLAIMS]))
        if by_topic:
            self._claim_at_ms = now_ms + self._claim_pause_ms
            self._claim_pause_ms = min(2 * self._claim_pause_ms, MAX_CLAIM_AGAIN_MS)

    # --- what it is told ---

    def received(self, parts: Iterable[bytes | memoryview], now_ms: int) -> None:
        """Take an answer of the coordinator. Raises ProtocolError if it cannot be decoded."""
        answer = decode_group_answer(bytes(next(iter(parts))))
        if isinstance(answer, Refused):
            if self.aim.heard(answer):
                self._refuse(answer, now_ms)
            return
        self.aim.away, self.aim.elsewhere = False, None
        if isinstance(answer, Changed):
            self._take_changed(answer, now_ms)
            return
        asked = self._asked.pop(answer.request)
        if asked is None:
            if isinstance(answer, Claimed) and not self.leaving:
                self._decline(answer)
            return
        if isinstance(answer, Beaten):
            self._take_beaten(answer, asked, now_ms)
        elif isinstance(answer, Joined):
            self._take_joined(answer, asked, now_ms)
        elif isinstance(answer, Claimed):
            self._take_claimed(answer)
        elif isinstance(answer, Committed):
            self._take_committed(asked.request, answer.lost)
            self._drop(answer.lost)
        elif isinstance(answer, Released):
            self._take_committed(asked.request, answer.lost)
        elif isinstance(answer, Left):
            self.left = True

    def _refuse(self, answer: Refused, now_ms: int) -> None:
        if answer.status == UNKNOWN_MEMBER and not self.leaving:
            # the same requests go out again once the coordinator knows this member
            self._known = False
            self._must_join()
            return
        asked = self._asked.get(answer.request)
        if asked is None or self.leaving or not isinstance(asked.request, Release):
            # a refused release is repeated: until then the queues count as this member's
            self._asked.pop(answer.request)
        if asked is not None and isinstance(asked.request, Leave):
            self.left = True  # the coordinator has no such member, which is what was asked for
        elif asked is not None and not self.leaving:
            error = error_from_refusal(answer)
            runs = self.joined is not None and isinstance(asked.request, Join)
            if runs and isinstance(error, NoPermission):
                self._switch_off(error, asked, now_ms)
            else:
                self.refused = error

    def _switch_off(self, error: NoPermission, asked: Asked, now_ms: int) -> None:
        """The coordinator still knows the member, which keeps its claims until it releases them."""
        if not self.is_off:
            log().warning("%s of group %s waits: %s", *reversed(self._own), error)
        self.is_off, self.wanted = True, set()
        self._heard_ms = max(self._heard_ms, asked.first_ms)
        self._join_at_ms = min(self._join_at_ms, now_ms + OFF_AGAIN_MS)

    def _take_joined(self, answer: Joined, asked: Asked, now_ms: int) -> None:
        # The answer may be to the first sending, so the session counts from there.
        self._heard_ms = max(self._heard_ms, asked.first_ms)
        is_new = self.joined is None or answer.version != self.joined.version or self.is_off
        self.is_off = False
        self.joined, was_known, self._known = answer, self._known, True
        self._beats = isinstance(asked.request, Join) and asked.request.parting == self._parting
        self._join_at_ms = min(self._join_at_ms, now_ms + answer.heartbeat_ms)
        if not was_known:
            self._asked.are_due_at(-1)
        self._drop(answer.lost)
        if is_new:
            self._divide(answer)
            self._claim_at_ms, self._claim_pause_ms = now_ms, CLAIM_AGAIN_MS

    def _take_beaten(self, answer: Beaten, asked: Asked, now_ms: int) -> None:
        if not answer.is_same:
            self._must_join()
            return
        self._heard_ms = max(self._heard_ms, asked.first_ms)
        self._join_at_ms = min(self._join_at_ms, now_ms + answer.heartbeat_ms)

    def _take_changed(self, answer: Changed, now_ms: int) -> None:
        """The group has changed, or a queue has become free in an unchanged group."""
        self._drop(answer.reset)
        if self.joined is None or not answer.version:
            return  # the answer to the join will say the same
        if answer.version != self.joined.version:
            self.joined = replace(
                self.joined, version=answer.version, members=answer.members, topics=answer.topics
            )
            self._divide(self.joined)
        self._claim_at_ms, self._claim_pause_ms = now_ms, CLAIM_AGAIN_MS

    def _divide(self, joined: Joined) -> None:
        options = self.options
        part = part_of(options.strategy, joined, options.client_id, self.assigned)
        self.wanted = set() if self.is_off else part

    def _take_claimed(self, answer: Claimed) -> None:
        unwanted = {}
        for queue in answer.queues:
            name = answer.topic, queue.queue_id
            if queue.epoch <= self._given_up.get(name, 0):
                continue
            self._unnamed.discard(name)
            if self.claims.get(name) == queue.epoch:
                continue
            self.claims[name] = queue.epoch
            if name not in self.wanted:
                unwanted[name] = -1
            else:
                self._gained[name] = self.committed[name] = queue.offset
        if unwanted:
            self.release(unwanted)
        names = [(answer.topic, queue_id) for queue_id in answer.taken]
        self._drop([HeldClaim(*name, self.claims.get(name, 0)) for name in names])

    def _decline(self, answer: Claimed) -> None:
        """A second copy of a claim was granted queues that the member may have released since. It
        does not know of these claims, so they would be its own for ever: release them."""
        found = []
        for queue in answer.queues:
            name = answer.topic, queue.queue_id
            if self.claims.get(name) != queue.epoch and queue.epoch > self._given_up.get(name, 0):
                self._given_up[name] = queue.epoch
                found.append(QueueCommit(*name, -1, queue.epoch))
        if found:
            self._asked.ask(Release, *self._own, tuple(found))

    def _take_committed(self, request: GroupRequest, lost: Iterable[HeldClaim]) -> None:
        """Note committed offsets, except for claims that the member had lost, whose offsets did not
        move, and for claims before the present one, which say nothing about it."""
        assert isinstance(request, Commit | Release)
        refused = {(each.topic, each.queue_id) for each in lost}
        for each in request.commits:
            name = each.topic, each.queue_id
            is_present = self.claims.get(name, each.epoch) == each.epoch
            if each.offset >= 0 and name not in refused and is_present:
                self.committed[name] = each.offset

    def _drop(self, lost: Iterable[HeldClaim]) -> None:
        for each in lost:
            name = each.topic, each.queue_id
            if self.claims.get(name) == each.epoch:
                del self.claims[name]
                self._unnamed.discard(name)
                self._gained.pop(name, None)
                self._lost.append(name)
                self._claim_at_ms = 0
