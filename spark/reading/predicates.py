"""Conditions on columns, as plain values that a task can apply to Arrow arrays.

Each is applied to the very column that a query would see, by Arrow, whose comparisons and nulls are
SQL's. Which of Spark's filters become one is in pushed_filters: nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_ARROW = {"topic": pa.string(), "queue_id": pa.int32()}
_SEARCHES = ("starts_with", "ends_with", "match_substring")


class Predicate(NamedTuple):
    """`function(column, value)`, negated or not. A row for which it is null is not taken."""

    column: str
    function: str
    value: Any = None
    negated: bool = False

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        """Which rows fulfil it; no nulls in the answer."""
        # takes as long to import as all else that a plan needs, which is made by a new process
        import pyarrow.compute as pc

        if self.function == "is_valid":
            found = pc.is_valid(column)
        elif self.function == "is_in":
            # null is in no list, and not outside of any
            members = pa.array(self.value, column.type)
            found = pc.if_else(pc.is_valid(column), pc.is_in(column, members), None)
        elif self.function in _SEARCHES:
            found = getattr(pc, self.function)(column, self.value)
        else:
            found = getattr(pc, self.function)(column, pa.scalar(self.value, column.type))
        return pc.fill_null(pc.invert(found) if self.negated else found, False)


def holds(predicates: Sequence[Predicate], row: Mapping[str, object]) -> bool:
    """Whether one row fulfils those predicates that are about its columns."""
    return all(
        bool(each.mask(pa.array([row[each.column]], _ARROW.get(each.column)))[0].as_py())
        for each in predicates
        if each.column in row
    )


def limits(predicates: Iterable[Predicate], column: str) -> tuple[Any, Any]:
    """The least and the most that a column can be where all of them are fulfilled; None: any."""
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
    """What a column has to be one of to fulfil all of them; None where they name no such texts."""
    found: frozenset[str] | None = None
    for each in predicates:
        if each.column == column and each.function in ("equal", "is_in") and not each.negated:
            named = frozenset([each.value] if each.function == "equal" else each.value)
            found = named if found is None else found & named
    return found
