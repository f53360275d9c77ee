"""Percentiles of measurements."""

from __future__ import annotations

from collections.abc import Iterable


def percentile(values: Iterable[float], percent: int) -> float | None:
    """The smallest value that this percentage does not exceed; None if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1], 3)
