"""The owners that a queue of a group had before: the last claims in which its offset moved.

They are in memory alone. A message between the first and the next offset of one was acknowledged,
or filtered, by its owner. One that says nothing of messages is not kept: members that come and go
would displace the others.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = -1
MOST_SPANS = 8
# With more queues of groups than this each keeps one: their claims alone are many MB.
MANY_SEATS = 16_384


class Span(NamedTuple):
    """A claim, from its first offset to below the next one.

    Times are the caller's, NONE is unknown; one that has not ended has no `until_ms`.
    """

    owner: str
    first: int
    next: int
    since_ms: int
    until_ms: int = NONE

    @property
    def has_moved(self) -> bool:
        return NONE != self.first < self.next


def followed(spans: tuple[Span, ...], span: Span, seats: int) -> tuple[Span, ...]:
    """The spans that are kept once this one has ended, with this many seats in all."""
    most = MOST_SPANS if seats <= MANY_SEATS else 1
    return (*spans, span)[-most:] if span.has_moved else spans
