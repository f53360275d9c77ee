"""The request that a consumer has on its way: one at a time, sent again while no answer comes.

An answer belongs to it by its number. A pull with credit may be answered several times and stays
open meanwhile. It is never sent again after the first of them, for it says where the consumer was:
then another one is made. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.core.timeouts import Repeats
from penstock.shared.errors import ProtocolError
from penstock.shared.wire.messages import ConsumeAnswer, Pulled, Refused


class OpenRequest:
    """Of one consumer."""

    __slots__ = ("header", "number", "goes_on", "repeats", "_run")

    def __init__(self, timeout_ms: int, hears_losses: bool) -> None:
        """`hears_losses`: as Repeats."""
        self.repeats = Repeats(timeout_ms, hears_losses)
        self.number = 0
        # what is sent; b"" where nothing is open
        self.header = b""
        # whether it has been answered, and other answers are to come
        self.goes_on = False
        self._run = ""

    @property
    def is_open(self) -> bool:
        return bool(self.header)

    def next_number(self) -> int:
        """That of a request to be made."""
        self.number += 1
        return self.number

    def put(self, header: bytes, run: str) -> bytes:
        """The request of that number, which names this run of the broker."""
        self.header, self._run, self.goes_on = header, run, False
        return header

    def has_to_change(self, run: str) -> bool:
        """Whether another has to be sent in its place: the consumer has moved, or the broker."""
        return self.goes_on or self._run != run

    def close(self) -> None:
        """Nothing is waited for; what comes to it is dropped."""
        self.header = b""

    def is_answered_by(self, answer: ConsumeAnswer) -> bool:
        """Whether this is an answer to it."""
        # a request that the broker could not read, or not serve, is refused without its number
        is_refusal = isinstance(answer, Refused) and not answer.request
        return self.is_open and (answer.request == self.number or is_refusal)

    def take(self, answer: ConsumeAnswer, cursors: Mapping[int, int], now_ms: int) -> bool:
        """Close it, or wait for the next answer; whether this one is of use.

        It is not where one before it got lost, or it came twice: it does not begin at the cursors.
        Raises ProtocolError where the first one does not.
        """
        if isinstance(answer, Pulled):
            if any([cursors.get(part.queue_id) != part.offset for part in answer.slices]):
                self.close()
                if self.goes_on:
                    return False
                what = "an answer begins where nobody asked"
                raise ProtocolError(what, dict(cursors), str(answer)[:500])
            if answer.credit > 0:
                self.goes_on = True
                self.repeats.begin(now_ms)
                return True
        self.close()
        return True
