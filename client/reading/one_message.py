"""Pulls the message at one offset alone: to look at just one, or because one among several is
damaged. In an answer with several records, only the records themselves say where each one ends.
"""

from __future__ import annotations

from penstock.client.connecting.asker import Asker
from penstock.shared.errors import QueueUnreadable
from penstock.shared.wire.messages import Pull, Pulled, QueueSlice, Subscription

# A broker that has much to send to others may have no room for this one at once.
WAIT_MS = 1000
_ANY_NUMBER = (1 << 31) - 1  # known queues: new ones are no reason to answer


def pull_one(
    asker: Asker,
    topic: str,
    queue_id: int,
    offset: int,
    wanted: Subscription | None = None,
) -> tuple[QueueSlice, bytes] | None:
    """What the broker says of an offset, and the record there, or the next `wanted` one after it.

    The record is as the broker read it, unchecked. None if nothing comes yet. Raises the broker's
    refusal, and QueueUnreadable.
    """

    def question(number: int, run: str) -> Pull:
        cursors = {queue_id: offset}
        return Pull(number, topic, cursors, _ANY_NUMBER, 1, WAIT_MS, wanted, False, run)

    answer, record = asker.ask_for_records(question, Pulled)
    for unreadable in answer.unreadable:
        raise QueueUnreadable(unreadable.what, unreadable.value, unreadable.hint)
    return (answer.slices[0], record) if answer.slices else None
