"""Which messages a filter on store times leaves to be read: by bisection, before tasks are made."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.shared.store.directory import StoreDirectory
from penstock.spark.plan import plan
from penstock.spark.reading.log_scan import plan_log
from penstock.spark.reading.options import parse_options
from penstock.spark.reading.predicates import Predicate
from penstock.spark.reading.rows import How
from penstock.spark.reading.task import plan_query, read_partition
from penstock.spark.reading.views import StoreView
from penstock.spark.scan import read_range
from penstock.spark.times import SLACK_MS
from tests.spark.conftest import STORED_MS, StoreBuilder

HOUR_MS = 3_600_000
CONDITIONS = ("equal", "greater", "greater_equal", "less", "less_equal")


def at(ms: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def stored(function: str, ms: float) -> Predicate:
    return Predicate("store_timestamp", function, at(ms))


def planned(store: StoreBuilder, predicates: list[Predicate], **options: str) -> dict[int, range]:
    """Of each queue the offsets that are planned, which are one piece."""
    with StoreView(store.root) as view:
        parts = plan(view, parse_options({"path": store.root, **options}), predicates)
    found: dict[int, range] = {}
    for piece in (each for part in parts for each in part):
        before = found.get(piece.queue_id, range(piece.start, piece.start))
        assert before.stop == piece.start
        found[piece.queue_id] = range(before.start, piece.stop)
    return found


def filled(store: StoreBuilder, times: Iterable[int]) -> StoreBuilder:
    """A message for each time, by turns into two queues."""
    for number, ms in enumerate(times):
        store.put(queue_id=number % 2, body=b"%d" % number, store_timestamp_ms=ms)
    return store


@pytest.fixture
def days(store: StoreBuilder) -> StoreBuilder:
    """A message an hour into each of two queues, for a hundred hours."""
    return filled(store, (STORED_MS + number // 2 * HOUR_MS for number in range(200)))


@pytest.mark.parametrize(
    ("predicates", "offsets"),
    [
        ([stored("greater_equal", STORED_MS + 90 * HOUR_MS)], range(90, 100)),
        ([stored("greater", STORED_MS + 90 * HOUR_MS)], range(90, 100)),
        ([stored("less", STORED_MS + 5 * HOUR_MS)], range(6)),
        ([stored("less_equal", STORED_MS + 5 * HOUR_MS)], range(6)),
        ([stored("equal", STORED_MS + 7 * HOUR_MS)], range(7, 8)),
        (
            [
                stored("greater", STORED_MS + 10 * HOUR_MS),
                stored("less", STORED_MS + 12 * HOUR_MS),
            ],
            range(10, 13),
        ),
        (
            [
                Predicate(
                    "store_timestamp",
                    "is_in",
                    (at(STORED_MS + 20 * HOUR_MS), at(STORED_MS + 22 * HOUR_MS)),
                )
            ],
            range(20, 23),
        ),
        ([stored("less", STORED_MS - HOUR_MS)], range(0)),
        ([stored("less", STORED_MS + HOUR_MS)._replace(negated=True)], range(100)),
        ([Predicate("born_timestamp", "less", at(0))], range(100)),
    ],
)
def test_a_filter_on_store_times_leaves_the_messages_of_these_times(
    days: StoreBuilder, predicates: list[Predicate], offsets: range
) -> None:
    found = planned(days, predicates)
    assert [found.get(queue_id, range(0)) for queue_id in (0, 1)] == [offsets, offsets]


def test_fewer_partitions_are_planned_and_fewer_bytes_read(days: StoreBuilder) -> None:
    options = parse_options({"path": days.root, "maxRecordsPerPartition": "10"})
    predicates = [stored("greater_equal", STORED_MS + 95 * HOUR_MS)]
    read, parts = {}, {}
    for name, pushed in (("all", ()), ("few", predicates)):
        parts[name] = plan_query(options, pushed, ["body"])
        with StoreDirectory(days.root) as store:
            for piece in (each for part in parts[name] for each in part):
                list(read_range(store, piece, ["body"], How(predicates=tuple(predicates))))
            read[name] = store.bytes_read
    assert (len(parts["all"]), len(parts["few"])) == (20, 1)
    assert read["few"] * 10 < read["all"]


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_filter_narrows_what_options_have_left(days: StoreBuilder, option: str) -> None:
    ms = STORED_MS + 50 * HOUR_MS
    is_start = option == "startingTimestamp"
    pushed = [stored("less" if is_start else "greater", ms + (2 if is_start else -2) * HOUR_MS)]
    found = planned(days, pushed, **{option: str(ms)})
    assert found[0] == (range(50, 53) if is_start else range(48, 50))


times = st.lists(
    # equal ones, steps forward of any size, and the clock set back by no more than the slack
    st.one_of(st.just(0), st.integers(0, 3 * SLACK_MS), st.integers(-SLACK_MS // 8, -1)),
    min_size=1,
    max_size=60,
)


def walked(steps: list[int]) -> list[int]:
    """Times with these steps between them, never more than the slack before the latest so far."""
    found, latest = [STORED_MS], STORED_MS
    for step in steps:
        found.append(max(found[-1] + step, latest - SLACK_MS + 1))
        latest = max(latest, found[-1])
    return found


@settings(max_examples=60, deadline=None)
@given(times, st.sampled_from(CONDITIONS), st.integers(0, 60), st.integers(-SLACK_MS, SLACK_MS))
def test_the_rows_are_those_of_a_scan_also_with_equal_and_decreasing_times(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], function: str, index: int, by: int
) -> None:
    found = walked(steps)
    store = filled(StoreBuilder(tmp_path_factory.mktemp("times") / "store"), found)
    pushed = stored(function, found[index % len(found)] + by)
    assert rows(store, [pushed], push=True) == rows(store, [pushed], push=False)
    shutil.rmtree(store.paths.consume_queue)
    assert rows(store, [pushed], push=True) == rows(store, [pushed], push=False)


def rows(store: StoreBuilder, predicates: list[Predicate], *, push: bool) -> list[bytes]:
    options = parse_options({"path": store.root, "splitBytes": "600"})
    how, schema = How(predicates=tuple(predicates)), StructType([StructField("body", BinaryType())])
    parts = plan_query(options, predicates if push else (), ["body"])
    batches = (each for part in parts for each in read_partition(options, part, schema, how))
    return sorted(body for batch in batches for body in batch["body"].to_pylist())


@pytest.mark.parametrize(
    "options",
    [{}, {"startingTimestamp": str(STORED_MS + 90 * HOUR_MS)}],
    ids=["by a filter", "by an option"],
)
def test_a_log_without_queues_is_read_only_where_the_times_are(
    days: StoreBuilder, options: dict[str, str]
) -> None:
    given = parse_options({"path": days.root, "splitBytes": "2000", **options})
    pushed = [] if options else [stored("greater_equal", STORED_MS + 90 * HOUR_MS)]
    whole = parse_options({"path": days.root, "splitBytes": "2000"})
    with StoreDirectory(days.root) as store:
        parts = plan_log(store, given, 0, pushed)
        every = plan_log(store, whole, 0)
    places = [(piece.start, piece.stop) for part in every for piece in part]
    found = [(piece.start, piece.stop) for part in parts for piece in part]
    assert len(places) > 8 and found == places[-len(found) :]
    assert len(found) <= len(places) // 5


@pytest.mark.parametrize("harm", ["zeros", "other records"])
def test_a_damaged_record_misleads_no_bisection(days: StoreBuilder, harm: str) -> None:
    """Those in the middle, which are looked at first, hold no times any more, or earlier ones."""
    log = days.paths.commit_log / "00000000000000000000"
    raw = bytearray(log.read_bytes())
    first, length = len(raw) // 8, len(raw) // 8
    raw[first : first + length] = bytes(length) if harm == "zeros" else raw[:length]
    log.write_bytes(raw)
    late, early = STORED_MS + 10 * HOUR_MS, STORED_MS + 90 * HOUR_MS
    found = planned(days, [], startingTimestamp=str(late))
    assert found[0] == range(10, 100)
    assert planned(days, [stored("greater_equal", late)])[0] == range(10, 100)
    assert planned(days, [stored("less", early)])[0] == range(91)


def test_the_slack_covers_a_clock_that_was_set_back_by_it(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store")
    for number in range(200):
        ms = STORED_MS + number * 60_000
        store.put(store_timestamp_ms=ms - (SLACK_MS if number % 10 == 9 else 0))
    pushed = [stored("greater_equal", STORED_MS + 100 * 60_000)]
    found = planned(store, pushed)[0]
    assert 80 <= found.start <= 100
