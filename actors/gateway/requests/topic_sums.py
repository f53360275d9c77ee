"""How much a topic has got lately, by its messages' store times: so a restart loses nothing.

Sizes come from the queues' entries, each of which has its record's size.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.actors.gateway.services import Services
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.queue.reader import unreadable

# Only this many of a queue's newest messages are added up, as all other clients wait meanwhile.
# Older ones count with the average size of these.
MOST_SIZED = 2000


def topic_sums(
    services: Services, topic: str, spans_s: Sequence[int], *, of_bytes: bool
) -> list[int]:
    """Messages, or bytes of the log, in each of these last spans. Raises TopicNotFound."""
    services.topics.routed(topic)
    now_ms, sums = services.now_ms(), [0] * len(spans_s)
    try:
        for slot in services.queues.queues(topic).values():
            low, high = services.queues.range(slot)
            sizes = _newest(services, slot, max(low, high - MOST_SIZED), high) if of_bytes else []
            for number, span in enumerate(spans_s):
                first = services.queues.offset_at(slot, now_ms - span * 1000)
                count = high - max(low, first)
                sums[number] += bytes_of(count, sizes) if of_bytes else count
    except OSError as error:
        raise unreadable(topic, error) from None
    return sums


def _newest(services: Services, slot: int, start: int, stop: int) -> list[int]:
    """The sizes of the records of these entries, the oldest first."""
    raw = services.queues.entries(slot, start, stop) if start < stop else b""
    return [size for _, size, _ in ENTRY.iter_unpack(raw)]


def bytes_of(count: int, sizes: Sequence[int]) -> int:
    """The bytes of a queue's last `count` messages; `sizes` has those of the newest."""
    if count <= len(sizes):
        return sum(sizes[len(sizes) - count :])
    return sum(sizes) * count // max(1, len(sizes))
