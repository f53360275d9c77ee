"""Which ranges a query reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.plan import plan, split
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Options, parse_options
from penstock.spark.reading.task import plan_query
from penstock.spark.reading.views import StoreView

from .conftest import StoreBuilder


def planned(store: StoreBuilder, **options: str) -> list[tuple[QueueRange, ...]]:
    with StoreView(store.root) as view:
        return plan(view, parse_options({"path": store.root, **options}))


def offsets(partitions: list[tuple[QueueRange, ...]]) -> list[tuple[str, int, int]]:
    """Every offset planned, in the order of the plan."""
    return [
        (piece.topic, piece.queue_id, offset)
        for pieces in partitions
        for piece in pieces
        for offset in range(piece.start, piece.stop)
    ]


@pytest.fixture
def filled(store: StoreBuilder) -> StoreBuilder:
    for queue_id in range(3):
        for _ in range(50 + 7 * queue_id):
            store.put(queue_id=queue_id, body=b"x" * 100)
    store.put("other")
    return store


def test_small_queues_share_a_partition(filled: StoreBuilder) -> None:
    assert planned(filled) == [
        (
            QueueRange("flights", 0, 0, 50),
            QueueRange("flights", 1, 0, 57),
            QueueRange("flights", 2, 0, 64),
            QueueRange("other", 0, 0, 1),
        )
    ]


@pytest.mark.parametrize(
    "limits",
    [
        {"maxRecordsPerPartition": "1"},
        {"maxRecordsPerPartition": "13"},
        {"splitBytes": "1"},
        {"splitBytes": "1500"},
        {"splitBytes": "4000", "maxRecordsPerPartition": "9"},
    ],
)
def test_a_split_plan_names_every_offset_once_in_order(
    filled: StoreBuilder, limits: dict[str, str]
) -> None:
    partitions = planned(filled, **limits)
    assert len(partitions) > 4
    assert offsets(partitions) == offsets(planned(filled))
    most = int(limits.get("maxRecordsPerPartition", 1 << 30))
    assert all(len(offsets([pieces])) <= most for pieces in partitions)


class Sized:
    """A queue whose messages are all of one size."""

    def __init__(self, queue_id: int, message_bytes: int) -> None:
        self.topic, self.queue_id, self._message_bytes = "t", queue_id, message_bytes

    def estimate_bytes(self, start: int, stop: int) -> int:
        return self._message_bytes * (stop - start)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1200)), max_size=5),
    st.integers(0, 40),
    st.integers(0, 12),
)
def test_there_are_as_many_partitions_as_are_asked_for_as_far_as_there_are_messages(
    queues: list[tuple[int, int]], least: int, most_records: int
) -> None:
    ranges = [QueueRange("t", number, 5, 5 + count) for number, (count, _) in enumerate(queues)]
    sized: Any = [Sized(number, size) for number, (_, size) in enumerate(queues)]
    options = Options(min_partitions=least, max_records_per_partition=most_records)
    partitions = split(ranges, sized, options)
    wanted = offsets([tuple(ranges)])
    assert offsets(partitions) == wanted
    assert all(len(offsets([each])) <= (most_records or 60 * 5) for each in partitions)
    if all(size for _, size in queues):
        assert len(partitions) >= min(least, len(wanted))


@pytest.mark.parametrize(
    ("columns", "options", "parts"),
    [
        (["queue_offset"], {}, 1),
        (["topic", "queue_id", "queue_offset", "physical_offset"], {}, 1),
        (["queue_offset", "store_timestamp"], {}, 6),
        (["queue_offset"], {"tags": "a"}, 6),
        (["queue_offset"], {"mode": "DROPMALFORMED"}, 6),
    ],
)
def test_a_query_of_queue_entries_alone_is_cut_by_their_bytes(
    filled: StoreBuilder, columns: list[str], options: dict[str, str], parts: int
) -> None:
    """A task for each 128 MiB of a log that nobody reads costs more than the reading."""
    given = parse_options({"path": filled.root, "splitBytes": "7000", **options})
    assert len(plan_query(given, [], columns)) == parts


def test_subscribe_chooses_topics(filled: StoreBuilder) -> None:
    assert planned(filled, subscribe=" other ,") == [(QueueRange("other", 0, 0, 1),)]


@pytest.mark.parametrize("given", [{}, {"subscribePattern": ".*"}])
def test_the_brokers_own_topics_are_read_only_where_they_are_named(
    filled: StoreBuilder, given: dict[str, str]
) -> None:
    everything = planned(filled)
    own = ["rmq_sys_penstock_staging", "SCHEDULE_TOPIC_XXXX"]
    for topic in own:
        filled.put(topic)
    filled.put("%RETRY%group")
    found = {topic for topic, *_ in offsets(planned(filled, **given))}
    assert found == {"flights", "other", "%RETRY%group"}
    assert offsets(planned(filled, subscribe=",".join(own))) == [
        (topic, 0, 0) for topic in own[::-1]
    ]
    assert offsets(planned(filled, assign='{"SCHEDULE_TOPIC_XXXX": [0]}')) == [(own[1], 0, 0)]
    assert offsets(everything) == [
        each for each in offsets(planned(filled)) if each[0] != "%RETRY%group"
    ]


def test_a_missing_topic_is_named_with_the_topics_there_are(filled: StoreBuilder) -> None:
    with pytest.raises(TopicNotFound, match=r"trains.*flights, other"):
        planned(filled, subscribe="flights,trains")


def test_light_queues_are_left_to_the_topics_of_their_messages(filled: StoreBuilder) -> None:
    filled.put_entry("%LMQ%other", 0, filled.position - 96, 96)
    assert offsets(planned(filled))[-1] == ("other", 0, 0)


def test_offsets_begin_and_end_where_the_options_say(filled: StoreBuilder) -> None:
    partitions = planned(
        filled,
        subscribe="flights",
        startingOffsets='{"flights": {"0": 17, "1": -1, "2": -2}}',
        endingOffsets='{"flights": {"0": 20, "2": 3}}',
    )
    assert partitions == [(QueueRange("flights", 0, 17, 20), QueueRange("flights", 2, 0, 3))]


def test_reading_from_the_latest_offset_plans_one_empty_partition(filled: StoreBuilder) -> None:
    assert planned(filled, startingOffsets="latest") == [()]


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ConfigError, {"subscibe": "flights"}),
        (ConfigError, {"maxRecordsPerPartition": "many"}),
        (ConfigError, {"splitBytes": "-1"}),
        (ConfigError, {"startingOffsets": "soon"}),
        (ConfigError, {"startingOffsets": '{"trains": {"0": 1}}'}),
        (OffsetOutOfRange, {"startingOffsets": '{"flights": {"0": 51}}'}),
    ],
)
def test_a_wrong_option_is_refused(
    filled: StoreBuilder, error: type[Exception], options: dict[str, str]
) -> None:
    with pytest.raises(error):
        planned(filled, **options)


def test_a_path_is_required_and_must_hold_a_store(store: StoreBuilder) -> None:
    with pytest.raises(ConfigError, match="path"):
        parse_options({"subscribe": "flights"})
    with pytest.raises(ConfigError, match="commitlog"):
        StoreDirectory(store.paths.root / "commitlog")


def test_option_names_are_compared_without_case() -> None:
    options = parse_options({"PATH": "/s", "maxrecordsperpartition": "3"})
    assert (options.path, options.max_records_per_partition) == ("/s", 3)
