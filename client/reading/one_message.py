"""The message at an offset of a queue, pulled alone: to look at one, or at each because one of them
is damaged. Where a record ends in an answer with several, the records themselves say.
"""

from __future__ import annotations

from penstock.client.connecting.asker import Asker
from penstock.shared.errors import QueueUnreadable
from penstock.shared.wire.messages import Pull, Pulled, QueueSlice, Subscription

# A broker with much to send to others may have no room for this one at once.
WAIT_MS = 1000
_ANY_NUMBER = (1 << 31) - 1  # of queues: new ones are no reason to answer


def pull_one(
    asker: Asker,
    topic: str,
    queue_id: int,
    offset: int,
    wanted: Subscription | None = None,
) -> tuple[QueueSlice, bytes] | None:
    """What the broker says of an offset, and the record there, or after it, that is `wanted`.

    The record is as it was read. None where nothing comes yet. Raises what the broker refuses, and
    QueueUnreadable.
    """

    def question(number: int, run: str) -> Pull:
        cursors = {queue_id: offset}
        return Pull(number, topic, cursors, _ANY_NUMBER, 1, WAIT_MS, wanted, False, run)

    answer, record = asker.ask_for_records(question, Pulled)
    for unreadable in answer.unreadable:
        raise QueueUnreadable(unreadable.what, unreadable.value, unreadable.hint)
    return (answer.slices[0], record) if answer.slices else None
