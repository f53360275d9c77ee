"""The one request that a consumer has in flight; it is sent again while no answer comes.

An answer belongs to it by its number. A pull with credit may be answered several times and stays
open meanwhile. Once answered, it is never sent again, because it says where the consumer was
before; a new one is made instead. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.core.timeouts import Repeats
from penstock.shared.errors import ProtocolError
from penstock.shared.wire.messages import ConsumeAnswer, Pulled, Refused


class OpenRequest:
    """The open request of one consumer."""

    __slots__ = ("header", "number", "goes_on", "repeats", "_run")

    def __init__(self, timeout_ms: int, hears_losses: bool) -> None:
        """`hears_losses`: as in Repeats."""
        self.repeats = Repeats(timeout_ms, hears_losses)
        self.number = 0
        # the encoded request; b"" if none is open
        self.header = b""
        # whether an answer has come and more are to come
        self.goes_on = False
        self._run = ""

    @property
    def is_open(self) -> bool:
        return bool(self.header)

    def next_number(self) -> int:
        """The number of a request that is about to be made."""
        self.number += 1
        return self.number

    def put(self, header: bytes, run: str) -> bytes:
        """Open the request of that number, which names this run of the broker."""
        self.header, self._run, self.goes_on = header, run, False
        return header

    def has_to_change(self, run: str) -> bool:
        """Whether a new request must replace it, because the consumer or the broker has moved."""
        return self.goes_on or self._run != run

    def close(self) -> None:
        """Stop waiting for answers; those that still come are dropped."""
        self.header = b""

    def is_answered_by(self, answer: ConsumeAnswer) -> bool:
        """Whether this is an answer to it."""
        # the broker refuses a request that it cannot read or serve without giving its number
        is_refusal = isinstance(answer, Refused) and not answer.request
        return self.is_open and (answer.request == self.number or is_refusal)

    def take(self, answer: ConsumeAnswer, cursors: Mapping[int, int], now_ms: int) -> bool:
        """Close the request, or wait for its next answer. Returns whether this answer is of use.

        An answer is of no use if it does not begin at the cursors, because one before it was lost
        or it came twice. Raises ProtocolError if the first answer does not begin there.
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
