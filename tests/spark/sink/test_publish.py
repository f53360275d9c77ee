"""What tasks stage and a driver publishes, with a real broker and without Spark: every attempt at a
batch but one leaves nothing, whoever is killed when."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from penstock.client import Consumer, MessageQuery, Producer
from penstock.client.core.sending.records import Staged
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    NotRunning,
    OffsetOutOfRange,
    PropertiesTooLarge,
    QueueNotFound,
)
from penstock.shared.faults import FIRED_VARIABLE, VARIABLE
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.spark.sink.blocks import StoredBlock
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.publish import IN_FLIGHT, Publisher
from penstock.spark.sink.tasks import INLINE_BYTES, KEYS_IN_A_MS, write_rows
from penstock.spark.sink.writers import Answer, Batch, StreamWriter

# some blocks, each of which takes several messages of the small broker's
MANY = 2500
# more blocks than are on their way at once
MORE = 9500


class Place(NamedTuple):
    """A store whose broker runs, and a topic and a writer of the test's own."""

    store: Path
    topic: str


@pytest.fixture(scope="module")
def shared(start_shared_broker: Callable[..., Any]) -> Any:
    return start_shared_broker()


@pytest.fixture
def running(shared: Any) -> Place:
    return new_place(shared)


def new_place(broker: Any) -> Place:
    place = Place(broker.store, f"t{secrets.token_hex(4)}")
    with Producer(store=place.store) as producer:
        producer.create_topic(place.topic, 4)
    return place


def options(place: Place) -> SinkOptions:
    return SinkOptions(path=str(place.store), topic=place.topic)


def stage(place: Place, name: str, count: int) -> list[StoredBlock]:
    bodies = [f"{name}-{number:05d}".encode().ljust(1000, b".") for number in range(count)]
    shards = [f"s{number % 7}" for number in range(count)]
    batch = pa.RecordBatch.from_pydict({"body": bodies, "sharding_key": shards})
    return write_rows(options(place), [batch])


def commit(place: Place, number: int, blocks: Sequence[StoredBlock], keep: bool = True) -> bool:
    with Publisher(options(place), f"of-{place.topic}") as publisher:
        return publisher.commit(number, blocks, keep)


def read(place: Place, topic: str = "") -> list[Any]:
    """What is there, once the queues have it."""
    with Producer(store=place.store) as producer:
        producer.send("mark", b"").result(60)
    # a question finds what was acknowledged before it, so the queues are up to date after it
    with MessageQuery(store=place.store) as query:
        query.by_key("mark", "none")
    with Consumer(store=place.store, topic=topic or place.topic, follow=False) as consumer:
        return list(consumer)


def names(place: Place) -> list[str]:
    return sorted(bytes(message.body)[:7].decode() for message in read(place))


def expected(name: str, count: int) -> list[str]:
    return [f"{name}-{number:05d}" for number in range(count)]


def test_few_rows_travel_with_the_answer_and_are_stored_in_one_frame(running: Place) -> None:
    blocks = stage(running, "a", 20)
    assert [type(each) for each in blocks] == [bytes] and len(blocks[0]) < INLINE_BYTES
    assert commit(running, 0, blocks)
    assert names(running) == expected("a", 20)
    own = [each for each in read(running, OFFSETS_TOPIC) if running.topic in each.keys]
    assert [each.tags for each in own] == ["begin", "offsets"]


def test_many_rows_are_staged_and_published_in_order(running: Place) -> None:
    blocks = stage(running, "a", MANY)
    assert len(blocks) > 3 and {type(each) for each in blocks} == {Staged}
    assert read(running) == []
    assert commit(running, 0, blocks)
    assert names(running) == expected("a", MANY)
    for queue in range(4):
        own = [bytes(each.body) for each in read(running) if each.queue_id == queue]
        assert own == sorted(own)


def test_the_driver_sees_none_of_the_rows_that_it_publishes(
    running: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(query: MessageQuery, *question: object) -> None:
        raise AssertionError("staged rows travel once")

    blocks = stage(running, "a", MANY)
    with monkeypatch.context() as patch:
        patch.setattr(MessageQuery, "ask", ask)
        assert commit(running, 0, blocks)
    assert names(running) == expected("a", MANY)


@pytest.mark.parametrize("count", [20, MANY])
def test_a_batch_that_is_tried_again_is_stored_once(running: Place, count: int) -> None:
    assert commit(running, 0, stage(running, "a", count))
    # another attempt need not have the same rows
    assert not commit(running, 0, stage(running, "b", count))
    assert not commit(running, 0, stage(running, "c", 2600 - count))
    assert commit(running, 1, stage(running, "d", 10))
    assert not commit(running, 0, stage(running, "e", 10))
    assert commit(running, 7, stage(running, "f", 10))  # a number may be left out
    assert names(running) == sorted(expected("a", count) + expected("d", 10) + expected("f", 10))


def test_a_writer_with_one_batch_leaves_nothing_in_the_ledger(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    running = new_place(broker)
    for count in (20, MANY):
        assert commit(running, 0, stage(running, "a", count), keep=False)
    assert names(running) == sorted(expected("a", 20) + expected("a", MANY))
    assert broker.stop() == 0
    saved = (running.store / "penstock" / "exact-offsets.json").read_text()
    assert "SPARK" not in saved


def test_a_batch_is_known_when_the_broker_was_killed_meanwhile(
    broker_in: Callable[..., Any], tmp_path: Any
) -> None:
    first = broker_in(tmp_path)
    place = new_place(first)
    staged, small = stage(place, "a", MANY), stage(place, "b", 20)
    assert commit(place, 0, small)
    first.kill()
    broker_in(tmp_path)
    assert not commit(place, 0, staged)
    assert commit(place, 1, staged)
    assert names(place) == sorted(expected("a", MANY) + expected("b", 20))


@pytest.mark.parametrize("by_path", [True, False])
def test_a_broker_that_is_being_restarted_is_waited_for(
    broker_in: Callable[..., Any], tmp_path: Any, by_path: bool
) -> None:
    """By the task and by the driver: each of them has a connection of its own."""
    running = [broker_in(tmp_path)]
    place = new_place(running[0])
    where = options(place)
    if not by_path:
        where = SinkOptions(endpoint=running[0].produce, topic=place.topic)
    port = running[0].produce.rpartition(":")[2]
    rows = pa.RecordBatch.from_pydict({"body": [b"a-00000".ljust(1000, b".")]})

    def begin() -> None:
        running.append(broker_in(tmp_path, produce_port=port))

    @contextmanager
    def restart() -> Iterator[None]:
        running.pop().kill()
        begins = threading.Timer(0.5, begin)
        begins.start()
        try:
            yield
        finally:
            begins.join()  # whatever fails, it is there to be stopped

    with restart():
        blocks = write_rows(where, [rows])
    with restart(), Publisher(where, f"of-{place.topic}") as publisher:
        assert publisher.commit(0, blocks, keep=True)
    assert names(place) == expected("a", 1)


def test_a_path_without_a_store_is_told_of_at_once(tmp_path: Any) -> None:
    where = SinkOptions(path=str(tmp_path / "none"), topic="t", timeout_ms=10**8)
    with pytest.raises(NotRunning, match="no such directory"):
        where.producer()


def test_what_was_staged_for_a_broker_of_other_records_is_published(
    broker_in: Callable[..., Any], tmp_path: Any
) -> None:
    first = broker_in(tmp_path)
    place = new_place(first)
    staged = stage(place, "a", 300)
    first.kill()
    broker_in(tmp_path, enabled_append_prop_crc="true")
    assert commit(place, 0, staged)
    assert names(place) == expected("a", 300)
    assert all(each.properties.get("__CRC32#") for each in read(place))


def killed_in_batch_0(place: Place, armed: str, tmp_path: Path) -> None:
    """A driver of the place's writer is killed at a crash point, in its first batch."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[3]); import test_publish as t; "
        "place = t.Place(*sys.argv[1:3]); t.commit(place, 0, t.stage(place, 'a', t.MANY))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(place.store), place.topic, os.path.dirname(__file__)],
        env={**os.environ, VARIABLE: armed, FIRED_VARIABLE: str(tmp_path / "fired")},
        timeout=500,
    )
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "kept"),
    [
        ("spark.staged", "b"),
        ("spark.before_decision", "b"),
        ("spark.decided", "a"),
        ("spark.block_published", "a"),
        ("spark.block_published=crash@3", "a"),
        ("spark.published", "a"),
    ],
)
def test_whenever_a_driver_is_killed_the_batch_is_there_once_after_the_next(
    running: Place, tmp_path: Any, point: str, kept: str
) -> None:
    killed_in_batch_0(running, point if "=" in point else f"{point}=crash", tmp_path)
    # Spark plans a batch again, with more partitions and rows in another order perhaps
    blocks = [*stage(running, "b", MANY), *stage(running, "x", 0)]
    assert commit(running, 0, blocks) == (kept == "b")
    assert names(running) == expected(kept, MANY)


@pytest.mark.parametrize("point", ["spark.decided", "spark.block_published"])
def test_what_is_decided_is_published_also_where_the_replayed_batch_has_no_rows(
    running: Place, tmp_path: Path, point: str
) -> None:
    killed_in_batch_0(running, f"{point}=crash", tmp_path)
    writer = StreamWriter(options(running))
    writer.commit([Answer([], Batch(f"of-{running.topic}", 0))], 0)
    assert names(running) == expected("a", MANY)
    # and one that nobody has decided on has nothing to show
    writer.commit([Answer([], Batch(f"of-{running.topic}", 1))], 1)
    assert names(running) == expected("a", MANY)


def test_of_drivers_that_commit_at_once_one_attempt_is_stored_once(running: Place) -> None:
    staged = {name: stage(running, name, MORE) for name in "abc"}
    assert min(map(len, staged.values())) > IN_FLIGHT
    done: dict[str, bool] = {}

    def run(name: str) -> None:
        done[name] = commit(running, 0, staged[name])

    threads = [threading.Thread(target=run, args=(name,)) for name in staged]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [name for name, stored in done.items() if stored]
    assert names(running) == expected(won, MORE)


@pytest.mark.parametrize("count", [20, MANY])
def test_of_a_partition_that_two_tasks_have_staged_one_copy_is_stored(
    running: Place, count: int
) -> None:
    """As with speculation: both attempts end, and Spark hands one answer to the commit."""
    first, second = (stage(running, "a", count) for _ in range(2))
    assert not set(first) & set(second), "each has staged rows of its own"
    assert commit(running, 0, second)
    assert names(running) == expected("a", count)


def test_rows_have_all_that_a_message_has(running: Place) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": ["other", running.topic],
            "body": ["text", ""],
            "tags": ["T", None],
            "keys": [["k1", "k2"], None],
            "properties": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
            "queue_id": pa.array([None, 3], pa.int32()),
            "delay_ms": pa.array([None, 1], pa.int64()),
        }
    )
    blocks = write_rows(SinkOptions(path=str(running.store)), [batch])
    assert commit(running, 0, blocks)
    (other,) = read(running, "other")
    assert (bytes(other.body), other.tags, other.keys) == (b"text", "T", "k1 k2")
    assert other.properties["a"] == "1"
    with Consumer(store=running.store, topic=running.topic) as consumer:
        (late,) = consumer.poll(60)
    assert (bytes(late.body), late.queue_id) == (b"", 3)


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"body": [b"x", None]}, InvalidMessage, "null.*row 1 of partition 0"),
        ({"body": [b"x"], "topic": [None]}, InvalidMessage, "topic of a row is null"),
        ({"body": [b"x" * 70_000]}, InvalidMessage, "larger than 65536"),
        ({"body": [b"x"], "tags": ["t" * 40_000]}, PropertiesTooLarge, "row 0"),
        ({"body": [b"x"], "keys": [["a b"]]}, InvalidMessage, "blank"),
        (
            {"body": [b"x"], "queue_id": [1], "sharding_key": ["s"]},
            InvalidMessage,
            "both sharding_key and queue_id",
        ),
        ({"body": [b"x"], "delay_ms": [1], "delay_level": [3]}, InvalidMessage, "two delays"),
        (
            {"body": [b"x"] * 3, "queue_id": [0, None, 4]},
            QueueNotFound,
            "no such queue: 4, row 2 of partition 0. It has queues 0 to 3",
        ),
        ({"body": [b"x"] * 2, "topic": ["t", "../t"]}, InvalidArgument, "row 1 of partition 0"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(
    running: Place, columns: dict[str, Any], error: type[Exception], said: str
) -> None:
    topic = "" if "topic" in columns else running.topic
    where = SinkOptions(path=str(running.store), topic=topic)
    with pytest.raises(error, match=said):
        write_rows(where, [pa.RecordBatch.from_pydict(columns)])


def test_each_row_has_a_key_of_its_own_also_in_a_batch_of_very_many(running: Place) -> None:
    """All rows of a batch are of one ms, of which numbers tell 65,536 apart."""
    count = KEYS_IN_A_MS + 500
    blocks = write_rows(options(running), [pa.RecordBatch.from_pydict({"body": [b"x"] * count})])
    assert commit(running, 0, blocks)
    assert len({each.properties["UNIQ_KEY"] for each in read(running)}) == count


def test_rows_that_are_not_there_any_more_are_told_of(running: Place) -> None:
    lost = [Staged(("7F00000100001F9000000000000FFFFF",), Shape(), 1)]
    with pytest.raises(OffsetOutOfRange, match="have expired"):
        commit(running, 0, lost)
