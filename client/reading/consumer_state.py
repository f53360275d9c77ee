"""What a consumer says about itself, shared by the synchronous and the asyncio consumer.

Nothing here waits, so the two need no versions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Message
from penstock.shared.notebook import as_table

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.arrow.columns import Columns


class ConsumerState:
    """Where a consumer is in the queues of its topic. Offsets count the messages of one queue."""

    _core: ConsumerCore
    _address: BrokerAddress
    # what an iteration has polled and not returned yet: if it breaks off, this comes next
    _rest: Iterator[Message] = iter(())

    def _take(self) -> list[Message]:
        return list(self._rest) or self._core.take()

    def _take_bodies(self) -> list[bytes | Message]:
        return [*self._rest] or self._core.take_bodies()

    def _taking(self, made: Columns) -> Callable[[], list[pa.RecordBatch]]:
        take = made.taking(self._core)

        def rows() -> list[pa.RecordBatch]:
            found = made.of_queues(list(copy(self._rest)))
            self._rest = iter(())
            return found or take()

        return rows

    @property
    def positions(self) -> dict[int, int]:
        """Queue -> the offset of the next message that no `poll` or iteration has returned."""
        left = reversed(list(copy(self._rest)))
        return self._core.positions | {each.queue_id: each.queue_offset for each in left}

    @property
    def starts(self) -> dict[int, int]:
        """Queue -> where reading it began; empty until the broker's first answer."""
        return self._core.starts

    @property
    def is_placed(self) -> bool:
        """Whether the broker has said where the queues begin and end. Messages that are stored from
        then on are read, even with start="latest"."""
        return self._core.described

    @property
    def left(self) -> int:
        """Without `follow`: how many offsets are left until the end, in all queues together."""
        return self._core.left

    @property
    def skipped(self) -> int:
        """How many offsets were passed over because their messages have expired or are lost."""
        return self._core.losses.count

    def __repr__(self) -> str:
        return f"<Consumer of {self._core.topic} at {self._address.name}>"

    def _repr_html_(self) -> str:
        place = [(f"queue {queue}", f"next is {at}") for queue, at in self.positions.items()]
        rows = [("topic", self._core.topic), ("broker", self._address.name), *place]
        return as_table("Consumer", rows)

    def end_at(self, ends: Mapping[int, int] | int) -> None:
        """Without `follow`: stop before these offsets by queue, or before this one in each queue.

        An end past a queue's own changes nothing. To be called before the first `poll`.
        """
        self._core.end_at(ends)
