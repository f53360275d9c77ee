"""A pull that may have to wait, what comes of it, and what a cursor is told that has no message.

Both kinds of pull are made of this: plain ones, which take every message (plain_pulls.py), and
those with a filter, which are looked through bit by bit (filtered_pulls.py). What comes of a pull
is handed up as a value. Sending it is the reader's, which alone has the socket.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.shared.errors import PenstockError
from penstock.shared.log.found_records import FoundRecords
from penstock.shared.queue.reader import QueueReader, unreadable
from penstock.shared.wire.messages import Pull, QueueSlice, error_words
from penstock.shared.wire.pulled_parts import UnreadableQueue

NEVER_MS = 1 << 62
# What a consumer may have its pull held for.
MAX_WAIT_MS = 30_000


class HeldPull(NamedTuple):
    """A consumer's pull, and until when it may wait.

    `position` is how far the log was acknowledged when it came. A cursor past a queue's end may be
    right until the queues hold everything up to there: the reput may only be late.
    """

    peer: bytes
    pull: Pull
    until_ms: int
    position: int


class Outcome(NamedTuple):
    """What a pull is answered with: slices and their records, and the queues that cannot be read.

    The others' messages go to their consumer all the same, who is to stay where it is there.
    """

    peer: bytes
    pull: Pull
    slices: list[QueueSlice]
    records: list[FoundRecords]
    unreadable: list[UnreadableQueue]
    credit: int = 0  # answers that may still come: the pull waits on


def unreadable_queue(
    held: HeldPull, queue_id: int, error: PenstockError | OSError
) -> UnreadableQueue:
    """What a consumer is told of a queue. Raises the error where this process lacks something."""
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
    """Where a cursor has to go that stands at no message it can have; None if it stands right.

    `span` is the queue's range, and (0, 0) for one that is not there. `is_complete` says that the
    queues hold all that the consumer may know of.
    """
    low, high = span
    if cursor < low:
        # expired: the consumer goes on where the queue begins now
        return QueueSlice(queue_id, cursor, cursor, low, high, 0)
    if cursor < high:
        whole = queues.whole_from(slot, cursor)
        # Lost. A consumer is told of it as of what has expired, and sees no difference: what is
        # given as the queue's beginning is the next message that is whole.
        return QueueSlice(queue_id, cursor, cursor, whole, high, 0) if whole > cursor else None
    if cursor > high and is_complete:
        # RocketMQ's OFFSET_OVERFLOW_BADLY: there is no such message, and there will be others
        # under these offsets, so it goes back to the end
        return QueueSlice(queue_id, cursor, high, low, high, 0)
    return None
