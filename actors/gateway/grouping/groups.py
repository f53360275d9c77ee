"""Consumer groups for RocketMQ's clients: members, offsets and locks, by way of the coordinator.

To the coordinator these members are like Penstock's own, so a group may have both: the queues are
divided among all of them by the same strategies, and a queue has one reader at a time.

    heartbeat, leave      Join, Leave
    query an offset       Claim: the offset is that of the claim
    commit an offset      Commit, with the claim's epoch; without a claim ResetOffsets, for a
                          queue that nobody has
    lock, unlock          Claim, Release

If a member asks for a queue that another member of the gateway has, it gets the queue when that one
has made its last commit, or after a while, as it would from RocketMQ: handover.py. If one of
Penstock's own members has it, the request waits, and is then refused: the client asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from penstock.actors.gateway.asking.shared_questions import SharedQuestions
from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.grouping.answers import HEARD, offset_reply, taken
from penstock.actors.gateway.grouping.group_link import GroupLink, nobody
from penstock.actors.gateway.grouping.handover import Handover
from penstock.actors.gateway.grouping.members import Claim, Member, Members, Queue
from penstock.actors.gateway.serving import Serving
from penstock.remoting.bodies import Heartbeat
from penstock.remoting.fields import QueryOffsetFields, UpdateOffsetFields
from penstock.shared.errors import InvalidArgument, PenstockError, UnknownMember
from penstock.shared.process.actor import Stage
from penstock.shared.wire import group_messages as words

# A member that no heartbeat has named for this long has left, as in RocketMQ.
FORGOTTEN_MS = 120_000
LAST_COMMITS_MS = 200
# Between two looks for members that are due: there may be thousands.
LOOK_MS = 100
# Until the coordinator has said how often it wants to hear of a member.
HEARTBEAT_MS = 2000


class Groups:
    """All groups that the gateway has members of."""

    def __init__(
        self,
        stage: Stage,
        serving: Serving,
        answer: Callable[[Call, Reply], None],
        rebalance: Callable[[Member, bool], None],
        wake: Callable[[str], None],
    ) -> None:
        """`rebalance` has a member divide its group's queues again; True overrides a group's
        setting not to notify members. `wake` answers a group's held pulls, so that members at once
        pull the queues that they keep."""
        self._serving, self._answer = serving, answer
        self._rebalance, self._wake = rebalance, wake
        self._run_id = stage.run.run_id
        self.members = Members()
        endpoint = stage.run.endpoints.group_ipc
        self._link = GroupLink(
            stage, "coordinator", endpoint, words.decode_group_request, words.decode_group_answer,
            self._changed, serving.later,
        )  # fmt: skip
        self._shared = SharedQuestions(self.ask)
        self._handover = Handover(self.members, serving, answer, self.claim, self.release)
        # groups that have lost a member's connection, and of which no change has been announced
        # since
        self._lost_of = set[str]()
        self._look_ms = 0
        self._now_ms = stage.clock.monotonic_ms()

    @property
    def socket(self) -> Any:
        return self._link.socket

    @property
    def is_idle(self) -> bool:
        return not self._link.waits

    def work(self, now_ms: int, is_due: bool = True) -> int:
        """Unless it `is_due`, no answer has come, and periodic work can wait."""
        self._now_ms = now_ms
        if not is_due:
            return 0
        done = self._link.work(now_ms)
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            self._look(now_ms)
        for group in self.members.to_be_shown(now_ms):
            self._wake(group)
        for member, queue in self.members.left_over(now_ms):
            self.release(member, [queue])
        self._handover.work(now_ms)
        return done

    def _look(self, now_ms: int) -> None:
        for member in list(self.members):
            is_forgotten = now_ms - member.heard_ms > FORGOTTEN_MS
            if is_forgotten or member.leave_ms and now_ms >= member.leave_ms:
                self.leave(member)
            elif now_ms >= member.join_ms:
                self._join(member, nobody)

    # --- members ---

    def heartbeat(self, call: Call, body: Heartbeat) -> Reply | None:
        """Take a client's heartbeat; it is answered when the coordinator knows the client in each
        of its groups."""
        groups = body.consumer_data_set or []
        left, new = [len(groups)], list[Member]()
        refused: list[PenstockError] = []

        def joined(answer: Any) -> None:
            left[0] -= 1
            if isinstance(answer, PenstockError):
                refused.append(answer)
            if not left[0]:
                self._answer(call, refusal(refused[0]) if refused else Reply(HEARD))
                for each in new:
                    self._rebalance(each, False)

        for each in groups:
            before = self.members.of(call.connection, each.group_name)
            try:
                member = self.members.put(each.group_name, body.client_id, call.connection)
            except InvalidArgument as error:
                joined(error)
                continue
            if before is None:
                # lite pull consumers divide queues at once when they are told, and else 20 s later
                new.append(member)
            elif before is not member:
                self._leave_by(call.connection, before)  # its client has another id now
            member.take(each, call.now_ms)
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

        make = partial(member.join, run_id=self._run_id)
        self._link.ask(make, joined, self._now_ms, last_of=member.name)

    def keep_order(self, member: Member) -> None:
        """A member locks queues: it keeps them even while it is silent."""
        member.locks(self._now_ms)
        if not member.orderly:
            member.orderly = True
            self._join(member, nobody)

    def part(self, connection: Connection, member: Member) -> None:
        """A member says that it leaves. Java's client sends its last commits at the same time, and
        this may overtake them, so the member leaves a little later. If another client has the same
        id, the member stays, and that client commits in the same queues."""
        if len(member.connections) > 1:
            self.members.drop(member, connection)
        else:
            member.leave_ms = self._now_ms + LAST_COMMITS_MS

    def _leave_by(self, connection: Connection, member: Member) -> None:
        self.members.drop(member, connection)
        if not member.connections:
            self.leave(member)

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        make = partial(words.Leave, group=member.group, client_id=member.client_id)
        self._link.ask(make, nobody, self._now_ms, last_of=member.name)

    def gone(self, connection: Connection) -> None:
        """A connection has ended, and its members leave with it; those with locks stay longer."""
        for member in self.members.lost(connection, self._now_ms):
            self.leave(member)
            if self.members.all_of(member.group):
                self._lost_of.add(member.group)

    def list_members(self, connection: Connection, group: str, then: Callable[[Any], None]) -> None:
        """List all members, of either protocol: `then` gets their client ids, or a
        PenstockError."""

        def listed(answer: Any) -> None:
            if isinstance(answer, words.GroupInfo):
                then([each.client_id for each in answer.members])
            elif isinstance(answer, words.Joined):
                then(list(answer.members))
            else:  # an error, or the member has left meanwhile
                then(answer if isinstance(answer, PenstockError) else [])

        member = self.members.of(connection, group)
        if member is not None:
            self._join(member, listed)
        else:
            self.describe(group, listed)

    def ask(self, make: Callable[[int], Any], then: Callable[[Any], None]) -> None:
        """Ask the coordinator what `make` makes with a number, for an operator."""
        self._link.ask(make, then, self._now_ms)

    def ask_shared(
        self, kind: Hashable, make: Callable[[int], Any], then: Callable[[Any], None]
    ) -> None:
        """The same, asked once for all who ask while it is at work."""
        self._shared.ask(kind, make, self._serving.later(then))

    def describe(self, group: str, then: Callable[[Any], None]) -> None:
        make = partial(words.DescribeGroup, group=group, run=self._run_id)
        self.ask_shared(("describe", group), make, then)

    def _changed(self, said: words.Changed, more: list[bytes]) -> None:
        """A group has changed: its members are to rebalance, and to show which queues they keep."""
        for held in said.reset:
            for member in self.members.all_of(said.group):
                claim = member.claims.get((held.topic, held.queue_id))
                if claim is not None and claim.epoch == held.epoch:
                    self._lose(member, held)
                    member.moved.add((held.topic, held.queue_id))
        self._handover.hurry()
        self.members.change(said.group, self._now_ms)
        # When a connection has ended RocketMQ notifies members whatever the group has set: else
        # nobody would have the lost member's queues for some 20 s
        is_loss = said.group in self._lost_of
        self._lost_of.discard(said.group)
        for member in self.members.all_of(said.group):
            self._rebalance(member, is_loss)

    def _lose(self, member: Member, held: words.HeldClaim) -> None:
        claim = member.claims.get((held.topic, held.queue_id))
        if claim is not None and claim.epoch == held.epoch:
            del member.claims[held.topic, held.queue_id]

    # --- claims ---

    def claim(
        self,
        member: Member,
        topic: str,
        ids: list[int],
        then: Callable[[Any], None],
        chosen: bool = False,
    ) -> None:
        """Claim queues of a topic for a member; `then` gets Claimed, or a PenstockError. For
        `chosen` see words.Claim."""

        def claimed(answer: Any) -> None:
            if isinstance(answer, words.Claimed):
                # its client may have reconnected meanwhile, and be another member
                owner = self.members.get(member.group, member.client_id) or member
                for each in answer.queues:
                    owner.claims[topic, each.queue_id] = Claim(each.epoch, self._now_ms)
                    if each.is_moved:  # notice of it has not come, or came before the claim
                        owner.moved.add((topic, each.queue_id))
            elif isinstance(answer, UnknownMember):
                member.join_ms = 0
            then(answer)

        make = partial(
            words.Claim,
            group=member.group, client_id=member.client_id, topic=topic, queue_ids=tuple(ids),
            chosen=chosen,
        )  # fmt: skip
        self._link.ask(make, claimed, self._now_ms)

    def release(self, member: Member, queues: list[Queue]) -> None:
        """Give up what a member has of these queues."""
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
            self._link.ask(make, nobody, self._now_ms)

    # --- offsets ---

    def query(self, call: Call, fields: QueryOffsetFields, start: Callable[[], int]) -> None:
        """Answer where a group goes on in a queue, which is the member's from then on. If the
        client is no member and the group has no offset, `start` says where it begins; -1 leaves
        that to the client."""
        member = self.members.of(call.connection, fields.consumer_group)
        queue = fields.topic, fields.queue_id
        if member is not None and member.model == "clustering":
            self._handover.want(call, member, queue)
            return

        def described(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
                return
            found = {(each.topic, each.queue_id): each.offset for each in answer.queues}
            offset = found.get(queue, -1)
            self._answer(call, offset_reply(offset if offset >= 0 else start()))

        self.describe(fields.consumer_group, described)

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

        if offset < 0:
            raise InvalidArgument("a commit names an offset below 0", offset)
        if member is not None and queue in member.moved:
            # it does not know yet that an operator has set the offset: this commit predates that
            self._answer(call, Reply())
        elif member is None or not self.commit(member, queue, offset, done):
            # Without a claim the commit counts if nobody has the queue. A client that is no member
            # is never told that an operator has set the offset, so for it that does not matter.
            make = partial(
                words.ResetOffsets,
                group=fields.consumer_group, topic=fields.topic, offsets={queue[1]: offset},
                unclaimed=True, unmoved=member is not None, run=self._run_id,
            )  # fmt: skip
            which = fields.consumer_group, *queue
            self._link.ask(make, done, self._now_ms, last_of=which)

    def commit(
        self, member: Member, queue: Queue, offset: int, then: Callable[[Any], None] | None
    ) -> bool:
        """Commit if the queue is the member's; returns whether it is. By now it may be another
        member's, or an operator may have set its offset. Without `then` the commit may be sent a
        little later."""
        claim = member.claims.get(queue)
        if claim is None or offset < 0:
            return False
        claim.committed_ms = self._now_ms
        commit = words.QueueCommit(*queue, offset, claim.epoch)
        make = partial(
            words.Commit, group=member.group, client_id=member.client_id, commits=(commit,)
        )
        which = member.group, *queue
        self._link.ask(make, then, self._now_ms, last_of=which)
        return True

    def take_moved(
        self, call: Call, member: Member, queue: Queue, then: Callable[[int], None]
    ) -> None:
        """Pass on the offset that an operator has set, once the queue is the member's again."""

        def claimed(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
            elif answer.queues:
                member.moved.discard(queue)
                then(answer.queues[0].offset)
            else:
                self._answer(call, refusal(taken(*queue)))

        self.claim(member, queue[0], [queue[1]], claimed)

    def pulled(self, member: Member, queue: Queue) -> None:
        """A member has pulled, which shows that it keeps the queue."""
        claim = member.claims.get(queue)
        if claim is not None:
            claim.pulled_ms = self._now_ms
        elif member.model == "clustering" and queue not in member.moved:
            # a gateway that has died had the claim, or the client never asks for the group's
            # offset; if another member has the queue, this is refused
            self.claim(member, queue[0], [queue[1]], nobody, chosen=True)

    def close(self) -> None:
        self._link.close()
