"""Who had a queue of a group before: the last claims in which its offset moved, in memory alone.

A message between the first and the next offset of one was acknowledged, or filtered, by its owner.
One that says nothing of messages is not kept: members that come and go would displace the others.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = -1
MOST_SPANS = 8


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


def followed(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """The spans that are kept once this one has ended."""
    return (*spans, span)[-MOST_SPANS:] if span.has_moved else spans
