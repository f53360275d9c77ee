"""Filters that Spark hands down, as plain values that a task can apply to Arrow columns.

What is accepted here Spark does not look at again. So each is applied to the very column that the
query would see, by Arrow, whose comparisons and nulls are SQL's; all others are handed back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

# Column -> what its values are in Python. bool is an int there and no number here.
_VALUES: dict[str, type] = {
    "topic": str,
    "queue_id": int,
    "queue_offset": int,
    "physical_offset": int,
    "key": str,
    "tags": str,
    "born_timestamp": dt.datetime,
    "store_timestamp": dt.datetime,
}
_ARROW = {"topic": pa.string(), "queue_id": pa.int32()}
_COMPARISONS = {
    datasource.EqualTo: "equal",
    datasource.GreaterThan: "greater",
    datasource.GreaterThanOrEqual: "greater_equal",
    datasource.LessThan: "less",
    datasource.LessThanOrEqual: "less_equal",
}
_SEARCHES = {
    datasource.StringStartsWith: "starts_with",
    datasource.StringEndsWith: "ends_with",
    datasource.StringContains: "match_substring",
}


class Predicate(NamedTuple):
    """`function(column, value)`, negated or not. A row for which it is null is not taken."""

    column: str
    function: str
    value: Any = None
    negated: bool = False

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        """Which rows fulfil it; no nulls in the answer."""
        if self.function == "is_valid":
            found = pc.is_valid(column)
        elif self.function == "is_in":
            # null is in no list, and not outside of any
            members = pa.array(self.value, column.type)
            found = pc.if_else(pc.is_valid(column), pc.is_in(column, members), None)
        elif self.function in _SEARCHES.values():
            found = getattr(pc, self.function)(column, self.value)
        else:
            found = getattr(pc, self.function)(column, pa.scalar(self.value, column.type))
        return pc.fill_null(pc.invert(found) if self.negated else found, False)


def accept(
    filters: Iterable[datasource.Filter], columns: Iterable[str]
) -> tuple[list[Predicate], list[datasource.Filter]]:
    """What tasks will apply, and what is left to Spark."""
    known = _VALUES.keys() & set(columns)
    taken, left = [], []
    for each in filters:
        predicate = _predicate(each, known)
        if predicate is None:
            left.append(each)
        else:
            taken.append(predicate)
    return taken, left


def _predicate(given: datasource.Filter, known: Iterable[str]) -> Predicate | None:
    if isinstance(given, datasource.Not):
        inner = _predicate(given.child, known)
        return None if inner is None else inner._replace(negated=not inner.negated)
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in known:
        return None
    column = path[0]
    kind = _VALUES[column]
    if isinstance(given, datasource.IsNotNull | datasource.IsNull):
        return Predicate(column, "is_valid", negated=isinstance(given, datasource.IsNull))
    value: Any = getattr(given, "value", None)
    if isinstance(given, datasource.In):
        # x NOT IN (a, null) is never true: such lists are left to Spark
        fits = all(_fits(each, kind) for each in value)
        return Predicate(column, "is_in", tuple(value)) if fits else None
    function = _COMPARISONS.get(type(given)) or (_SEARCHES.get(type(given)) if kind is str else "")
    return Predicate(column, function, value) if function and _fits(value, kind) else None


def _fits(value: object, kind: type) -> bool:
    if kind is dt.datetime:  # without a zone it is a timestamp_ntz, and which moment depends
        return isinstance(value, dt.datetime) and value.tzinfo is not None
    return isinstance(value, kind) and not isinstance(value, bool)


def holds(predicates: Sequence[Predicate], row: Mapping[str, object]) -> bool:
    """Whether one row fulfils those predicates that are about its columns."""
    return all(
        bool(each.mask(pa.array([row[each.column]], _ARROW.get(each.column)))[0].as_py())
        for each in predicates
        if each.column in row
    )


def offset_range(predicates: Iterable[Predicate], start: int, stop: int) -> tuple[int, int]:
    """The part of [start, stop) in which queue offsets can fulfil all of them."""
    for each in predicates:
        if each.column != "queue_offset" or each.negated:
            continue
        if each.function in ("equal", "greater_equal"):
            start = max(start, each.value)
        if each.function == "greater":
            start = max(start, each.value + 1)
        if each.function in ("equal", "less_equal"):
            stop = min(stop, each.value + 1)
        if each.function == "less":
            stop = min(stop, each.value)
    return start, max(start, stop)
