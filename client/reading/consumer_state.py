"""What a consumer tells of itself: the same for the synchronous and the asyncio one.

Nothing here waits, so nothing here differs between the two; what does is in each one's own file.
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
    # of what an iteration has polled that which it has not given: if it breaks off this comes next
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
        """Queue -> the offset of its next message that no `poll` and no iteration has given."""
        left = reversed(list(copy(self._rest)))
        return self._core.positions | {each.queue_id: each.queue_offset for each in left}

    @property
    def starts(self) -> dict[int, int]:
        """Queue -> where it was begun; empty until the broker has answered the first time."""
        return self._core.starts

    @property
    def is_placed(self) -> bool:
        """Whether the broker has said where the queues are: what is stored from then on is read,
        also with start="latest"."""
        return self._core.described

    @property
    def left(self) -> int:
        """How many offsets are left until the end, in all queues together, without `follow`."""
        return self._core.left

    @property
    def skipped(self) -> int:
        """How many offsets were passed over: their messages have expired or are lost."""
        return self._core.losses.count

    def __repr__(self) -> str:
        return f"<Consumer of {self._core.topic} at {self._address.name}>"

    def _repr_html_(self) -> str:
        place = [(f"queue {queue}", f"next is {at}") for queue, at in self.positions.items()]
        rows = [("topic", self._core.topic), ("broker", self._address.name), *place]
        return as_table("Consumer", rows)

    def end_at(self, ends: Mapping[int, int] | int) -> None:
        """Without `follow`: stop before these offsets of queues, or before this one in each queue.

        An end past what a queue has changes nothing. To be called before the first `poll`.
        """
        self._core.end_at(ends)
