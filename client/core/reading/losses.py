"""Messages that a consumer passes over because they expired or are lost: counts them, and logs the
first time."""

from __future__ import annotations

from penstock.client.core import log
from penstock.client.core.message import Message, without_tombstones


class Losses:
    """The losses of one consumer."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        # how many offsets were passed over
        self.count = 0

    def pass_over(self, queue_id: int, cursor: int, min_offset: int) -> None:
        """A queue goes on at `min_offset`; the broker does not say why."""
        if not self.count:
            log().warning(
                "messages of %s, queue %d, have expired or are lost: going on at offset %d "
                "instead of %d",
                *(self._topic, queue_id, min_offset, cursor),
            )
        self.count += min_offset - cursor

    def went_back(self, queue_id: int, cursor: int, end: int) -> None:
        """A queue ends before the offset that was asked for."""
        log().warning(
            "queue %d of %s ends at offset %d: going on there instead of at %d",
            *(queue_id, self._topic, end, cursor),
        )

    def without_lost(self, found: list[Message]) -> list[Message]:
        """The messages, without the tombstones by which a repair has replaced lost ones."""
        whole = without_tombstones(found)
        if (lost := len(found) - len(whole)) and not self.count:
            log().warning(
                "messages of %s are lost: a repair of the store has found them damaged",
                self._topic,
            )
        self.count += lost
        return whole
