"""Members that ask for a queue that another member has: they wait until that one has made its last
commit.

Owns who waits, and for what. It must not know how the coordinator is asked: `claim` and `release`,
which it is given, do that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.grouping.answers import offset_reply, taken
from penstock.actors.gateway.grouping.members import Member, Members, Queue
from penstock.actors.gateway.serving import Serving
from penstock.shared.errors import PenstockError

HANDOVER_MS = 1000
# How long a member waits for a queue that another one has; its client waits for 3 s.
WAIT_MS = 2000
AGAIN_MS = 100


class _Wanted(NamedTuple):
    """A member that waits for a queue's offset."""

    call: Call
    member: Member
    queue: Queue
    since_ms: int


class Handover:
    """A member that asks for its group's offset in a queue has the queue from then on."""

    def __init__(
        self,
        members: Members,
        serving: Serving,
        answer: Callable[[Call, Reply], None],
        claim: Callable[[Member, str, list[int], Callable[[Any], None]], None],
        release: Callable[[Member, list[Queue]], None],
    ) -> None:
        self._members, self._serving, self._answer = members, serving, answer
        self._claim, self._release = claim, release
        self._wanted: list[_Wanted] = []
        self._now_ms = self._again_ms = 0

    def want(self, call: Call, member: Member, queue: Queue) -> None:
        """Claim a queue, and answer with its offset."""
        self._claim_for(_Wanted(call, member, queue, call.now_ms))

    def hurry(self) -> None:
        """A group has changed: a queue that is waited for may be free."""
        self._again_ms = 0

    def work(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._wanted and now_ms >= self._again_ms:
            self._again_ms = now_ms + AGAIN_MS
            wanted, self._wanted = self._wanted, []
            for each in wanted:
                self._serving.do(each.call, partial(self._claim_for, each))

    def _claim_for(self, wanted: _Wanted) -> None:
        member, queue = wanted.member, wanted.queue
        owner = self._members.owner(member.group, queue)
        waited_ms = self._now_ms - wanted.since_ms
        if owner is not None and owner is not member and not owner.orderly:
            changed_ms = self._members.changed.get(owner.group, wanted.since_ms)
            if not owner.claims[queue].is_left(changed_ms) and waited_ms < HANDOVER_MS:
                self._wanted.append(wanted)
                return
            self._release(owner, [queue])
        # the offset was moved before this question, and the client may go on pulling where it was:
        # its next pull is told of the move
        is_to_be_told = queue in member.moved

        def claimed(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                self._answer(wanted.call, refusal(answer))
            elif answer.queues:
                if not is_to_be_told:  # of a move since then this answer tells it
                    member.moved.discard(queue)
                self._answer(wanted.call, offset_reply(answer.queues[0].offset))
            elif self._now_ms - wanted.since_ms < WAIT_MS:
                self._wanted.append(wanted)
            else:
                self._answer(wanted.call, refusal(taken(*queue)))

        self._claim(member, queue[0], [queue[1]], claimed)
