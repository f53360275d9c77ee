"""What a running broker sends is what its store's files hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.loads.stack import Stack, running_stack
from penstock.client.connecting.asker import Asker
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import (
    ConfigError,
    ConnectError,
    InvalidArgument,
    OffsetOutOfRange,
    StoreDamaged,
    TopicNotFound,
)
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET, AT_TOTAL_SIZE
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.log_scan import LogRange
from penstock.spark.reading.options import Options, parse_options
from penstock.spark.reading.predicates import Predicate
from penstock.spark.reading.rows import how_of
from penstock.spark.reading.stream import StoreStreamReader
from penstock.spark.reading.task import plan_query, read_partition
from penstock.spark.source import PenstockSource

SMALL_FILES = (
    "mapped_file_size_commit_log_bytes = 16_777_216",
    "mapped_file_size_consume_queue_bytes = 20_000",
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(None, SMALL_FILES) as running:
        with Producer(store=running.store) as producer:
            sent = [
                producer.send(
                    ("orders", "trains")[number % 5 == 0],
                    b"%d" % number * (number % 40),
                    tags="ab"[number % 2],
                    keys=[f"k{number}"],
                    properties={"amount": str(number)},
                )
                for number in range(1500)
            ]
            for future in sent:
                future.result(60)
        # queues follow an acknowledgement within a tick
        while len(rows({"path": str(running.store), "columns": "topic"})) < 1500:
            pass
        yield running


def rows(given: dict[str, str]) -> list[tuple[Any, ...]]:
    parts = plan_query(parse_options(given), [], PenstockSource(given).schema().fieldNames())
    return sorted((row for part in parts for row in read(part, given)), key=repr)


def read(part: Sequence[QueueRange | LogRange], given: dict[str, str]) -> list[tuple[Any, ...]]:
    options, schema = parse_options(given), PenstockSource(given).schema()
    return [
        row
        for batch in read_partition(options, part, schema, how_of(options))
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "orders", "maxRecordsPerPartition": "100"},
        {"tags": "a", "columns": "topic,queue_id,queue_offset,keys"},
        {"sql": "amount > 1400", "subscribePattern": "tr.*"},
        {"startingTimestamp": "-15m", "columns": "queue_offset,store_timestamp"},
        {"endingTimestamp": "-15m"},
        {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 50, "1": -1}}'},
        {"mode": "PERMISSIVE", "subscribe": "trains"},
    ],
)
def test_the_rows_of_a_broker_are_those_of_its_store(stack: Stack, options: dict[str, str]) -> None:
    expected = rows({"path": str(stack.store), **options})
    assert expected or "endingTimestamp" in options
    assert rows({"endpoint": stack.produce, **options}) == expected


def test_the_brokers_own_topics_have_rows_where_they_are_named(stack: Stack) -> None:
    with Producer(store=stack.store) as producer:
        producer.send("orders", b"to come", delay=3600).result(60)
    named = {"subscribe": TIMER_TOPIC, "columns": "topic,queue_offset,body"}
    while True:
        with suppress(TopicNotFound):  # its queue follows an acknowledgement
            if rows({"path": str(stack.store), **named}):
                break
    assert rows({"endpoint": stack.produce, **named}) == [(TIMER_TOPIC, 0, b"to come")]
    # of no other is anything read
    assert rows({"endpoint": stack.produce, "subscribePattern": "rmq.*"}) == []


@pytest.mark.parametrize("where", ["path", "endpoint"])
def test_a_filter_on_store_times_bounds_what_is_read_of_a_broker_as_of_its_store(
    stack: Stack, where: str
) -> None:
    options = parse_options({where: str(stack.store) if where == "path" else stack.consume})
    hour = dt.timedelta(hours=1)
    for function, by, count in (("greater", hour, 0), ("less", -hour, 0), ("less", hour, 1500)):
        pushed = [Predicate("store_timestamp", function, dt.datetime.now(dt.UTC) + by)]
        parts = plan_query(options, pushed, ["body"])
        assert sum(piece.stop - piece.start for part in parts for piece in part) == count


def test_a_stream_from_a_broker_goes_on_where_it_stood(stack: Stack) -> None:
    given = {"endpoint": stack.consume, "columns": "topic,queue_id,queue_offset"}
    given["subscribe"] = "orders"

    def ask(at: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        schema = PenstockSource(given).schema()
        reader = StoreStreamReader(Options(**_fields(given)), schema)
        start = reader.initialOffset() if at is None else at
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        count = sum(b.num_rows for p in reader.partitions(start, end) for b in reader.read(p))
        assert reader.latestOffset(end, reader.getDefaultReadLimit())["v"] == 1  # a second look
        reader.stop()
        return count, end

    count, end = ask(None)
    assert count == 1200
    with Producer(store=stack.store) as producer:
        producer.send("orders", b"later").result(60)
    seen = 0
    while not seen:  # queues follow an acknowledgement within a tick
        seen, end = ask(end)
    assert seen == 1


def test_a_stream_from_a_broker_says_how_long_messages_have_waited(stack: Stack) -> None:
    def lag(where: dict[str, str]) -> tuple[int, float]:
        given = {**where, "columns": "topic", "subscribe": "orders", "maxOffsetsPerTrigger": "100"}
        reader = StoreStreamReader(parse_options(given), PenstockSource(given).schema())
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        told = reader.reportLatestOffset()
        reader.stop()
        return told["lagMessages"], told["lagSeconds"]

    # of files, of the broker and of files again: time goes on meanwhile
    asked = [lag({"path": str(stack.store)}), lag({"endpoint": stack.consume})]
    asked.append(lag({"path": str(stack.store)}))
    assert asked[0][0] == asked[1][0] > 1000
    assert 0 < asked[0][1] <= asked[1][1] <= asked[2][1]


def _fields(given: dict[str, str]) -> dict[str, Any]:
    parsed = parse_options(given)
    return {name: getattr(parsed, name) for name in parsed.__struct_fields__}


def test_a_broker_that_is_not_there_or_has_no_such_topic_is_named(stack: Stack) -> None:
    with pytest.raises(TopicNotFound, match="ordres.*orders"):
        rows({"endpoint": stack.consume, "subscribe": "ordres"})
    with pytest.raises(ConnectError):
        rows({"endpoint": "tcp://127.0.0.1:1"})
    with pytest.raises(InvalidArgument):
        rows({"endpoint": "127.0.0.1"})
    with pytest.raises(ConfigError, match="path /s, endpoint"):
        rows({"endpoint": stack.consume, "path": "/s"})


def test_while_nothing_comes_a_stream_asks_a_broker_one_question_at_a_time(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"endpoint": stack.consume, "columns": "topic,queue_id,queue_offset"}
    reader = StoreStreamReader(parse_options(given), PenstockSource(given).schema())
    monkeypatch.setattr("penstock.spark.reading.stream.BROKER_LOOK_MS", 0)
    asked: list[str] = []
    for of, name in ((Asker, "ask"), (Producer, "topics")):
        monkeypatch.setattr(of, name, _counted(getattr(of, name), asked))

    def look(at: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        asked.clear()
        return reader.latestOffset(at, reader.getDefaultReadLimit()), list(asked)

    at, questions = look(reader.initialOffset())
    while questions != ["ask"]:  # what earlier tests have sent comes first
        at, questions = look(at)
    with Producer(store=stack.store) as producer:
        producer.send("trains", b"later").result(60)
    later = at
    while later == at:  # queues follow an acknowledgement within a tick
        later, questions = look(at)
    # what is on disk, which topics there are, and their queues: not a question for each topic
    assert questions == ["ask", "topics", "ask"]
    reader.stop()


def test_topics_with_more_queues_than_one_answer_has_are_all_there() -> None:
    with running_stack(None, (*SMALL_FILES, "max_queues = 4_000")) as stack:
        sent = {(name, queue) for name in ("a", "b", "c") for queue in (0, 599)}
        with Producer(store=stack.store) as producer:
            for name in ("a", "b", "c"):
                producer.create_topic(name, 600)
            for future in [producer.send(name, b"x", queue=queue) for name, queue in sent]:
                future.result(60)
        columns = {"columns": "topic,queue_id"}
        assert {row[:2] for row in rows({"endpoint": stack.consume, **columns})} == sent
        chosen = rows({"endpoint": stack.consume, **columns, "subscribe": "c"})
        assert {row[:2] for row in chosen} == {("c", 0), ("c", 599)}


def test_a_task_reads_a_topics_queues_by_one_connection(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = plan_query(parse_options({"endpoint": stack.consume}), [], ["body"])
    queues = {(piece.topic, piece.queue_id) for part in parts for piece in part}
    topics = [{piece.topic for piece in part} for part in parts]
    made: list[str] = []
    monkeypatch.setattr(Consumer, "__init__", _counted(Consumer.__init__, made))
    found = rows({"endpoint": stack.consume, "columns": "topic,queue_id,queue_offset"})
    assert {row[:2] for row in found} == queues
    assert len(made) == sum(map(len, topics)) < len(queues)


def _counted(method: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def counted(*given: Any, **named: Any) -> Any:
        asked.append(method.__name__)
        return method(*given, **named)

    return counted


def test_damaged_records_of_a_broker_are_dropped_or_reported_as_those_of_files() -> None:
    with running_stack(None, SMALL_FILES) as stack:
        with Producer(store=stack.store) as producer:
            producer.create_topic("orders", 1)
            for number in range(60):
                producer.send("orders", b"%d" % number * 20, queue=0, tags="ab"[number % 2])
            producer.flush(60)
        path, endpoint = {"path": str(stack.store)}, {"endpoint": stack.consume}
        while len(places := dict(rows({**path, "columns": "queue_offset,physical_offset"}))) < 60:
            pass
        segment = min((stack.store / "commitlog").glob("0*"))
        with segment.open("r+b") as log:
            for offset, field, value in (
                (10, AT_TOTAL_SIZE + 2, 7),
                (11, AT_QUEUE_OFFSET + 7, 40),  # where another message is
                (30, AT_QUEUE_OFFSET + 7, 2),
                (59, AT_TOTAL_SIZE + 3, 92),
            ):
                log.seek(places[offset] + field)
                log.write(bytes([value]))
        for columns in ("queue_offset,body", "topic,queue_id,queue_offset,keys"):
            for more in ({}, {"tags": "a"}, {"sql": "TAGS = 'a'"}):
                given = {"columns": columns, "mode": "DROPMALFORMED", **more}
                assert rows({**endpoint, **given}) == rows({**path, **given})
                if "sql" in more:  # of what it cannot read a broker cannot say what it is
                    continue
                given["mode"] = "PERMISSIVE"
                found = [row[:-1] for row in rows({**endpoint, **given})]
                assert found == [row[:-1] for row in rows({**path, **given})]
        (reported,) = (
            row
            for row in rows({**endpoint, "mode": "PERMISSIVE", "columns": "queue_offset"})
            if row[0] == 30
        )
        assert "queue 0, offset 30" in reported[1]
        with pytest.raises(StoreDamaged, match="queue 0, offset 1"):
            rows({**endpoint, "columns": "queue_offset"})


def test_damage_in_one_queue_leaves_a_tasks_others_whole() -> None:
    with running_stack(None, SMALL_FILES) as stack:
        with Producer(store=stack.store) as producer:
            producer.create_topic("orders", 3)
            for number in range(90):
                producer.send("orders", b"%d" % number * 20, queue=number % 3)
            producer.flush(60)
        path, endpoint = {"path": str(stack.store)}, {"endpoint": stack.consume}
        columns = {"columns": "queue_id,queue_offset,physical_offset"}
        while len(found := rows({**path, **columns})) < 90:
            pass
        segment = min((stack.store / "commitlog").glob("0*"))
        with segment.open("r+b") as log:
            for queue_id, offset in ((0, 11), (2, 3), (2, 29)):
                (place,) = (row[2] for row in found if row[:2] == (queue_id, offset))
                log.seek(place + AT_QUEUE_OFFSET + 7)
                log.write(bytes([offset + 1]))
        for mode in ("DROPMALFORMED", "PERMISSIVE"):
            given = {"columns": "queue_id,queue_offset,body", "mode": mode}
            came = rows({**endpoint, **given})
            count = 90 if mode == "PERMISSIVE" else 87
            assert len(came) == count == len({row[:2] for row in came})
            assert [row[:3] for row in came] == [row[:3] for row in rows({**path, **given})]


def test_messages_of_several_queues_that_have_expired_end_a_task_or_are_passed_over(
    tmp_path: Path,
) -> None:
    with running_stack(tmp_path / "store", SMALL_FILES) as stack, Producer(store=stack.store) as to:
        to.create_topic("orders", 2)
        for number in range(40):
            to.send("orders", bytes(1 << 20), queue=number % 2)
        to.flush(60)
    (tmp_path / "store" / "commitlog" / f"{0:020}").unlink()
    planned = [QueueRange("orders", 0, 0, 20), QueueRange("orders", 1, 0, 20)]
    with running_stack(tmp_path / "store", SMALL_FILES) as stack:
        given = {"endpoint": stack.consume, "columns": "queue_id,queue_offset"}
        with pytest.raises(OffsetOutOfRange, match=r"of orders/0 from 0 and of 1 queue more"):
            read(planned, given)
        left = read(planned, {**given, "failOnDataLoss": "false"})
    assert 0 < len(left) < 40 and {row[0] for row in left} == {0, 1}
