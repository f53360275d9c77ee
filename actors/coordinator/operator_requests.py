"""What operators ask about groups, and its answers: list, describe, reset, set, delete.

Requests that look at many queues go in steps: see long_requests.py. -1 is unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from penstock.actors.coordinator.claim_spans import NONE
from penstock.actors.coordinator.claims import Claims, Seat
from penstock.actors.coordinator.group_files import GroupFiles
from penstock.actors.coordinator.log_offsets import LogOffsets
from penstock.actors.coordinator.member_requests import MAX_GROUPS, MAX_SEATS
from penstock.actors.coordinator.membership import Membership
from penstock.actors.coordinator.notifications import Notifications
from penstock.actors.coordinator.topic_watch import TopicWatch
from penstock.shared.errors import (
    BrokerBusy,
    GroupNotFound,
    InvalidArgument,
    QueueNotFound,
    TopicNotFound,
)
from penstock.shared.messaging.system_topics import SYSTEM_GROUP_PREFIX
from penstock.shared.names import check_group, check_topic
from penstock.shared.next_steps import did_you_mean
from penstock.shared.queue.lag import Lag
from penstock.shared.wire.group_messages import (
    ClaimSpan,
    DeleteGroup,
    DescribeGroup,
    GroupInfo,
    GroupList,
    GroupSet,
    ListGroups,
    MemberInfo,
    OffsetsReset,
    QueueInfo,
    ResetOffsets,
    SetGroup,
)

_AT_ONCE = 100


class OperatorRequests:
    """Answers operators."""

    def __init__(
        self,
        members: Membership,
        claims: Claims,
        files: GroupFiles,
        topics: TopicWatch,
        lag: Lag,
        tell: Notifications,
        log: LogOffsets,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._members, self._claims, self._files = members, claims, files
        self._topics, self._lag, self._tell, self._log = topics, lag, tell, log
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms

    def list_all(self, request: ListGroups) -> Generator[None, None, GroupList]:
        found = {}
        for number, group in enumerate(sorted(self._names())):
            there = self._members.groups.get(group)
            lags = [
                self._lag.messages(topic, queue_id, seat.offset)
                for topic, queue_id, seat in self._seats(group)
                if seat.offset != NONE
            ]
            lag = sum(lags) if lags else -1
            found[group] = len(there.members) if there else 0, lag
            if number % _AT_ONCE == _AT_ONCE - 1:
                yield
        return GroupList(request.request, found)

    def describe(self, request: DescribeGroup) -> Generator[None, None, GroupInfo]:
        """One queue a step."""
        group = check_group(request.group)
        queues = []
        for topic, queue_id, seat in self._seats(group):
            low, high = self._lag.range(topic, queue_id)
            age_ms, size = -1, -1
            if seat.offset != NONE:
                age_ms, size = self._lag.of(topic, queue_id, seat.offset, self._now_ms())
            owned_ms = NONE if seat.since_ms == NONE else max(0, self._now_ms() - seat.since_ms)
            queues.append(
                QueueInfo(
                    topic,
                    queue_id,
                    seat.offset,
                    seat.owner,
                    seat.epoch,
                    low,
                    high,
                    age_ms,
                    size,
                    owned_ms,
                    _spans(seat) if request.spans else (),
                )  # fmt: skip
            )
            yield
        return GroupInfo(
            request.request,
            group,
            group in self._names(),
            self._files.groups.settings(group),
            tuple(self._infos(group)),
            tuple(queues),
        )

    def _infos(self, group: str) -> Iterator[MemberInfo]:
        there, now_ms = self._members.groups.get(group), self._monotonic_ms()
        for _, member in sorted(there.members.items()) if there else ():
            row = member.row
            yield MemberInfo(
                row.client_id,
                member.address,
                row.model,
                row.start,
                row.orderly,
                now_ms - member.seen_ms,
                row.subscriptions,
            )

    def _seats(self, group: str) -> Iterator[tuple[str, int, Seat]]:
        """Each queue in which the group has an offset or a claim, and the other queues of the
        topics that its members subscribe to. A snapshot, because an answer takes its time."""
        found: dict[tuple[str, int], Seat] = {}
        there = self._members.groups.get(group)
        wanted = {
            each.topic
            for member in (there.members.values() if there else ())
            for each in member.row.subscriptions
        }
        for topic in wanted:
            found |= {(topic, number): Seat() for number in range(self._topics.queues(topic))}
        for topic, seats in self._claims.topics(group).items():
            found |= {(topic, queue_id): seat for queue_id, seat in seats.items()}
        for (topic, queue_id), seat in sorted(found.items(), key=lambda each: each[0]):
            yield topic, queue_id, seat

    def reset(
        self, request: ResetOffsets, is_queued: Callable[[], bool]
    ) -> Generator[bool | None, None, OffsetsReset]:
        """Set offsets, or only report what would change, after `is_queued` says that the queues
        have all that was acknowledged before. Raises PenstockError, and then changes nothing."""
        while not is_queued():
            yield True
        group, topic = check_group(request.group), check_topic(request.topic)
        if group not in self._names():
            raise self._no_group(group)
        count = self._topics.queues(topic)
        if not count:
            raise TopicNotFound("there is no topic of this name", topic)
        for queue_id, offset in request.offsets.items():
            if queue_id >= count:
                raise QueueNotFound(
                    f"topic {topic} has {count} queues to read, and no queue {queue_id}", queue_id
                )
            _, high = self._lag.range(topic, queue_id)
            if offset > high:
                raise InvalidArgument(
                    f"queue {queue_id} of topic {topic} ends at {high}",
                    offset,
                    "set an offset up to that; the next message will have it",
                )
        if self._claims.count + len(request.offsets) > MAX_SEATS:
            raise BrokerBusy("there are as many queues of groups as the broker takes", MAX_SEATS)
        found = self._settable(request)
        if found and not request.dry_run:
            # First the values that blocks are compared with: else these would undo the reset.
            wanted = {queue_id: offset for queue_id, (_, offset) in found.items()}
            yield from self._log.reset(group, topic, wanted)
            # a queue may have been claimed meanwhile
            free = self._settable(request)
            found = {queue_id: each for queue_id, each in found.items() if queue_id in free}
            for queue_id, (_, offset) in found.items():
                queue = topic, queue_id
                owner, held = self._claims.reset(
                    group, queue, offset, self._now_ms(), is_moved=not request.unclaimed
                )
                if owner:
                    self._tell.reset(group, owner, held)
        return OffsetsReset(request.request, group, topic, found)

    def _settable(self, request: ResetOffsets) -> dict[int, tuple[int, int]]:
        """The queues that may be set right now, with their offsets before and after."""
        found = {}
        for queue_id, offset in request.offsets.items():
            seat = self._claims.seat(request.group, (request.topic, queue_id))
            if seat is None:
                found[queue_id] = NONE, offset
            elif not (request.unclaimed and seat.owner or request.unmoved and seat.is_moved):
                found[queue_id] = seat.offset, offset
        return found

    def put(self, request: SetGroup) -> GroupSet:
        """The answer, to be sent when the file is saved. Raises InvalidArgument, BrokerBusy."""
        groups, group = self._files.groups, check_group(request.group)
        if group not in groups.names() and len(groups.names()) >= MAX_GROUPS:
            raise BrokerBusy("there are as many groups as the broker takes", MAX_GROUPS)
        settings = groups.put(group, request.settings, self._now_ms())
        self._files.note_groups(awaited=True)
        return GroupSet(request.request, group, settings)

    def delete(
        self, request: DeleteGroup, is_queued: Callable[[], bool]
    ) -> Generator[bool | None, None, GroupSet]:
        """The answer, to be sent when saved. Raises PenstockError. For `is_queued` see `reset`."""
        while not is_queued():
            yield True
        group = check_group(request.group)
        if group not in self._names():
            raise self._no_group(group)
        if not self._keeps_offsets(request):
            # first what blocks are compared with: whoever dies in between leaves a group to be
            # deleted
            yield from self._log.end(group)
            if not self._keeps_offsets(request):
                self._claims.forget(group)
        if self._files.groups.delete(group, self._now_ms()):
            self._files.note_groups(awaited=True)
        return GroupSet(request.request, group, {})

    def _keeps_offsets(self, request: DeleteGroup) -> bool:
        """Raises InvalidArgument where the group has members who would lose what they have."""
        group = request.group
        there = self._members.groups.get(group)
        if there and not request.while_used:
            names = sorted(there.members)
            raise InvalidArgument(
                "the group has members, and only one without any can be deleted",
                f"{group}: {', '.join(names[:3])}" + (" ..." if len(names) > 3 else ""),
                "stop its consumers first",
            )
        return request.keep_offsets or bool(there)

    def _names(self) -> set[str]:
        known = {
            *self._files.groups.names(),
            *self._claims.groups(),
            *self._members.groups,
        }
        return {name for name in known if not name.startswith(SYSTEM_GROUP_PREFIX)}

    def _no_group(self, group: str) -> GroupNotFound:
        return GroupNotFound(
            "there is no consumer group of this name", group, did_you_mean(group, self._names())
        )


def _spans(seat: Seat) -> tuple[ClaimSpan, ...]:
    """The claims in which the offset has moved; the last one may be the owner's."""
    own = [seat.span] if seat.owner and seat.span.has_moved else []
    over = [ClaimSpan(*each, lasts=False) for each in seat.spans]
    return (*over, *(ClaimSpan(*each, lasts=True) for each in own))
