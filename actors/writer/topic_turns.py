"""New topics, in turns: what changes config/topics.json takes a disk some ms, and others wait.

What has come meanwhile is done with one change of the file, one request of each peer, and a change
is followed by a pause of many times its length. So a client that makes topics without end takes a
bounded share of the writer's time, and a single new topic waits for nobody.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import AbstractContextManager

from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.wire.messages import CreateTopic, ListTopics, ProduceAnswer, Route, refusal

# The pause after a change, in lengths of the change: topics take a tenth of the time at most.
PAUSE = 9
# Requests with one change, those of one peer that wait, and all.
AT_ONCE, MAX_OF_PEER, MAX_WAITING = 64, 64, 1000

Request = CreateTopic | Route


class TopicTurns:
    """Requests that make topics and have no answer yet."""

    def __init__(
        self,
        topics: TopicAdmin,
        disk: AbstractContextManager[object],
        clock: Clock,
    ) -> None:
        """`disk` is held while the file is changed."""
        self._topics = topics
        self._disk = disk
        self._clock = clock
        self._waiting: OrderedDict[bytes, deque[Request]] = OrderedDict()
        self._count = 0
        self._next_ms = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, peer: bytes, request: Request | ListTopics) -> ProduceAnswer | None:
        """The answer to a request; None where it changes the file, and waits for its turn."""
        try:
            if isinstance(request, ListTopics) or not self._topics.changes(request):
                return self._topics.answer(request)
            self._put(peer, request)
        except PenstockError as error:
            return refusal(error, request.request)
        return None

    def _put(self, peer: bytes, request: Request) -> None:
        of_peer = self._waiting.get(peer, ())
        if len(of_peer) >= MAX_OF_PEER or self._count >= MAX_WAITING:
            raise StoreUnavailable(
                "more topics are being made than the disk takes",
                f"{len(of_peer)} requests of this client wait, {self._count} in all",
                "ask again later",
            )
        self._waiting.setdefault(peer, deque()).append(request)
        self._count += 1

    def turn(self) -> list[tuple[bytes, ProduceAnswer]]:
        """Answers of those whose turn it is now."""
        began_ms = self._clock.monotonic_ms()
        if not self._waiting or began_ms < self._next_ms:
            return []
        asked: list[tuple[bytes, Request]] = []
        for peer in list(self._waiting)[:AT_ONCE]:
            requests = self._waiting.pop(peer)
            asked.append((peer, requests.popleft()))
            if requests:
                self._waiting[peer] = requests  # to the end of the line
        self._count -= len(asked)
        with self._disk:
            answers = self._topics.answer_all([request for _, request in asked])
        now_ms = self._clock.monotonic_ms()
        self._next_ms = now_ms + PAUSE * (now_ms - began_ms)
        return [
            (
                peer,
                refusal(answer, request.request) if isinstance(answer, PenstockError) else answer,
            )
            for (peer, request), answer in zip(asked, answers, strict=True)
        ]
