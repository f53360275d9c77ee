"""Which filters of a query Spark may leave to the source: those that predicates can express.

Spark does not apply accepted filters again; all others are handed back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from pyspark.sql import datasource

from penstock.spark.reading.predicates import Predicate

# Column -> the Python type of its values. A bool is an int in Python, but not accepted as one.
_VALUES: dict[str, type] = {
    "topic": str,
    "queue_id": int,
    "queue_offset": int,
    "physical_offset": int,
    "keys": str,
    "tags": str,
    "born_timestamp": dt.datetime,
    "store_timestamp": dt.datetime,
}
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


def accept(
    filters: Iterable[datasource.Filter], columns: Iterable[str]
) -> tuple[list[Predicate], list[datasource.Filter]]:
    """The predicates that tasks will apply, and the filters that are left to Spark."""
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
        # x NOT IN (a, null) is never true, so lists with nulls are left to Spark
        fits = all(_fits(each, kind) for each in value)
        return Predicate(column, "is_in", tuple(value)) if fits else None
    function = _COMPARISONS.get(type(given)) or (_SEARCHES.get(type(given)) if kind is str else "")
    return Predicate(column, function, value) if function and _fits(value, kind) else None


def _fits(value: object, kind: type) -> bool:
    if kind is dt.datetime:  # without a zone it is a timestamp_ntz, whose moment is not determined
        return isinstance(value, dt.datetime) and value.tzinfo is not None
    return isinstance(value, kind) and not isinstance(value, bool)
