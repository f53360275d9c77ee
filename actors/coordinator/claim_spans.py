"""The previous owners of a group's queue: the last claims in which its offset moved.

They are in memory alone. The owner of a claim acknowledged, or filtered, every message from the
claim's first offset to below its next. A claim that moved nothing is not kept: members that come
and go would displace the others.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = -1
MOST_SPANS = 8
# If groups have more queues than this in all, each keeps one span: claims alone take many MB.
MANY_SEATS = 16_384


class Span(NamedTuple):
    """A claim, from its first offset to below its next.

    Times are by the caller's clock; NONE is unknown. A claim that has not ended has no `until_ms`.
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
    """The spans to keep once this one has ended, with this many seats in all."""
    most = MOST_SPANS if seats <= MANY_SEATS else 1
    return (*spans, span)[-most:] if span.has_moved else spans
