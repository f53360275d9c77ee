"""What members ask, and its answers: Join, Beat, Claim, Commit, Release, Leave.

It checks requests, has the tables changed, and reports what changed. It does not know sockets;
answers are structs, which the actor sends once the changes are in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from penstock.actors.coordinator.claim_spans import NONE
from penstock.actors.coordinator.claims import Claims
from penstock.actors.coordinator.group_files import GroupFiles
from penstock.actors.coordinator.log_offsets import LogOffsets
from penstock.actors.coordinator.membership import Member, Membership, size_of
from penstock.actors.coordinator.notifications import Joining, Notifications
from penstock.actors.coordinator.start_offsets import StartOffsets
from penstock.actors.coordinator.topic_watch import TopicWatch
from penstock.shared.config import Config
from penstock.shared.errors import (
    RESOURCE_EXHAUSTED,
    BrokerBusy,
    GroupNotFound,
    InvalidArgument,
    NoPermission,
    StoreDamaged,
    UnknownMember,
)
from penstock.shared.messaging.system_topics import SYSTEM_GROUP_PREFIX
from penstock.shared.names import check_group, check_topic
from penstock.shared.next_steps import did_you_mean, verify
from penstock.shared.progress.group_journal import MemberRow
from penstock.shared.wire.group_messages import (
    MAX_CLAIMS,
    MOST_SESSION_MS,
    Beat,
    Beaten,
    Claim,
    Claimed,
    ClaimedQueue,
    Commit,
    Committed,
    HeldClaim,
    Join,
    Joined,
    Leave,
    Left,
    Release,
    Released,
    TopicQueues,
)

# Limits, so that nobody can make the coordinator grow without end.
MAX_GROUPS = 16_384
MAX_MEMBERS = 20_000
MAX_MEMBERS_PER_GROUP = 1000
MAX_SEATS = 1 << 18
MAX_SUBSCRIPTION_CHARACTERS = 64 << 10
LEAST_SESSION_MS = 100
# How often members show up: at least twice in a session, and more often while that costs little.
MOST_HEARTBEATS_PER_S = 500
LEAST_HEARTBEAT_MS = 1000
BUSY_MS = 1000


class MemberRequests:
    """Answers members."""

    def __init__(
        self,
        config: Config,
        members: Membership,
        claims: Claims,
        files: GroupFiles,
        topics: TopicWatch,
        starts: StartOffsets,
        tell: Notifications,
        log: LogOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is wall time: groups' versions begin with it, and claims are dated by it."""
        self._config = config
        self._members, self._claims, self._files = members, claims, files
        self._topics, self._starts, self._tell, self._log = topics, starts, tell, log
        self._now_ms = now_ms

    # --- joining ---

    def join(self, request: Join, peer: bytes, connection: int, now_ms: int) -> Joined | None:
        """A new member, or one that is heard again. None for a new one: others may come with it,
        and its answer waits for them. Raises PenstockError."""
        known = self._members.member(request.group, request.client_id)
        if known is None or _is_another(known.row, request):
            self._check(request)
        if known is None:
            self._admit(request)
        elif self._config.auto_create_subscription_group:
            self._make(request.group)  # somebody may have deleted it
        is_new = known is None or known.peer != peer
        member = self._members.join(request, peer, connection, now_ms, self._now_ms())
        joining = Joining(member, request.request, self._settle(member, request, is_new))
        if (refused := self._switched_off(request)) is not None:
            # it stays a member with its queues, until it has finished what it is working on
            raise refused
        if known is None:
            self._tell.joined(joining)
            return None
        member.told_version = member.group.version
        return self.joined(joining)

    def joined(self, joining: Joining) -> Joined:
        """The answer to a join."""
        row, group = joining.member.row, joining.member.group
        settings = self._files.groups.settings(group.name)
        return Joined(
            joining.request,
            group.name,
            group.version,
            group.ids,
            tuple(
                [
                    TopicQueues(each.topic, self._topics.queues(each.topic))
                    for each in row.subscriptions
                ]
            ),
            self.heartbeat_ms(row.session_timeout_ms),
            self._config.broker_name,
            settings["retryMaxTimes"],
            settings["retryQueueNums"],
            self._files.groups.consume_timeout_ms(group.name),
            joining.lost,
        )

    def retry_queues(self, group: str) -> int:
        """How many queues the group's topic of retries is to have."""
        return max(1, self._files.groups.settings(group)["retryQueueNums"])

    def beat(self, request: Beat, peer: bytes, now_ms: int) -> Beaten:
        """A heartbeat. Raises UnknownMember."""
        member = self.member(request)
        is_there = member.peer == peer and member.connection >= 0
        if is_there:
            self._members.heard(member, now_ms, peer)
        claims = len(self._claims.owned(request.group, request.client_id))
        is_same = request.version == member.group.version and request.claims == claims
        is_same = is_same and self._switched_off(member.row) is None
        heartbeat_ms = self.heartbeat_ms(member.row.session_timeout_ms)
        return Beaten(request.request, is_there and is_same, heartbeat_ms)

    def heartbeat_ms(self, session_ms: int) -> int:
        """How often a member has to show up: the more members there are, the less often."""
        return max(1, min(session_ms // 2, self.most_heartbeat_ms))

    @property
    def most_heartbeat_ms(self) -> int:
        return max(LEAST_HEARTBEAT_MS, self._members.count * 1000 // MOST_HEARTBEATS_PER_S)

    def _check(self, request: Join) -> None:
        if check_group(request.group).startswith(SYSTEM_GROUP_PREFIX):
            # its offsets say how far half messages and deletions were followed
            what = "this group is the broker's own"
            raise InvalidArgument(what, request.group, "choose another name")
        for each in request.subscriptions:
            check_topic(each.topic)
        if size_of(request.subscriptions) > MAX_SUBSCRIPTION_CHARACTERS:
            raise InvalidArgument(
                f"a member's subscriptions have more than {MAX_SUBSCRIPTION_CHARACTERS} characters",
                size_of(request.subscriptions),
                "subscribe to fewer topics, or with shorter filters",
            )
        if not LEAST_SESSION_MS <= request.session_timeout_ms <= MOST_SESSION_MS:
            raise InvalidArgument(
                "a session cannot have this timeout",
                f"{request.session_timeout_ms} ms",
                f"choose {LEAST_SESSION_MS} to {MOST_SESSION_MS} ms",
            )

    def _admit(self, request: Join) -> None:
        """Raise unless there may be such a member. Makes the group where it is unknown."""
        group, names = request.group, self._files.groups.names()
        if group not in names and not self._config.auto_create_subscription_group:
            hint = did_you_mean(group, names)
            raise GroupNotFound("there is no consumer group of this name", group, hint)
        self._make(group)
        if (refused := self._switched_off(request)) is not None:
            raise refused
        others = self._members.model(group, request.client_id)
        if others is not None and others != request.model:
            raise InvalidArgument(
                f"the members of a group consume in one way, and this group's do it {others}",
                f"{request.client_id} of {group}: {request.model}",
                "give this member another group",
            )
        if self._members.count >= MAX_MEMBERS:
            raise _too_many("members", MAX_MEMBERS)
        there = self._members.groups.get(group)
        if there is not None and len(there.members) >= MAX_MEMBERS_PER_GROUP:
            raise _too_many("members of this group", MAX_MEMBERS_PER_GROUP)

    def _make(self, group: str) -> None:
        groups = self._files.groups
        if group not in groups.names():
            if len(groups.names()) >= MAX_GROUPS:
                raise _too_many("groups", MAX_GROUPS)
            groups.put(group, {}, self._now_ms())
            self._files.note_groups()

    def _switched_off(self, member: Join | MemberRow) -> NoPermission | None:
        """Why it may not consume now. As in RocketMQ's broker, a carried one may still be a member,
        and its gateway refuses its pulls."""
        if member.carried:
            return None
        return self._files.groups.switched_off(member.group, member.model)

    def _settle(self, member: Member, request: Join, is_new: bool) -> tuple[HeldClaim, ...]:
        """Bring the table in line with the claims that the member names; return those it lost.

        On a new connection it names all its claims. One that it does not name it never heard of, or
        it is another process's of the same id. On a known connection an answer may be under way, so
        nothing is freed. A full request has no room for all claims, so unnamed ones stay: the
        member claims them once more.
        """
        group, client = request.group, request.client_id
        lost = []
        for held in request.held:
            if self._claims.hold(group, client, held):
                continue
            room = self._claims.count < MAX_SEATS
            if not (is_new and room and self._take_over(group, client, held)):
                lost.append(held)
        if is_new and len(request.held) < MAX_CLAIMS:
            named = {(held.topic, held.queue_id) for held in request.held}
            freed = self._claims.release_all(group, client, named, self._now_ms())
            self._tell.freed(group, freed)
        return tuple(lost)

    def _take_over(self, group: str, client: str, held: HeldClaim) -> bool:
        there = held.queue_id < self._topics.queues(held.topic)
        return there and self._claims.take_over(group, client, held)

    # --- queues ---

    def claim(
        self, request: Claim, peer: bytes, is_queued: Callable[[], bool]
    ) -> Generator[bool, None, Claimed]:
        """Find out where queues without an offset begin, one a step; then give those that are free.

        For `is_queued` see LogOffsets.agree. Raises PenstockError.
        """
        member = self.member(request)
        if member.is_anothers(peer):
            raise _unknown(request)  # or another process of its name would get its claims
        if member.row.model == "broadcasting":
            raise InvalidArgument(
                "a member that broadcasts has all queues, and claims none",
                f"{request.client_id} of {request.group}",
            )
        starts: dict[int, int] = {}
        there = self._topics.queues(check_topic(request.topic))
        if max(request.queue_ids, default=-1) >= there:
            # The topic may be newer than the last look. A RocketMQ client that is refused a lock
            # asks again 20 s later, so the actor looks before this goes on.
            has_looked = self._topics.look_soon()
            while not has_looked():
                yield True
            there = self._topics.queues(request.topic)
        for queue_id in request.queue_ids:
            seat = self._claims.seat(request.group, (request.topic, queue_id))
            is_new = seat is None or seat.offset == NONE
            if is_new and queue_id < there and queue_id not in starts:
                start = NONE if request.chosen else self._start(member, request.topic, queue_id)
                starts[queue_id] = start
                yield False
        # the last step, so that the owner begins where its group is by now
        yield from self._log.agree(request.group, request.topic, request.queue_ids, is_queued)
        return self._give(request, starts, there)

    def _start(self, member: Member, topic: str, queue_id: int) -> int:
        try:
            return self._starts.decide(member.row, topic, queue_id)
        except OSError as error:
            # Not the queue's fault but this process's lack: it ends, and is replaced.
            if error.errno in RESOURCE_EXHAUSTED:
                raise
            raise StoreDamaged(
                "the files of a queue cannot be read",
                f"topic {topic}: {error}",
                verify(error.filename),
            ) from None

    def _give(self, request: Claim, starts: dict[int, int], there: int) -> Claimed:
        member = self.member(request)  # again: it may have gone meanwhile
        group, client, topic = request.group, request.client_id, request.topic
        given, taken = [], []
        for queue_id in dict.fromkeys(request.queue_ids):
            queue = topic, queue_id
            seat = self._claims.seat(group, queue)
            known = seat is not None and seat.offset != NONE
            # a queue that the topic does not have, or no longer has, is not given
            if not known and queue_id not in starts or queue_id >= there:
                taken.append(queue_id)
                continue
            if seat is None and self._claims.count >= MAX_SEATS:
                raise _too_many("queues of groups", MAX_SEATS)
            start = starts.get(queue_id, NONE)
            found = self._claims.claim(group, client, queue, start, self._now_ms())
            if found is None:
                taken.append(queue_id)
            else:
                given.append(ClaimedQueue(queue_id, *found))
        if taken:
            member.waits_for.add(topic)
        else:
            member.waits_for.discard(topic)
        return Claimed(request.request, group, topic, tuple(given), tuple(taken))

    def commit(self, request: Commit) -> Committed:
        """Raises UnknownMember."""
        self.member(request)
        lost = [
            HeldClaim(each.topic, each.queue_id, each.epoch)
            for each in request.commits
            if each.offset >= 0
            and not self._claims.commit(
                request.group,
                request.client_id,
                (each.topic, each.queue_id),
                each.offset,
                each.epoch,
                request.request,
            )
        ]
        return Committed(request.request, request.group, tuple(lost))

    def release(self, request: Release) -> Released:
        """Raises UnknownMember."""
        self.member(request)
        group, client = request.group, request.client_id
        freed, lost = [], []
        for each in request.commits:
            queue = each.topic, each.queue_id
            if each.offset >= 0:
                number = request.request
                self._claims.commit(group, client, queue, each.offset, each.epoch, number)
            if self._claims.release(group, client, queue, each.epoch, self._now_ms()):
                freed.append(queue)
            else:
                lost.append(HeldClaim(*queue, each.epoch))
        self._tell.freed(group, freed)
        return Released(request.request, group, tuple(lost))

    def leave(self, request: Leave, peer: bytes) -> Left:
        """Leaving twice is the same as leaving once. A late Leave from another process of the same
        id does not count against the live member that has the name now."""
        member = self._members.member(request.group, request.client_id)
        if member is None or member.peer == peer or member.connection < 0:
            if member is not None:
                self._members.remove(member)
            self.free_all(request.group, request.client_id)
        return Left(request.request, request.group)

    def free_all(self, group: str, client: str) -> None:
        """Free all queues of this member."""
        freed = self._claims.release_all(group, client, now_ms=self._now_ms())
        self._tell.freed(group, freed)

    def member(self, request: Beat | Claim | Commit | Release) -> Member:
        """The member that asks. Raises UnknownMember."""
        found = self._members.member(request.group, request.client_id)
        if found is None:
            raise _unknown(request)
        return found


def _is_another(row: MemberRow, request: Join) -> bool:
    """Whether a member's request has something to check that it did not have before."""
    before = row.subscriptions, row.session_timeout_ms
    return before != (request.subscriptions, request.session_timeout_ms)


def _unknown(request: Beat | Claim | Commit | Release) -> UnknownMember:
    return UnknownMember(
        "the group has no such member, or has it no longer",
        f"{request.client_id} of {request.group}",
        "join again",
    )


def _too_many(what: str, most: int) -> BrokerBusy:
    return BrokerBusy(f"there are as many {what} as the broker takes", most, retry_after_ms=BUSY_MS)
