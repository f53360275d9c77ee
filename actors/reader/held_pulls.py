"""A pull that may have to wait, its outcome, and what a cursor without a message is told.

Both kinds of pull use this: plain ones, which take every message (plain_pulls.py), and those with a
filter, which are searched for bit by bit (filtered_pulls.py). An outcome is passed up as a value.
The reader sends it, because only the reader has the socket.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.shared.errors import PenstockError
from penstock.shared.log.found_records import FoundRecords
from penstock.shared.queue.reader import QueueReader, unreadable
from penstock.shared.wire.messages import Pull, QueueSlice, error_words
from penstock.shared.wire.pulled_parts import UnreadableQueue

NEVER_MS = 1 << 62
# The longest time for which a consumer may have its pull held.
MAX_WAIT_MS = 30_000


class HeldPull(NamedTuple):
    """A consumer's pull, and until when it may wait.

    `position` is how far the log was acknowledged when the pull came. A cursor past a queue's end
    may be right until the queues hold everything up to there: the reput may only be late.
    """

    peer: bytes
    pull: Pull
    until_ms: int
    position: int


class Outcome(NamedTuple):
    """A pull's answer: slices and their records, and the queues that cannot be read.

    The consumer still gets the messages of the others; in an unreadable queue it stays where it is.
    """

    peer: bytes
    pull: Pull
    slices: list[QueueSlice]
    records: list[FoundRecords]
    unreadable: list[UnreadableQueue]
    credit: int = 0  # how many answers may still come: the pull goes on waiting


def unreadable_queue(
    held: HeldPull, queue_id: int, error: PenstockError | OSError
) -> UnreadableQueue:
    """What a consumer is told of a queue. Raises the error if this process lacks something."""
    if isinstance(error, OSError):
        error = unreadable(held.pull.topic, error)
    return UnreadableQueue(queue_id, *error_words(error))


def moved(
    queues: QueueReader,
    slot: int,
    queue_id: int,
    cursor: int,
    span: tuple[int, int],
    is_complete: bool,
) -> QueueSlice | None:
    """Where a cursor must go if it is at no message that it can have; None if it is right.

    `span` is the queue's range, or (0, 0) if there is no such queue. `is_complete` says that the
    queues hold everything that the consumer may know of.
    """
    low, high = span
    if cursor < low:
        # expired: the consumer goes on where the queue begins now
        return QueueSlice(queue_id, cursor, cursor, low, high, 0)
    if cursor < high:
        whole = queues.whole_from(slot, cursor)
        # Lost. A consumer cannot tell this from messages that have expired: it is given the next
        # whole message as the queue's beginning.
        return QueueSlice(queue_id, cursor, cursor, whole, high, 0) if whole > cursor else None
    if cursor > high and is_complete:
        # RocketMQ's OFFSET_OVERFLOW_BADLY: there is no such message, and others will get these
        # offsets, so the consumer goes back to the end
        return QueueSlice(queue_id, cursor, high, low, high, 0)
    return None
