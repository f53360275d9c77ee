"""Where a query begins and ends, in every form in which it may be said."""

from __future__ import annotations

import json

import pytest

from penstock.shared.errors import (
    ConfigError,
    FilterError,
    GroupNotFound,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)
from penstock.spark.plan import plan
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import parse_options
from penstock.spark.reading.views import StoreView
from tests.spark.conftest import STORED_MS, StoreBuilder


def ranges(store: StoreBuilder, **options: str) -> list[tuple[str, int, int, int]]:
    with StoreView(store.root) as view:
        planned = plan(view, parse_options({"path": store.root, **options}))
    return sorted(tuple(piece) for pieces in planned for piece in pieces)


@pytest.fixture
def filled(store: StoreBuilder) -> StoreBuilder:
    """flights has 20 messages in queue 0 and 30 in queue 1, stored 1 ms apart; orders has 5."""
    for queue_id, count in ((0, 20), (1, 30)):
        for _ in range(count):
            store.put(queue_id=queue_id)
    for _ in range(5):
        store.put("orders", 3)
    return store


def save_offsets(store: StoreBuilder, table: dict[str, dict[str, int]]) -> None:
    file = store.paths.consumer_offsets
    file.parent.mkdir()
    file.write_text(json.dumps({"offsetTable": table}))


def test_a_pattern_chooses_topics_by_their_whole_names(filled: StoreBuilder) -> None:
    assert ranges(filled, subscribePattern="order.*") == [("orders", 3, 0, 5)]
    assert ranges(filled, subscribePattern="order") == []


def test_assign_chooses_queues(filled: StoreBuilder) -> None:
    found = ranges(filled, assign='{"flights": [1], "orders": [3]}')
    assert found == [("flights", 1, 0, 30), ("orders", 3, 0, 5)]


def test_a_group_goes_on_where_it_stands_and_begins_with_the_earliest_elsewhere(
    filled: StoreBuilder,
) -> None:
    save_offsets(filled, {"flights@app": {"0": 7}, "orders@other": {"3": 1}})
    found = ranges(filled, startingOffsets="group:app")
    assert found == [("flights", 0, 7, 20), ("flights", 1, 0, 30), ("orders", 3, 0, 5)]
    assert ranges(filled, subscribe="flights", endingOffsets="group:app") == [
        ("flights", 0, 0, 7),
        ("flights", 1, 0, 30),
    ]


def test_an_unknown_group_is_named_with_the_groups_there_are(filled: StoreBuilder) -> None:
    save_offsets(filled, {"flights@app": {"0": 7}})
    with pytest.raises(GroupNotFound, match="aap.*Did you mean app"):
        ranges(filled, startingOffsets="group:aap")


def test_times_bound_a_query_as_the_records_say(filled: StoreBuilder) -> None:
    at = str(STORED_MS + 10)
    assert ranges(filled, subscribe="flights", startingTimestamp=at) == [
        ("flights", 0, 10, 20),
        ("flights", 1, 10, 30),
    ]
    assert ranges(filled, subscribe="flights", endingTimestamp=at) == [
        ("flights", 0, 0, 10),
        ("flights", 1, 0, 10),
    ]
    # of a queue in which nothing is as new there is nothing to read
    late = json.dumps({"flights": {"0": STORED_MS + 25, "1": STORED_MS + 25}})
    assert ranges(filled, subscribe="flights", startingOffsetsByTimestamp=late) == [
        ("flights", 1, 25, 30)
    ]
    one = json.dumps({"flights": {"1": STORED_MS + 25}})
    assert ranges(filled, subscribe="flights", endingOffsetsByTimestamp=one) == [
        ("flights", 0, 0, 20),
        ("flights", 1, 0, 25),
    ]


def test_an_iso_time_and_a_duration_are_times_too(filled: StoreBuilder) -> None:
    everything = [("orders", 3, 0, 5)]
    early = "1970-01-02T00:00:00+00:00"
    assert ranges(filled, subscribe="orders", startingTimestamp=early) == everything
    assert ranges(filled, subscribe="orders", startingTimestamp="-15m") == []


def test_an_offset_outside_the_queue_is_an_error_or_the_nearest(filled: StoreBuilder) -> None:
    outside = {"startingOffsets": '{"flights": {"0": 21, "1": 29}}', "subscribe": "flights"}
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        ranges(filled, **outside)
    assert ranges(filled, **outside, failOnDataLoss="false") == [("flights", 1, 29, 30)]


def test_offsets_may_name_queues_that_have_had_no_message(filled: StoreBuilder) -> None:
    config = {"readQueueNums": 4, "writeQueueNums": 4}
    filled.paths.topics.parent.mkdir()
    filled.paths.topics.write_text(json.dumps({"topicConfigTable": {"flights": config}}))
    for empty in (0, -1, -2):
        starts = json.dumps({"flights": {"0": 15, "1": 30, "3": empty}})
        found = ranges(filled, subscribe="flights", startingOffsets=starts, endingOffsets=starts)
        assert found == []
        assert ranges(filled, subscribe="flights", startingOffsets=starts) == [
            ("flights", 0, 15, 20)
        ]
    times = json.dumps({"flights": {"2": STORED_MS}})
    assert ranges(filled, assign='{"flights": [0, 2]}', startingOffsetsByTimestamp=times) == [
        ("flights", 0, 0, 20)
    ]
    beyond = {"startingOffsets": '{"flights": {"3": 1}}', "subscribe": "flights"}
    with pytest.raises(OffsetOutOfRange, match="flights/3 at 1"):
        ranges(filled, **beyond)
    assert len(ranges(filled, **beyond, failOnDataLoss="false")) == 2
    for strange in ({"subscribe": "orders"}, {"assign": '{"flights": [2]}'}):
        with pytest.raises(ConfigError, match="not read.*flights/3"):
            ranges(filled, startingOffsets='{"flights": {"3": 0}}', **strange)
    for queue in ("4", "x", "-1"):
        with pytest.raises(ConfigError, match=f"not read.*flights/{queue}"):
            ranges(filled, startingOffsets=json.dumps({"flights": {queue: 0}}))


def test_there_are_at_least_as_many_partitions_as_asked_for(filled: StoreBuilder) -> None:
    with StoreView(filled.root) as view:
        options = parse_options({"path": filled.root, "minPartitions": "7"})
        planned = plan(view, options)
    assert len(planned) >= 7
    offsets = [(p.topic, p.queue_id, at) for ps in planned for p in ps for at in range(*p[2:])]
    assert len(offsets) == len(set(offsets)) == 55
    assert all(isinstance(piece, QueueRange) for pieces in planned for piece in pieces)


@pytest.mark.parametrize(
    ("error", "named", "options"),
    [
        (ConfigError, "subscribe a, assign", {"subscribe": "a", "assign": "{}"}),
        (ConfigError, "tags A, sql", {"tags": "A", "sql": "a = 1"}),
        (ConfigError, "subscribePattern is no", {"subscribePattern": "("}),
        (ConfigError, "assign cannot be read", {"assign": "[0]"}),
        (ConfigError, "flights/9", {"assign": '{"flights": [9]}'}),
        (TopicNotFound, "trains", {"assign": '{"trains": [0]}'}),
        (ConfigError, "startingTimestamp is no time", {"startingTimestamp": "17"}),
        (ConfigError, "startingTimestamp is no time", {"startingTimestamp": "soon"}),
        (ConfigError, "1000000000000", {"startingOffsetsByTimestamp": "now"}),
        (ConfigError, "flights/8", {"endingOffsetsByTimestamp": '{"flights": {"8": 1}}'}),
        (ConfigError, "no time: -1", {"startingOffsetsByTimestamp": '{"flights": {"0": -1}}'}),
        (
            ConfigError,
            "no time",
            {"endingOffsetsByTimestamp": f'{{"flights": {{"0": {1 << 62}}}}}'},
        ),
        (ConfigError, "subscribe names nothing", {"subscribe": " , "}),
        (ConfigError, "columns names nothing", {"columns": ","}),
        (ConfigError, "failOnDataLoss is true or false", {"failOnDataLoss": "maybe"}),
        (ConfigError, "DROPMALFORMED", {"mode": "ignore"}),
        (ConfigError, "minPartitions -1", {"minPartitions": "-1"}),
        (FilterError, "names no tag", {"tags": "||"}),
        (FilterError, "is missing", {"sql": "colour ="}),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_write(
    filled: StoreBuilder, error: type[PenstockError], named: str, options: dict[str, str]
) -> None:
    with pytest.raises(error, match=named):
        ranges(filled, **options)
