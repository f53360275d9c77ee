"""Requests about topics. Their arguments are checked before anything is sent.

A program's requests get their numbers when they are sent; an actor's requests for topics that it
needs get theirs here. No sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from penstock.client.core.arguments import check_bool, check_text, check_whole
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.names import check_topic
from penstock.shared.wire.messages import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Refused,
    Routed,
    UpdateTopic,
    decode_produce_answer,
    encode,
    error_from_refusal,
)

# A request that is unanswered or could not be done is repeated then: the writer may be a new one.
AGAIN_MS = 5000
MAX_WANTED = 10_000
# The writer lets this many requests of one client wait, and does them together.
MAX_ASKED = 512


def _topic(topic: str) -> str:
    return check_topic(check_text("topic", topic))


def create_request(topic: str, queues: int) -> CreateTopic:
    """Asks for a topic, or for more queues of it. Raises InvalidArgument."""
    return CreateTopic(0, _topic(topic), check_whole("queues", queues))


class TopicChanges(TypedDict, total=False):
    """The keywords of `update_topic`, in both producers."""

    read_queues: int | None
    write_queues: int | None
    perm: int | None
    order: bool | None
    attributes: Mapping[str, str] | None
    ends: Mapping[int, int] | None
    dry_run: bool


def update_request(
    topic: str,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    perm: int | None = None,
    order: bool | None = None,
    attributes: Mapping[str, str] | None = None,
    ends: Mapping[int, int] | None = None,
    dry_run: bool = False,
) -> UpdateTopic:
    """Asks for changes of a topic. Raises InvalidArgument, and TypeError for an unknown change."""
    numbers = {"read_queues": read_queues, "write_queues": write_queues, "perm": perm}
    for name, number in numbers.items():
        if number is not None:
            check_whole(name, number)
    if order is not None:
        check_bool("order", order)
    changes = {
        check_text("a key of attributes", key): check_text("a value of attributes", value)
        for key, value in (attributes or {}).items()
    }
    return UpdateTopic(
        0,
        _topic(topic),
        read_queues,
        write_queues,
        perm,
        order,
        changes,
        None if ends is None else {check_whole("a queue", q): e for q, e in ends.items()},
        check_bool("dry_run", dry_run),
    )


def delete_request(topic: str, dry_run: bool) -> DeleteTopic:
    """Asks to delete a topic. Raises InvalidArgument."""
    return DeleteTopic(0, _topic(topic), check_bool("dry_run", dry_run))


def describe_request(topic: str) -> DescribeTopic:
    """Asks for a topic's settings. Raises InvalidArgument."""
    return DescribeTopic(0, _topic(topic))


class WantedTopics:
    """Topics that an actor needs and that do not exist: it has the writer create them.

        want -> asked for -> made, or refused

    Nothing waits for this: until a topic exists, its messages have no queue. A request without an
    answer is repeated, and so is one that cannot be done now.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._number = 0
        # topic -> queues, in the order in which they are asked for
        self._wanted: dict[str, int] = {}
        # request -> (topic, when it was asked for); oldest first
        self._asked: dict[int, tuple[str, int]] = {}
        self._refused: list[tuple[str, PenstockError]] = []

    def want(self, topic: str, queues: int) -> None:
        """Have a topic created. Past MAX_WANTED this does nothing: the caller asks again later."""
        if len(self._wanted) < MAX_WANTED:
            self._wanted.setdefault(topic, queues)

    def outgoing(self, now_ms: int) -> Iterator[bytes]:
        """Requests to be sent now. If one cannot be sent, the driver calls `not_connected`."""
        for number, (_, asked_ms) in list(self._asked.items()):
            if now_ms - asked_ms < AGAIN_MS:
                break
            del self._asked[number]
        if len(self._asked) >= min(MAX_ASKED, len(self._wanted)):
            return
        under_way = {topic for topic, _ in self._asked.values()}
        for topic in [each for each in self._wanted if each not in under_way]:
            if len(self._asked) >= MAX_ASKED:
                return
            self._number += 1
            self._asked[self._number] = topic, now_ms
            queues = self._wanted[topic]
            yield encode(CreateTopic(self._number, topic, queues, self._run_id))

    def not_connected(self) -> None:
        """The last request could not be sent: the writer is being replaced."""
        self._asked.popitem()

    def received(self, parts: Sequence[bytes]) -> bool:
        """Whether this was an answer to one of these requests. Raises ProtocolError."""
        if not self._asked:
            return False
        answer = decode_produce_answer(parts[0])
        # a refusal with a session is of a frame, and not for this class
        if not isinstance(answer, Routed | Refused):
            return False
        if isinstance(answer, Refused) and answer.session:
            return False
        topic, _ = self._asked.get(answer.request, ("", 0))
        if not topic:
            return False
        if isinstance(answer, Refused):
            self._refused.append((topic, error_from_refusal(answer)))
            if answer.status == StoreUnavailable.status:
                return True  # the request counts as asked until it is time to repeat it
        del self._asked[answer.request]
        self._wanted.pop(topic, None)
        return True

    def refused(self) -> list[tuple[str, PenstockError]]:
        """The refusals since the last call. StoreUnavailable may pass by itself; any other refusal
        is final as far as is known here."""
        found, self._refused = self._refused, []
        return found
