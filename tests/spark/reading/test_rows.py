"""Filters and damage: what is read is what a plain look at every record says."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.filters.message_filter import MAX_EXTENSION_ADDRESS
from penstock.shared.formats.queue_entry import tags_code
from penstock.shared.formats.record import Record
from penstock.shared.messaging.system_topics import SCHEDULE_TOPIC
from penstock.shared.store.directory import StoreDirectory
from penstock.spark import scan
from penstock.spark.plan import plan
from penstock.spark.reading.options import Mode, parse_options
from penstock.spark.reading.pushed_filters import accept
from penstock.spark.reading.rows import CORRUPT, How
from penstock.spark.reading.views import StoreView
from penstock.spark.source import COLUMNS
from tests.spark.conftest import STORED_MS, StoreBuilder

ALL = tuple(COLUMNS)


def read(
    store: StoreBuilder,
    how: How,
    columns: tuple[str, ...] = ("queue_offset",),
    **options: str,
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with StoreView(store.root) as view:
        planned = plan(view, parse_options({"path": store.root, **options}), how.predicates)
        for piece in (piece for pieces in planned for piece in pieces):
            for arrays in scan.read_range(view.store, piece, columns, how):
                rows += zip(*(array.to_pylist() for array in arrays), strict=True)
    return rows


def offsets(store: StoreBuilder, how: How) -> list[int]:
    return [row[0] for row in read(store, how)]


def test_tags_are_compared_themselves_and_not_only_their_hashes(store: StoreBuilder) -> None:
    for tag in ("Aa", "BB", "C", ""):  # the first two have the same hash
        store.put(properties={"TAGS": tag} if tag else {})
    assert offsets(store, How(tags="Aa")) == [0]
    assert offsets(store, How(tags="BB || C")) == [1, 2]


def test_sql_chooses_by_properties(store: StoreBuilder) -> None:
    for amount in range(5):
        store.put(properties={"amount": str(amount), "TAGS": "t"})
    store.put()
    assert offsets(store, How(sql="amount >= 3")) == [3, 4]
    assert offsets(store, How(sql="TAGS IS NULL")) == [5]


_AT = dt.datetime.fromtimestamp(STORED_MS / 1000, dt.UTC)
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    datasource.EqualTo: operator.eq,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
    datasource.StringStartsWith: str.startswith,
    datasource.StringEndsWith: str.endswith,
    datasource.StringContains: operator.contains,
}
_VALUES = {
    "topic": st.sampled_from(["flights", "trains", "f", ""]),
    "tags": st.sampled_from(["a", "ab", "b", ""]),
    "keys": st.sampled_from(["k1", "k1 k2", "k"]),
    "queue_id": st.integers(-1, 2),
    "queue_offset": st.integers(-1, 7),
    "physical_offset": st.sampled_from([0, 100, 105, 500]),
    "store_timestamp": st.integers(-1, 7).map(lambda ms: _AT + dt.timedelta(milliseconds=ms)),
}


@st.composite
def spark_filters(draw: st.DrawFn) -> datasource.Filter:
    column = draw(st.sampled_from(sorted(_VALUES)))
    values = _VALUES[column]
    kind = draw(st.sampled_from([*_COMPARED, datasource.In, datasource.IsNull]))
    made: datasource.Filter
    if kind is datasource.In:
        made = datasource.In((column,), tuple(draw(st.lists(values, max_size=3))))
    elif kind is datasource.IsNull:
        made = draw(st.sampled_from([datasource.IsNull, datasource.IsNotNull]))((column,))
    elif kind.__name__.startswith("String") and column not in ("topic", "tags", "keys"):
        made = datasource.IsNotNull((column,))
    else:
        made = kind((column,), draw(values))
    return datasource.Not(made) if draw(st.booleans()) else made


def truth(given: datasource.Filter, row: dict[str, Any]) -> bool | None:
    """SQL's answer for one row."""
    if isinstance(given, datasource.Not):
        inner = truth(given.child, row)
        return None if inner is None else not inner
    value = row[given.attribute[0]]  # type: ignore[attr-defined]  # every one but Not has it
    if isinstance(given, datasource.IsNull | datasource.IsNotNull):
        return (value is None) == isinstance(given, datasource.IsNull)
    if value is None:
        return None
    if isinstance(given, datasource.In):
        return value in given.value
    return _COMPARED[type(given)](value, given.value)  # type: ignore[attr-defined]  # the same


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> StoreBuilder:
    store = StoreBuilder(tmp_path_factory.mktemp("mixed") / "store")
    shapes = [{}, {"TAGS": "a"}, {"TAGS": "ab", "KEYS": "k1"}, {"TAGS": "b", "KEYS": "k1 k2"}]
    for queue_id in (0, 1):
        for number in range(6):
            store.put(queue_id=queue_id, properties=shapes[number % 4])
    return store


@settings(max_examples=150, deadline=None)
@given(filters=st.lists(spark_filters(), max_size=3))
def test_what_is_pushed_down_is_what_sql_says(
    mixed: StoreBuilder, filters: list[datasource.Filter]
) -> None:
    taken, left = accept(filters, COLUMNS)
    assert not left
    rows = [dict(zip(ALL, row, strict=True)) for row in read(mixed, How(), ALL)]
    wanted = [row for row in rows if all(truth(each, row) is True for each in filters)]
    how = How(predicates=tuple(taken))
    found = [dict(zip(ALL, row, strict=True)) for row in read(mixed, how, ALL)]
    assert found == wanted
    expected = [(row["queue_offset"],) for row in wanted]
    assert read(mixed, how) == expected, "whichever columns are asked for"


_TAGS = ["Aa", "BB", "C", "", "\u00fc", "\ufffd\ufffd"]


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> StoreBuilder:
    """Entries with all kinds of tags codes: "Aa" and "BB" have the same hash."""
    store = StoreBuilder(tmp_path_factory.mktemp("coded") / "store")
    for topic in ("flights", SCHEDULE_TOPIC):
        for number in range(12):
            tag = _TAGS[number % 6]
            packed: Any = {"TAGS": tag} if tag else {}
            is_broken = tag == "\ufffd\ufffd"
            if is_broken:
                packed = b"TAGS\x01\xff\xfe\x02"
            code = tags_code(tag)
            if topic == SCHEDULE_TOPIC:
                code = STORED_MS + number
            elif number > 5:
                code = MAX_EXTENSION_ADDRESS - number
            elif is_broken:  # another reader may see one such character, or three
                code = tags_code("\ufffd")
            store.put(topic, 0, b"", packed, code=code)
    return store


@st.composite
def tags_filters(draw: st.DrawFn) -> datasource.Filter:
    tag = st.sampled_from(_TAGS)
    made: datasource.Filter
    if draw(st.booleans()):
        made = datasource.EqualTo(("tags",), draw(tag))
    else:
        made = datasource.In(("tags",), tuple(draw(st.lists(tag, max_size=3))))
    return datasource.Not(made) if draw(st.integers(0, 3)) == 0 else made


@settings(max_examples=100, deadline=None)
@given(
    topic=st.sampled_from(["flights", SCHEDULE_TOPIC]), filters=st.lists(tags_filters(), max_size=2)
)
def test_tags_are_looked_for_by_codes_and_found_as_sql_says(
    coded: StoreBuilder, topic: str, filters: list[datasource.Filter]
) -> None:
    def rows(how: How) -> list[dict[str, Any]]:
        found = read(coded, how, ("queue_offset", "tags"), subscribe=topic)
        return [dict(zip(("queue_offset", "tags"), row, strict=True)) for row in found]

    taken, _ = accept(filters, COLUMNS)
    wanted = [row for row in rows(How()) if all(truth(each, row) is True for each in filters)]
    assert rows(How(predicates=tuple(taken))) == wanted


def test_records_of_other_tags_are_not_read(store: StoreBuilder) -> None:
    damaged = store.put(properties={"TAGS": "other"})
    store.put(properties={"TAGS": "wanted"})
    store.write_log(damaged.physical_offset, b"?")
    for each in (datasource.EqualTo(("tags",), "wanted"), datasource.In(("tags",), ("wanted",))):
        taken, _ = accept([each], COLUMNS)
        assert read(store, How(predicates=tuple(taken))) == [(1,)]


def test_what_cannot_be_decided_exactly_is_left_to_spark() -> None:
    naive = dt.datetime(2026, 1, 1)
    given: list[datasource.Filter] = [
        datasource.EqualTo(("body",), b"x"),
        datasource.EqualTo(("properties", "a"), "x"),
        datasource.In(("tags",), ("a", None)),
        datasource.GreaterThan(("store_timestamp",), naive),
        datasource.EqualNullSafe(("tags",), None),
    ]
    assert accept(given, COLUMNS) == ([], given)


def damage(store: StoreBuilder) -> dict[int, Record]:
    """Ten messages, of which 3 has another body, 4 another magic and 7 an entry to nowhere."""
    records = {number: store.put(body=b"%d" % number) for number in range(7)}
    store.put_entry("flights", 0, 1 << 40, 98)
    records |= {number: store.put(body=b"%d" % number) for number in (8, 9)}
    store.write_log(records[3].physical_offset + 88, b"?")
    store.write_log(records[4].physical_offset + 4, b"\0")
    return records


def test_damaged_records_are_dropped_one_by_one(store: StoreBuilder) -> None:
    damage(store)
    how = How(mode=Mode.DROPMALFORMED)
    sound = [(number, b"%d" % number) for number in (0, 1, 2, 5, 6, 8, 9)]
    assert read(store, how, ("queue_offset", "body")) == sound
    assert read(store, how) == [(number,) for number, _ in sound], "whichever columns are read"


def test_damaged_records_become_rows_that_say_what_is_wrong(store: StoreBuilder) -> None:
    records = damage(store)
    how = How(mode=Mode.PERMISSIVE)
    rows = read(store, how, ("queue_offset", "physical_offset", "body", "properties", CORRUPT))
    by_offset = {row[0]: row[1:] for row in rows}
    assert sorted(by_offset) == list(range(10)) and len(rows) == 10
    for number in (3, 4, 7):
        position, body, properties, reason = by_offset[number]
        assert (body, properties) == (None, None)
        assert position == (records[number].physical_offset if number in records else 1 << 40)
        assert f"byte {20 * number}" in reason
    assert by_offset[8] == (records[8].physical_offset, b"8", [], None)


def test_the_default_ends_the_query_at_the_first_damaged_record(store: StoreBuilder) -> None:
    damage(store)
    with pytest.raises(StoreDamaged):
        read(store, How(), ("body",))


def test_expired_messages_end_a_query_or_are_passed_over(store: StoreBuilder) -> None:
    for _ in range(900):
        store.put(body=b"x" * 100)
    with StoreView(store.root) as view:
        ((piece,),) = plan(view, parse_options({"path": store.root}))
    with StoreDirectory(store.root) as directory:
        # the directory was listed before
        sorted(store.paths.commit_log.iterdir())[0].unlink()
        lenient = How(fail_on_data_loss=False)
        with pytest.raises(OffsetOutOfRange, match="expired"):
            list(scan.read_range(directory, piece, ["body"], How()))
    with StoreDirectory(store.root) as directory:
        sorted(store.paths.commit_log.iterdir())[0].unlink()
        found = list(scan.read_range(directory, piece, ["queue_offset", "body"], lenient))
        first = found[0][0][0].as_py()
        assert 0 < first < 900
        assert sum(len(arrays[0]) for arrays in found) == 900 - first
