"""Consumer groups for RocketMQ's clients: members, offsets and locks, by way of the coordinator.

A member here is one of the coordinator's like Penstock's own, so a group may have both: the same
list of members is divided by the same strategies, and a queue has one reader at a time.

    heartbeat, leave      Join, Leave
    query an offset       Claim: the offset is that of the claim
    commit an offset      Commit, with the claim's epoch; of a group without members ResetOffsets
    lock, unlock          Claim, Release

A member that asks for a queue that another one of the gateway's has gets it when that one has said
its last word of it, or after HANDOVER_MS, as it would from RocketMQ. One that a member of
Penstock's has is waited for, then refused: the client asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connection import Connection
from penstock.actors.gateway.coordinator_link import CoordinatorLink
from penstock.actors.gateway.members import Claim, Member, Members, Queue
from penstock.remoting.bodies import (
    ConsumerList,
    Heartbeat,
    LockBody,
    Locked,
    QueueBody,
    write_body,
)
from penstock.remoting.codes import Response
from penstock.remoting.fields import OffsetAnswer, QueryOffsetFields, UpdateOffsetFields
from penstock.shared.errors import PenstockError, StoreUnavailable, UnknownMember
from penstock.shared.process.actor import Stage
from penstock.shared.wire import group_messages as words

HANDOVER_MS = 1000
# How long one waits for a queue that another one has; a client waits for 3 s.
WAIT_MS = 2000
AGAIN_MS = 100
LAST_COMMITS_MS = 200
# Until the coordinator has said how often it wants to hear a member.
HEARTBEAT_MS = 2000


class _Wanted(NamedTuple):
    """A member that waits for a queue's offset."""

    call: Call
    member: Member
    queue: Queue
    since_ms: int


class Groups:
    """All groups that the gateway has members of."""

    def __init__(
        self,
        stage: Stage,
        answer: Callable[[Call, Reply], None],
        changed: Callable[[str], None],
        wake: Callable[[str], None],
    ) -> None:
        """`changed` is told of groups whose members have changed; `wake` has their pulls answered,
        so that members pull at once what they go on with."""
        self._clock, self._answer, self._tell, self._wake = stage.clock, answer, changed, wake
        self._run_id = stage.run.run_id
        self.members = Members()
        self._link = CoordinatorLink(stage, self._changed)
        self._wanted: list[_Wanted] = []
        self._again_ms = 0
        self._now_ms = stage.clock.monotonic_ms()

    @property
    def socket(self) -> Any:
        return self._link.socket

    def work(self, now_ms: int) -> int:
        self._now_ms = now_ms
        done = self._link.work(now_ms)
        for member in list(self.members):
            if member.leave_ms and now_ms >= member.leave_ms:
                self.leave(member)
            elif now_ms >= member.join_ms:
                self._join(member, lambda answer: None)
        for group in self.members.to_be_shown(now_ms):
            self._wake(group)
        for member, queue in self.members.left_over(now_ms):
            self._release(member, [queue])
        if self._wanted and now_ms >= self._again_ms:
            self._again_ms = now_ms + AGAIN_MS
            wanted, self._wanted = self._wanted, []
            for each in wanted:
                self._claim_for(each)
        return done

    # --- members ---

    def heartbeat(self, call: Call, body: Heartbeat) -> Reply | None:
        """A client is there; it is answered when the coordinator knows it in each of its groups."""
        groups = body.consumer_data_set or []
        left = [len(groups)]
        refused: list[PenstockError] = []

        def joined(answer: Any) -> None:
            left[0] -= 1
            if isinstance(answer, PenstockError):
                refused.append(answer)
            if not left[0]:
                self._answer(call, refusal(refused[0]) if refused else Reply(HEARD))

        for each in groups:
            member = self.members.put(each.group_name, body.client_id, call.connection)
            member.take(each)
            self._join(member, joined)
        return None if groups else Reply(HEARD)

    def _join(self, member: Member, then: Callable[[Any], None]) -> None:
        member.join_ms = self._now_ms + HEARTBEAT_MS

        def joined(answer: Any) -> None:
            if isinstance(answer, words.Joined):
                member.join_ms = self._now_ms + answer.heartbeat_ms
                member.retry_max_times = answer.retry_max_times
                member.retry_queue_nums = answer.retry_queue_nums
                for held in answer.lost:
                    self._lose(member, held)
            then(answer)

        wall_ms = self._clock.now_ms()
        self._link.ask(lambda n: member.join(n, wall_ms, self._run_id), joined, self._now_ms)

    def part(self, member: Member) -> None:
        """A member says that it leaves. Java's client sends its last commits at the same time, and
        this overtakes them."""
        member.leave_ms = self._now_ms + LAST_COMMITS_MS

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        make = partial(words.Leave, group=member.group, client_id=member.client_id)
        self._link.ask(lambda n: make(n), lambda answer: None, self._now_ms)

    def gone(self, connection: Connection) -> None:
        """A connection has ended, and with it the memberships that it has."""
        for member in self.members.on(connection):
            self.leave(member)

    def list_members(self, call: Call, group: str) -> None:
        """All members, whatever they speak."""

        def listed(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
                return
            ids = answer.members
            if isinstance(answer, words.GroupInfo):
                ids = tuple(each.client_id for each in answer.members)
            if ids:
                self._answer(call, Reply(body=write_body(ConsumerList(list(ids)))))
            else:
                remark = f"there are no members of group {group}"
                self._answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))

        member = self.members.of(call.connection, group)
        if member is not None:
            self._join(member, listed)
        else:
            self.describe(group, listed)

    def describe(self, group: str, then: Callable[[Any], None]) -> None:
        self._link.ask(lambda n: words.DescribeGroup(n, group, self._run_id), then, self._now_ms)

    def _changed(self, said: words.Changed) -> None:
        """A group has changed: its members are to rebalance, and to show what they go on with."""
        for held in said.reset:
            for member in self.members.all_of(said.group):
                claim = member.claims.get((held.topic, held.queue_id))
                if claim is not None and claim.epoch == held.epoch:
                    self._lose(member, held)
                    member.moved.add((held.topic, held.queue_id))
        self._again_ms = 0
        self.members.change(said.group, self._now_ms)
        self._tell(said.group)

    def _lose(self, member: Member, held: words.HeldClaim) -> None:
        claim = member.claims.get((held.topic, held.queue_id))
        if claim is not None and claim.epoch == held.epoch:
            del member.claims[held.topic, held.queue_id]

    # --- claims ---

    def _claim(
        self, member: Member, topic: str, ids: list[int], then: Callable[[Any], None]
    ) -> None:
        def claimed(answer: Any) -> None:
            if isinstance(answer, words.Claimed):
                for each in answer.queues:
                    member.claims[topic, each.queue_id] = Claim(each.epoch, self._now_ms)
            elif isinstance(answer, UnknownMember):
                member.join_ms = 0
            then(answer)

        make = partial(
            words.Claim,
            group=member.group, client_id=member.client_id, topic=topic, queue_ids=tuple(ids),
        )  # fmt: skip
        self._link.ask(lambda n: make(n), claimed, self._now_ms)

    def _release(self, member: Member, queues: list[Queue]) -> None:
        commits = []
        for topic, queue_id in queues:
            claim = member.claims.pop((topic, queue_id), None)
            if claim is not None:
                commits.append(words.QueueCommit(topic, queue_id, -1, claim.epoch))
        if commits:
            make = partial(
                words.Release,
                group=member.group, client_id=member.client_id, commits=tuple(commits),
            )  # fmt: skip
            self._link.ask(lambda n: make(n), lambda answer: None, self._now_ms)

    # --- offsets ---

    def query(self, call: Call, fields: QueryOffsetFields) -> None:
        """Where a group goes on in a queue, which is the member's from then on."""
        member = self.members.of(call.connection, fields.consumer_group)
        queue = fields.topic, fields.queue_id
        if member is not None and member.model == "clustering":
            self._claim_for(_Wanted(call, member, queue, call.now_ms))
            return

        def described(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
                return
            found = {(each.topic, each.queue_id): each.offset for each in answer.queues}
            offset = found.get(queue, -1)
            if offset >= 0:
                self._answer(call, Reply(OffsetAnswer(offset)))
            else:
                remark = "the group has no offset in this queue"
                self._answer(call, Reply(code=Response.QUERY_NOT_FOUND, remark=remark))

        self.describe(fields.consumer_group, described)

    def _claim_for(self, wanted: _Wanted) -> None:
        topic, queue_id = wanted.queue
        owner = self.members.owner(wanted.member.group, wanted.queue)
        waited_ms = self._now_ms - wanted.since_ms
        if owner is not None and owner is not wanted.member and not owner.orderly:
            changed_ms = self.members.changed.get(owner.group, wanted.since_ms)
            if not owner.claims[wanted.queue].is_left(changed_ms) and waited_ms < HANDOVER_MS:
                self._wanted.append(wanted)
                return
            self._release(owner, [wanted.queue])

        def claimed(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(wanted.call, refusal(answer))
            elif answer.queues:
                self._answer(wanted.call, Reply(OffsetAnswer(answer.queues[0].offset)))
            elif self._now_ms - wanted.since_ms < WAIT_MS:
                self._wanted.append(wanted)
            else:
                self._answer(wanted.call, refusal(_taken(wanted)))

        self._claim(wanted.member, topic, [queue_id], claimed)

    def update(self, call: Call, fields: UpdateOffsetFields) -> None:
        """Commit. It is answered when the coordinator has it in its journal."""
        member = self.members.of(call.connection, fields.consumer_group)
        queue = fields.topic, fields.queue_id
        offset = fields.commit_offset

        def done(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
                return
            for held in getattr(answer, "lost", ()):
                if member is not None:
                    self._lose(member, held)
            self._answer(call, Reply())

        if member is None:
            self._link.ask(
                lambda n: words.ResetOffsets(
                    n, fields.consumer_group, fields.topic, {queue[1]: offset}, run=self._run_id
                ),
                done,
                self._now_ms,
            )
            return
        if not self.commit(member, queue, offset, done):
            self._answer(call, Reply())

    def commit(
        self, member: Member, queue: Queue, offset: int, then: Callable[[Any], None]
    ) -> bool:
        """Commit, if the queue is the member's; whether it is. By now it may be another one's, or
        an operator may have set its offset."""
        claim = member.claims.get(queue)
        if claim is None or offset < 0:
            return False
        claim.committed_ms = self._now_ms
        commit = words.QueueCommit(*queue, offset, claim.epoch)
        make = partial(
            words.Commit, group=member.group, client_id=member.client_id, commits=(commit,)
        )
        self._link.ask(lambda n: make(n), then, self._now_ms)
        return True

    def take_moved(
        self, call: Call, member: Member, queue: Queue, then: Callable[[int], None]
    ) -> None:
        """Where an operator has set a member's offset, once the queue is the member's again."""

        def claimed(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
            elif answer.queues:
                member.moved.discard(queue)
                then(answer.queues[0].offset)
            else:
                error = _taken(_Wanted(call, member, queue, self._now_ms))
                self._answer(call, refusal(error))

        self._claim(member, queue[0], [queue[1]], claimed)

    def pulled(self, member: Member, queue: Queue) -> None:
        """A member shows that it goes on with a queue."""
        claim = member.claims.get(queue)
        if claim is not None:
            claim.pulled_ms = self._now_ms
        elif member.model == "clustering" and queue not in member.moved:
            # the gateway before had the claim; where another member has it, this is in vain
            self._claim(member, queue[0], [queue[1]], lambda answer: None)

    # --- order ---

    def lock(self, call: Call, body: LockBody) -> Reply | None:
        """Which of these queues the member has now; the others are somebody else's."""
        member = self.members.get(body.consumer_group, body.client_id)
        if member is None or not body.mq_set:
            return Reply(body=write_body(Locked([])))
        if not member.orderly:
            member.orderly = True
            self._join(member, lambda answer: None)
        by_topic: dict[str, list[QueueBody]] = {}
        for each in body.mq_set:
            by_topic.setdefault(each.topic, []).append(each)
        left, locked = [len(by_topic)], list[QueueBody]()

        def claimed(wanted: list[QueueBody], answer: Any) -> None:
            left[0] -= 1
            if isinstance(answer, words.Claimed):
                given = {each.queue_id for each in answer.queues}
                locked.extend(each for each in wanted if each.queue_id in given)
            if not left[0]:
                self._answer(call, Reply(body=write_body(Locked(locked))))

        for topic, wanted in by_topic.items():
            ids = [each.queue_id for each in wanted]
            self._claim(member, topic, ids, partial(claimed, wanted))
        return None

    def unlock(self, body: LockBody) -> None:
        member = self.members.get(body.consumer_group, body.client_id)
        if member is not None:
            self._release(member, [(each.topic, each.queue_id) for each in body.mq_set])

    def close(self) -> None:
        self._link.close()


# What a client may leave out of its next heartbeats: nothing, but it asks.
HEARD = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


def _taken(wanted: _Wanted) -> StoreUnavailable:
    return StoreUnavailable(
        "another member of the group has the queue still",
        f"{wanted.queue[0]}, queue {wanted.queue[1]}",
        "ask again",
    )
