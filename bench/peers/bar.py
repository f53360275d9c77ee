"""A bar: what is required, what was measured, and by how much that misses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.bench.peers.figures import Measured
from penstock.bench.peers.table import Comparison


class Bar(NamedTuple):
    """A requirement: at least this, or with `at_most` no more."""

    key: str
    what: str
    asked: float
    measure: Callable[[Comparison], Measured]
    unit: str = "x"
    at_most: bool = False


def verdict(bar: Bar, measured: Measured) -> str:
    """Reached, or by how much of the requirement it is missed."""
    if measured.value is None:
        return "not measured"
    short = bar.asked - measured.value
    if bar.at_most:
        short = -short
    if short <= 0:
        return "reached"
    if measured.enough:
        return "reached: CPU-bound"
    by = f"{short / bar.asked:.0%}" if bar.asked else f"{short:.2f} {bar.unit}"
    return f"missed by {by}"
