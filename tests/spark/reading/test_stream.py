"""What the batches of a stream are: every message in one of them, whatever happens in between."""

from __future__ import annotations

import json
import shutil
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from penstock.shared.errors import ConfigError, OffsetOutOfRange, TopicNotFound
from penstock.spark.reading.options import Options
from penstock.spark.reading.stream import StoreStreamReader
from penstock.spark.source import PenstockSource
from tests.spark.conftest import StoreBuilder

Row = tuple[str, int, int]


def stream(store: StoreBuilder, **options: str) -> StoreStreamReader:
    source = PenstockSource(
        {"path": store.root, "columns": "topic,queue_id,queue_offset"} | options
    )
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StoreStreamReader)
    return reader


def rows(reader: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    """A batch's rows, its offsets through JSON as a checkpoint has them."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    found: list[Row] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found)


def run(
    reader: StoreStreamReader, start: dict[str, Any] | None = None, batches: int = 50
) -> tuple[list[list[Row]], dict[str, Any]]:
    """Batches until there is nothing new, as Spark asks for them, and the last end."""
    at = reader.initialOffset() if start is None else start
    found = []
    for _ in range(batches):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if end == at:
            break
        found.append(rows(reader, at, end))
        at = end
    return found, at


def every(store: StoreBuilder, *topics: str) -> list[Row]:
    return sorted(
        (topic, queue_id, offset)
        for (topic, queue_id), count in store.next_offset.items()
        for offset in range(count)
        if topic in topics
    )


def flat(batches: list[list[Row]]) -> list[Row]:
    return sorted(row for batch in batches for row in batch)


@pytest.fixture
def filled(store: StoreBuilder) -> StoreBuilder:
    for number in range(60):
        store.put(queue_id=number % 3, body=b"x" * (10 * number))
    return store


def test_a_stream_has_what_is_there_and_then_what_comes(filled: StoreBuilder) -> None:
    reader = stream(filled)
    first, at = run(reader)
    assert flat(first) == every(filled, "flights")
    filled.put(queue_id=1)
    second, _ = run(reader, at)
    assert flat(second) == [("flights", 1, 20)]


def test_new_queues_and_topics_are_read_from_their_beginning(filled: StoreBuilder) -> None:
    reader = stream(filled, subscribePattern="f.*", startingOffsets="latest")
    first, at = run(reader)
    assert flat(first) == []
    filled.put(queue_id=9)
    filled.put("fresh")
    filled.put("other")
    second, _ = run(reader, at)
    assert flat(second) == [("flights", 9, 0), ("fresh", 0, 0)]


def test_the_first_batch_is_the_same_when_it_is_asked_for_again(filled: StoreBuilder) -> None:
    """Spark keeps no beginning: after a crash in batch 0 it asks for it again."""
    reader = stream(filled, startingOffsets="latest")
    start = reader.initialOffset()
    filled.put()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, start, end) == [("flights", 0, 20)]
    filled.put()
    again = stream(filled, startingOffsets="latest")
    assert rows(again, again.initialOffset(), end) == [("flights", 0, 20)]
    assert flat(run(again, end)[0]) == [("flights", 0, 21)]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows),
        ({"maxBytesPerTrigger": "4000"}, ReadMaxBytes),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes),
        ({"maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "2000"}, ReadMaxRows),
    ],
)
def test_a_limited_batch_keeps_its_limit_and_nothing_is_lost(
    filled: StoreBuilder, options: dict[str, str], kind: type[ReadLimit]
) -> None:
    reader = stream(filled, **options)
    assert isinstance(reader.getDefaultReadLimit(), kind)
    batches, at = run(reader, batches=100)
    assert flat(batches) == every(filled, "flights")
    assert len(batches) > 6
    sizes = {r: 98 + 10 * (r[2] * 3 + r[1]) for r in every(filled, "flights")}
    for batch in batches:
        assert len(batch) <= int(options.get("maxOffsetsPerTrigger", 1 << 30))
        most = int(options.get("maxBytesPerTrigger", 1 << 30))
        assert sum(sizes[row] for row in batch) <= most or len(batch) == 1
    filled.put()
    assert rows(reader, at, reader.latestOffset(at, ReadAllAvailable())) != []


def test_all_that_is_available_is_taken_when_spark_asks_for_that(filled: StoreBuilder) -> None:
    reader = stream(filled, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="100")
    start = reader.initialOffset()
    assert len(rows(reader, start, reader.latestOffset(start, ReadAllAvailable()))) == 60


def test_few_messages_wait_for_others_but_not_for_ever(
    filled: StoreBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(filled, minOffsetsPerTrigger="10", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    _, at = run(reader)
    for _ in range(9):
        filled.put()
        assert reader.latestOffset(at, limit) == at
    now_ns = __import__("time").monotonic_ns() + 11 * 10**9
    monkeypatch.setattr("penstock.spark.reading.stream.time.monotonic_ns", lambda: now_ns)
    assert len(rows(reader, at, reader.latestOffset(at, limit))) == 9


def test_available_now_ends_with_what_was_there(filled: StoreBuilder) -> None:
    reader = stream(filled, maxOffsetsPerTrigger="25")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    wanted = every(filled, "flights")
    filled.put(queue_id=1)
    filled.put(queue_id=7)
    batches, _ = run(reader, start)
    assert flat(batches) == wanted and len(batches) == 3


def test_the_progress_says_how_many_messages_wait_and_for_how_long(filled: StoreBuilder) -> None:
    reader = stream(filled, maxOffsetsPerTrigger="25")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    told = reader.reportLatestOffset()
    assert told["offsets"] == {"flights": {"0": 20, "1": 20, "2": 20}}
    assert told["lagMessages"] == 35
    assert told["lagSeconds"] > 10**6, "the records say 2023"
    run(reader, end)
    assert (
        reader.reportLatestOffset()["lagMessages"],
        reader.reportLatestOffset()["lagSeconds"],
    ) == (
        0,
        0,
    )


def test_expired_messages_are_reported_or_passed_over(store: StoreBuilder) -> None:
    for _ in range(900):
        store.put(body=b"x" * 100)
    strict, lenient = stream(store), stream(store, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    sorted(store.paths.commit_log.iterdir())[0].unlink()
    for ask in (
        lambda: strict.latestOffset(start, ReadAllAvailable()),
        lambda: strict.partitions(start, end),
    ):
        with pytest.raises(OffsetOutOfRange, match="flights/0 from 0; the oldest that is left is"):
            ask()
    found = rows(lenient, start, lenient.latestOffset(start, ReadAllAvailable()))
    assert found == rows(lenient, start, end)
    assert found[-1] == ("flights", 0, 899) and 0 < len(found) < 900


def test_a_topic_that_was_created_again_is_reported_or_read_again(filled: StoreBuilder) -> None:
    _, at = run(stream(filled))
    shutil.rmtree(filled.paths.queue("flights", 0))
    filled.next_offset["flights", 0] = 0
    filled.put(queue_id=0)
    with pytest.raises(OffsetOutOfRange, match="flights/0 from 20; the queue ends at 1"):
        run(stream(filled), at)
    lenient = stream(filled, failOnDataLoss="false")
    batches, at = run(lenient, at)
    assert flat(batches) == [("flights", 0, 0)]
    assert run(lenient, at)[0] == []


def test_a_queue_that_a_start_makes_again_is_waited_for(filled: StoreBuilder) -> None:
    reader = stream(filled)
    _, at = run(reader)
    filled.paths.abort.touch()
    directory = filled.paths.queue("flights", 0)
    shutil.move(directory, filled.paths.root / "aside")
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    shutil.move(filled.paths.root / "aside", directory)
    filled.put(queue_id=0)
    assert flat(run(reader, at)[0]) == [("flights", 0, 20)]


def test_available_now_waits_for_a_queue_that_a_start_makes_again(filled: StoreBuilder) -> None:
    """An end where the batch begins would tell Spark that all is read."""
    _, at = run(stream(filled))
    filled.paths.abort.touch()
    aside = filled.paths.root / "aside"
    shutil.move(filled.paths.queue("flights", 0), aside)
    reader = stream(filled)
    reader.prepareForTriggerAvailableNow()
    filled.put(queue_id=1)
    is_made = threading.Timer(0.5, shutil.move, [aside, filled.paths.queue("flights", 0)])
    is_made.start()
    batches, _ = run(reader, at)
    is_made.join()
    assert flat(batches) == [("flights", 1, 20)]


def test_available_now_tells_of_a_topic_that_was_created_again_in_a_store_that_runs(
    filled: StoreBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.reading.stream.RECOVERY_MS", 300)
    _, at = run(stream(filled))
    shutil.rmtree(filled.paths.queue("flights", 0))
    filled.next_offset["flights", 0] = 0
    filled.put(queue_id=0)
    filled.paths.abort.touch()
    reader = stream(filled)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(OffsetOutOfRange, match="created again"):
        run(reader, at)
    reader = stream(filled, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    batches, _ = run(reader, at)
    assert flat(batches) == [("flights", 0, 0)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_restarts_between_any_steps_neither_lose_nor_repeat(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("restarts") / "store")
    store.put()
    most = str(data.draw(st.integers(1, 9)))
    delivered: list[Row] = []
    reader = stream(store, maxOffsetsPerTrigger=most)
    at = reader.initialOffset()
    for step in data.draw(st.lists(st.sampled_from(["put", "batch", "restart", "again"]))):
        if step == "put":
            for _ in range(data.draw(st.integers(1, 12))):
                store.put(
                    data.draw(st.sampled_from(["flights", "trains"])), data.draw(st.integers(0, 2))
                )
        if step == "restart":
            reader = stream(store, maxOffsetsPerTrigger=most)
        if step in ("batch", "again"):
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            batch = rows(reader, at, end)
            if step == "again":  # the driver died after it wrote the end down
                reader = stream(store, maxOffsetsPerTrigger=most)
                assert rows(reader, at, end) == batch
            delivered += batch
            at = end
    delivered += flat(run(reader, at, batches=1000)[0])
    assert sorted(delivered) == every(store, "flights", "trains")


def test_a_stream_has_no_end_and_reads_no_other_versions_checkpoint(filled: StoreBuilder) -> None:
    with pytest.raises(ConfigError, match="endingOffsets.*availableNow"):
        StoreStreamReader(Options(path=filled.root, ending_offsets="earliest"), StructType())
    with pytest.raises(ConfigError, match="version 2, and not 1"):
        stream(filled).latestOffset({"v": 2, "offsets": {}}, ReadAllAvailable())
    with pytest.raises(TopicNotFound, match="Did you mean flights"):
        stream(filled, subscribe="flight").initialOffset()


def test_a_topic_without_a_message_yet_can_be_waited_for(filled: StoreBuilder) -> None:
    filled.paths.topics.parent.mkdir()
    table = {"topicConfigTable": {"later": {"readQueueNums": 4, "writeQueueNums": 4}}}
    filled.paths.topics.write_text(json.dumps(table))
    reader = stream(filled, subscribe="later")
    _, at = run(reader)
    filled.put("later", 2)
    assert flat(run(reader, at)[0]) == [("later", 2, 0)]
