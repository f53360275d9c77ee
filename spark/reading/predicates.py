"""Conditions on columns, as plain values that a task can apply to Arrow arrays.

Arrow, whose comparisons and nulls are SQL's, applies each to the same column that a query would
see. pushed_filters decides which of Spark's filters become one; nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_ARROW = {"topic": pa.string(), "queue_id": pa.int32()}
_SEARCHES = ("starts_with", "ends_with", "match_substring")


class Predicate(NamedTuple):
    """`function(column, value)`, negated or not. A row for which it is null is left out."""

    column: str
    function: str
    value: Any = None
    negated: bool = False

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        """Which rows fulfil it, without nulls."""
        # imported late: it takes as long as all else that a plan needs, and each plan is made by a
        # new process
        import pyarrow.compute as pc

        if self.function == "is_valid":
            found = pc.is_valid(column)
        elif self.function == "is_in":
            # null is neither in a list nor outside of it
            members = pa.array(self.value, column.type)
            found = pc.if_else(pc.is_valid(column), pc.is_in(column, members), None)
        elif self.function in _SEARCHES:
            found = getattr(pc, self.function)(column, self.value)
        else:
            found = getattr(pc, self.function)(column, pa.scalar(self.value, column.type))
        return pc.fill_null(pc.invert(found) if self.negated else found, False)


def holds(predicates: Sequence[Predicate], row: Mapping[str, object]) -> bool:
    """Whether a row fulfils those predicates that are about its columns."""
    return all(
        bool(each.mask(pa.array([row[each.column]], _ARROW.get(each.column)))[0].as_py())
        for each in predicates
        if each.column in row
    )


def limits(predicates: Iterable[Predicate], column: str) -> tuple[Any, Any]:
    """The least and greatest value of a column that can fulfil all predicates; None: no limit."""
    least: list[Any] = []
    most: list[Any] = []
    for each in predicates:
        values = each.value if each.function == "is_in" else (each.value,)
        if each.column != column or each.negated or not values:
            continue
        if each.function in ("equal", "is_in", "greater", "greater_equal"):
            least.append(min(values))
        if each.function in ("equal", "is_in", "less", "less_equal"):
            most.append(max(values))
    return max(least, default=None), min(most, default=None)


def offset_range(predicates: Iterable[Predicate], start: int, stop: int) -> tuple[int, int]:
    """The part of [start, stop) in which queue offsets can fulfil all of them."""
    least, most = limits(predicates, "queue_offset")
    start = start if least is None else max(start, least)
    stop = stop if most is None else min(stop, most + 1)
    return start, max(start, stop)


def wanted_texts(predicates: Iterable[Predicate], column: str) -> frozenset[str] | None:
    """The texts of which a column must be one to fulfil all predicates; None if they name none."""
    found: frozenset[str] | None = None
    for each in predicates:
        if each.column == column and each.function in ("equal", "is_in") and not each.negated:
            named = frozenset([each.value] if each.function == "equal" else each.value)
            found = named if found is None else found & named
    return found
