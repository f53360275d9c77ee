"""Divides a limit among queues in proportion to how much waits in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def share(starts: Mapping[K, int], ends: Mapping[K, int], most: int) -> dict[K, int]:
    """Ends that are `most` past the starts in total, or `ends` themselves if those are nearer.

    Each queue gets its share, so that none waits for a longer one. What rounding leaves over goes
    to those with the most left.
    """
    waiting = {key: end - starts[key] for key, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    parts = {key: most * count // total for key, count in waiting.items()}
    left = most - sum(parts.values())
    for key in sorted(waiting, key=lambda each: parts[each] - waiting[each])[:left]:
        parts[key] += 1
    return {key: starts[key] + part for key, part in parts.items()}
