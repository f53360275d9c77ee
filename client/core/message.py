"""The messages in a broker's answers; `Message` has their fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.formats.properties import LOST_MARK, is_tombstone
from penstock.shared.formats.record_layout import AT_QUEUE_ID, AT_QUEUE_OFFSET
from penstock.shared.loops.active import Message, bodies, messages

__all__ = ["Message", "Part", "longest_answer_bytes", "read_records", "split_records"]

_ANY_OFFSET = range((1 << 63) - 1)
# An answer has up to 8 MiB of records, or a single larger one, and a description.
_RECORDS_BYTES, _SPARE_BYTES = 8 << 20, 1 << 20


class Source(NamedTuple):
    """Where records are from, for error messages; a remote client does not know the store."""

    topic: str = ""
    store: str = ""


def longest_answer_bytes(max_body_bytes: int) -> int:
    """The most bytes of one part of an answer, for a client that takes bodies up to this limit."""
    return max(_RECORDS_BYTES, max_body_bytes) + _SPARE_BYTES


def read_records(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: range,
    max_body_bytes: int,
    of: Source = Source(),  # noqa: B008 - a tuple
) -> tuple[list[Message], bool]:
    """The messages in a part of a payload, and whether one of them may be a tombstone.

    With `queue_id` they must be of that queue, with ascending offsets within `offsets`. Otherwise
    StoreDamaged is raised: a queue entry that changed on disk can point anywhere.
    """
    within = offsets.start, offsets.stop
    made, end, marked = _whole(payload, place, queue_id, within, max_body_bytes)
    if end != place[1]:
        from penstock.shared.next_steps import verify

        least = made[-1].queue_offset + 1 if made else offsets.start
        error = StoreDamaged(
            "an entry of a consume queue leads to no message",
            f"{of.topic and f'topic {of.topic}, '}queue {queue_id}, offset {least}",
            verify(of.store or None),
        )
        error.queue_offset = least
        raise error
    return made, marked


def _whole(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    within: tuple[int, int],
    max_body_bytes: int,
) -> tuple[list[Message], int, bool]:
    """The messages up to the first wrong one, where that is, and whether one may be a tombstone.

    No checksum covers a queue offset. If an offset goes back although its record is of this queue,
    then the record before it is the damaged one: its offset is too high.
    """
    found = messages(payload, place, queue_id, within, max_body_bytes, LOST_MARK)
    made, end, _ = found
    if made and queue_id is not None and place[1] - end > AT_QUEUE_OFFSET + 8:
        raw = bytes(payload[end : end + AT_QUEUE_OFFSET + 8])
        is_of_queue = int.from_bytes(raw[AT_QUEUE_ID : AT_QUEUE_ID + 4], "big") == queue_id
        offset = int.from_bytes(raw[AT_QUEUE_OFFSET:], "big")
        if is_of_queue and within[0] < offset <= made[-1].queue_offset:
            below = within[0], offset
            return messages(payload, place, queue_id, below, max_body_bytes, LOST_MARK)
    return found


class Part(NamedTuple):
    """Records of a queue that have come and are not taken yet: a place in a payload.

    Their offsets are at least `start` and below `stop`; those from `end` on are not wanted.
    """

    queue_id: int
    start: int
    stop: int
    end: int
    payload: bytes | memoryview
    place: tuple[int, int]
    of: Source = Source()

    @property
    def size(self) -> int:
        return self.place[1] - self.place[0]

    def messages(self, max_body_bytes: int) -> tuple[list[Message], bool]:
        """What `read_records` returns for this part, and raises."""
        within = range(self.start, self.stop)
        of_queue = self.queue_id, within, max_body_bytes, self.of
        return read_records(self.payload, self.place, *of_queue)

    def split(self, max_body_bytes: int) -> tuple[Part, Part]:
        """The readable part before the damage, and the rest. Only for a part whose `messages`
        raises StoreDamaged at an offset after the first."""
        within = self.start, self.stop
        made, at, _ = _whole(self.payload, self.place, self.queue_id, within, max_body_bytes)
        offset = made[-1].queue_offset + 1
        return (
            self._replace(stop=offset, place=(self.place[0], at)),
            self._replace(start=offset, place=(at, self.place[1])),
        )

    def bodies(self, max_body_bytes: int) -> tuple[list[bytes | Message], bool]:
        """Like `messages`, but only the bodies; whole messages if compressed or damaged."""
        within = self.start, self.stop
        made, end, marked = bodies(
            self.payload, self.place, self.queue_id, within, max_body_bytes, LOST_MARK
        )
        if end != self.place[1]:
            self.messages(max_body_bytes)  # raises an error that says where
        return made, marked


# OfPart converts a part, and says whether one of its messages may be a tombstone.
_T = TypeVar("_T")
OfPart: TypeAlias = "Callable[[Part], tuple[Sequence[_T], bool]]"
OfMessages: TypeAlias = "Callable[[list[Message]], Sequence[_T]]"


def split_records(
    payload: bytes | memoryview, max_body_bytes: int = MAX_BODY_BYTES
) -> list[Message]:
    """The messages of a payload of whole records, of any queues. Raises StoreDamaged."""
    return read_records(payload, (0, len(payload)), None, _ANY_OFFSET, max_body_bytes)[0]


def without_tombstones(found: list[Message]) -> list[Message]:
    """The messages, without the tombstones by which a repair has replaced lost ones."""
    return [message for message in found if not is_tombstone(message.properties)]
