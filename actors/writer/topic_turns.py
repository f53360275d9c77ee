"""Changes of topics, in turns: each takes a disk some ms, and others wait.

One change of the file answers the requests that have come meanwhile: one of each peer in its turn,
AT_ONCE at most. A pause of many times its length follows. So a client that makes topics without end
takes a bounded share of the writer's time, and a single new topic waits for nobody. Lists of all
topics have turns of the same kind: one at a time, and none while too many answers are unread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import AbstractContextManager

from penstock.actors.writer.topic_admin import Change, LogTail, TopicAdmin
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.memory.positions import Positions
from penstock.shared.wire.messages import (
    DescribeTopic,
    ListTopics,
    ProduceAnswer,
    TopicRequest,
    encode,
    refusal,
)
from penstock.shared.wire.unread_answers import SHORT_ANSWER_BYTES

# The pause after a change, in lengths of the change: topics take a tenth of the time at most.
PAUSE = 9
# Requests with one change; waiting requests of one peer; all waiting requests. A change costs what
# the file does, and little more for each topic: a thousand groups that begin at once need few.
AT_ONCE, MAX_OF_PEER, MAX_WAITING = 512, 512, 1000


class TopicTurns:
    """Requests that make topics, or ask for all of them, and have no answer yet."""

    def __init__(
        self,
        topics: TopicAdmin,
        log: LogTail,
        positions: Positions,
        disk: AbstractContextManager[object],
        clock: Clock,
    ) -> None:
        """`disk` is held while the file is changed."""
        self._topics = topics
        self._log = log
        self._positions = positions
        # a predecessor may have changed the file and died before it told anybody
        topics.version = positions["topic_changes"] + 1
        self._tell()
        self._disk = disk
        self._clock = clock
        self._waiting: OrderedDict[bytes, deque[Change]] = OrderedDict()
        self._count = 0
        self._next_ms = 0
        # one of each peer; a peer that asks again keeps its place
        self._lists: OrderedDict[bytes, ListTopics] = OrderedDict()
        self._next_list_ms = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nobody waits, neither for a change nor for a list."""
        return not (self._waiting or self._lists)

    def ask(self, peer: bytes, request: TopicRequest) -> ProduceAnswer | None:
        """The answer to a request; None where it waits for its turn."""
        try:
            if isinstance(request, ListTopics):
                if len(self._lists) < MAX_WAITING or peer in self._lists:
                    self._lists[peer] = request  # a peer that found no room asks again
                return None
            if isinstance(request, DescribeTopic) or not self._topics.changes(request):
                return self._topics.look_up(request)
            self._put(peer, request)
        except PenstockError as error:
            return refusal(error, request.request)
        return None

    def _tell(self) -> None:
        """Tell the other actors of changes, before the answer to whoever asked for one, and before
        anything is stored after it."""
        if self._topics.version != self._positions["topic_changes"]:
            self._positions.publish("deleted_topics", self._topics.deleted)
            self._positions.publish("topic_changes", self._topics.version)

    def _put(self, peer: bytes, request: Change) -> None:
        of_peer = self._waiting.get(peer, ())
        if len(of_peer) >= MAX_OF_PEER or self._count >= MAX_WAITING:
            raise StoreUnavailable(
                "more topics are being made than the disk takes",
                f"{len(of_peer)} requests of this client wait, {self._count} in all",
                "ask again later",
            )
        self._waiting.setdefault(peer, deque()).append(request)
        self._count += 1

    def turn(self, room_bytes: int) -> list[tuple[bytes, bytes]]:
        """Encoded answers to those whose turn it is; `room_bytes` more may be unread."""
        listed = self._list() if room_bytes > SHORT_ANSWER_BYTES else []
        return listed + [(peer, encode(answer)) for peer, answer in self._make()]

    def _list(self) -> list[tuple[bytes, bytes]]:
        began_ms = self._clock.monotonic_ms()
        if not self._lists or began_ms < self._next_list_ms:
            return []
        peer, request = self._lists.popitem(last=False)
        answer = encode(self._topics.look_up(request))
        now_ms = self._clock.monotonic_ms()
        self._next_list_ms = now_ms + PAUSE * (now_ms - began_ms)
        return [(peer, answer)]

    def _make(self) -> list[tuple[bytes, ProduceAnswer]]:
        began_ms = self._clock.monotonic_ms()
        if not self._waiting or began_ms < self._next_ms:
            return []
        asked: list[tuple[bytes, Change]] = []
        while self._waiting and len(asked) < AT_ONCE:
            peer, requests = self._waiting.popitem(last=False)
            asked.append((peer, requests.popleft()))
            if requests:
                self._waiting[peer] = requests  # to the end of the line
        self._count -= len(asked)
        with self._disk:
            slots = self._positions["deleted_queues"]
            answers = self._topics.answer_all([request for _, request in asked], self._log, slots)
        self._tell()
        now_ms = self._clock.monotonic_ms()
        self._next_ms = now_ms + PAUSE * (now_ms - began_ms)
        return [
            (
                peer,
                refusal(answer, request.request) if isinstance(answer, PenstockError) else answer,
            )
            for (peer, request), answer in zip(asked, answers, strict=True)
        ]
