"""Archive, restore, compact and stats on Spark, over one store that a broker wrote."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.client import Consumer, Producer
from penstock.shared.errors import ConfigError, InvalidArgument, TopicNotFound
from penstock.shared.layout import StorePaths
from penstock.shared.process.find_broker import find_running
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.jobs import compact, parts, stats
from penstock.spark.jobs.archive import archive_store, read_archive
from penstock.spark.jobs.archive_check import verify_archive
from penstock.spark.jobs.compact import compact_topic
from penstock.spark.jobs.putting import BORN_TIMESTAMP, Target
from penstock.spark.jobs.restore import restore_topic
from penstock.spark.jobs.stats import COLUMNS, store_stats, write_parquet
from penstock.spark.jobs.stats_page import stats_page
from tests.spark.conftest import StoreBuilder

PENSTOCK = Path(sys.executable).with_name("penstock")
MESSAGES, QUEUES, KEYS = 600, 3, 40


class Sent:
    """What the module's store has: a broker runs on it."""

    def __init__(self, store: Path, bodies: dict[int, list[bytes]], last: dict[str, bytes]) -> None:
        self.store, self.bodies, self.last = store, bodies, last


@pytest.fixture(scope="module")
def sent(start_shared_broker: Callable[..., Any]) -> Sent:
    broker = start_shared_broker(mapped_file_size_commit_log_bytes=256 << 10)
    futures, last = [], {}
    with Producer(store=broker.store) as producer:
        producer.create_topic("prices", QUEUES)
        for number in range(MESSAGES):
            key = f"k{number % KEYS}"
            # the last round has tombstones for some keys
            is_gone = number >= MESSAGES - KEYS and number % 4 == 0
            body = b"" if is_gone else b"%d" % number + b"." * (number % 300)
            queue, properties = number % KEYS % QUEUES, {"own": f"p{number}"}
            more: dict[str, Any] = {"keys": key, "tags": f"t{number % 5}", "properties": properties}
            futures.append(producer.send("prices", body, queue=queue, **more))
            futures[-1].result()  # so that the last message of a key is the last in the log
            last[key] = body
        futures.append(producer.send("prices", b"nobody's", queue=0))
        done = [future.result() for future in futures]
    assert len(done) == MESSAGES + 1
    store = Path(broker.store)
    return Sent(store, bodies_of(store, "prices"), last)


def bodies_of(store: Path, topic: str) -> dict[int, list[bytes]]:
    """Of each queue, in its order, by a consumer."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for message in messages_of(store, topic):
        found[message.queue_id].append(bytes(message.body))
    return dict(found)


def messages_of(store: Path, topic: str) -> list[Any]:
    with Consumer(store=store, topic=topic, follow=False) as consumer:
        return list(consumer)


def test_an_archive_comes_back_into_a_topic_once_and_in_order(
    spark: SparkSession, sent: Sent, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    done = archive_store(spark, sent.store, place, split_bytes=90_000, progress=lambda *_: None)
    assert done.messages == MESSAGES + 1 and done.archived_to > 0
    report = verify_archive(spark, place, sent.store)
    assert report.ok and report.compared == MESSAGES + 1
    frame = read_archive(spark, place)
    assert frame.count() == MESSAGES + 1
    assert frame.schema["topic"].dataType.simpleString() == "string"

    target = Target("again", path=str(sent.store))
    for _ in range(2):  # as after a kill: what is stored is not stored twice
        restored = restore_topic(spark, place, "prices", target)
        assert (restored.messages, restored.lost, restored.queues) == (MESSAGES + 1, 0, QUEUES)
        assert bodies_of(sent.store, "again") == sent.bodies
    came = {message.properties["own"]: message for message in messages_of(sent.store, "again")[:50]}
    for message in messages_of(sent.store, "prices"):
        if (own := message.properties.get("own")) in came:
            again = came[own]
            assert (again.keys, again.tags) == (message.keys, message.tags)
            assert again.properties[BORN_TIMESTAMP] == str(message.born_timestamp_ms)
    with pytest.raises(TopicNotFound, match="prices"):
        restore_topic(spark, place, "price", target)


def test_the_last_message_of_each_key_is_kept_but_tombstones_are_not(
    spark: SparkSession, sent: Sent
) -> None:
    target = Target("prices-last", path=str(sent.store))
    for _ in range(2):
        done = compact_topic(spark, sent.store, "prices", target, split_bytes=90_000)
        assert (done.messages, done.without_key, done.keys) == (MESSAGES + 1, 1, KEYS)
        assert (done.tombstones, done.kept) == (KEYS // 4, KEYS - KEYS // 4)
        kept = {each.keys: bytes(each.body) for each in messages_of(sent.store, "prices-last")}
        assert kept == {key: body for key, body in sent.last.items() if body}
        assert len(messages_of(sent.store, "prices-last")) == len(kept)
    with pytest.raises(InvalidArgument, match="itself"):
        compact_topic(spark, sent.store, "prices", Target("prices", path=str(sent.store)))


@pytest.mark.parametrize("named", ["dots", "link", "produce", "consume"])
def test_a_topic_is_not_compacted_into_itself_however_its_store_is_named(
    spark: SparkSession, sent: Sent, tmp_path: Path, named: str
) -> None:
    (tmp_path / "link").symlink_to(sent.store)
    endpoints = find_running(sent.store).endpoints
    target = {
        "dots": Target("prices", str(sent.store / ".." / sent.store.name)),
        "link": Target("prices", str(tmp_path / "link")),
        "produce": Target("prices", endpoint=endpoints.produce),
        "consume": Target("prices", endpoint=endpoints.consume),
    }[named]
    with pytest.raises(InvalidArgument, match="itself"):
        compact_topic(spark, sent.store, "prices", target)


def test_a_topic_of_a_copy_of_a_store_is_another_one(sent: Sent, tmp_path: Path) -> None:
    endpoint = find_running(sent.store).endpoints.produce
    (tmp_path / "copy" / "penstock").mkdir(parents=True)
    run = StorePaths(sent.store).run
    shutil.copyfile(run, tmp_path / "copy" / run.relative_to(sent.store))
    for other in (tmp_path / "copy", tmp_path / "new"):
        assert not Target("prices", endpoint=endpoint).is_of(other)
        assert not Target("prices", path=str(sent.store)).is_of(other)
    assert Target("prices", endpoint=endpoint).is_of(sent.store)


def marked(work: Callable[..., Any], told: list[Any]) -> Callable[..., Any]:
    """The same, and where it begins and ends among what is told."""

    def marking(*given: Any) -> Any:
        told.append("begins")
        try:
            return work(*given)
        finally:
            told.append("ends")

    return marking


@pytest.mark.parametrize("job", ["compact", "stats"])
def test_what_a_job_does_after_its_first_pass_is_told_too(
    spark: SparkSession, sent: Sent, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(parts, "LOOK_S", 0.005)
    if job == "compact":
        monkeypatch.setattr(compact, "put", marked(compact.put, told))
        target = Target("prices-told", path=str(sent.store))
        compact_topic(spark, sent.store, "prices", target, progress=lambda *now: told.append(now))
    else:
        monkeypatch.setattr(stats, "_commonest", marked(stats._commonest, told))
        store_stats(spark, sent.store, progress=lambda *now: told.append(now))
    meanwhile = told[told.index("begins") + 1 : told.index("ends")]
    assert any(done < total for done, total in meanwhile), meanwhile
    assert told[-1][0] == told[-1][1] > 0


def test_the_figures_are_those_of_the_messages(
    spark: SparkSession, store: StoreBuilder, tmp_path: Path
) -> None:
    hour_ms, born_ms = 3_600_000, 1_700_000_000_000
    hours: Counter[int] = Counter()
    for number in range(90):
        stored_ms = born_ms + number * hour_ms // 20
        hours[stored_ms // hour_ms * hour_ms] += 1
        store.put(
            "orders",
            number % 2,
            b"x" * number,
            {"KEYS": f"k{number % 7} all", "TAGS": f"t{number % 3}"},
            born_timestamp_ms=stored_ms - number,
            store_timestamp_ms=stored_ms,
        )
        if number == 40:
            store.put_entry("orders", 0, 0, 0x7FFFFFFF)
    store.put("billing", 0, b"<b>", {"KEYS": "<script>"}, store_timestamp_ms=born_ms)
    stats = store_stats(spark, store.root, split_bytes=8000)
    tables = stats.tables
    assert stats.messages == 91 and stats.bytes == sum(range(90)) + 3
    billing, orders = tables["topics"]
    assert (orders["messages"], orders["bytes"]) == (90, sum(range(90)))
    assert (orders["min_bytes"], orders["max_bytes"], orders["p50_bytes"]) == (0, 89, 44)
    assert (orders["p90_latency_ms"], orders["max_latency_ms"]) == (80, 89)
    assert billing["messages"] == 1
    by_queue = {(row["topic"], row["queue_id"]): row for row in tables["queues"]}
    assert by_queue["orders", 0]["messages"] == 45 and by_queue["orders", 0]["missing"] == 1
    assert by_queue["orders", 1]["missing"] == 0
    assert tables["gaps"] == [{"topic": "orders", "queue_id": 0, "start": 21, "stop": 22}]
    assert [row["messages"] for row in tables["tags"] if row["topic"] == "orders"] == [30, 30, 30]
    told = {row["hour"]: row["messages"] for row in tables["hours"] if row["topic"] == "orders"}
    assert told == {datetime.fromtimestamp(at / 1000, UTC): n for at, n in hours.items()}
    commonest = [row for row in tables["keys"] if row["topic"] == "orders"]
    assert commonest[0] == {"topic": "orders", "key": "all", "messages": 90}
    assert len(commonest) == 8 and commonest[1]["messages"] == 13

    write_parquet(stats, tmp_path / "figures")
    for name, rows in tables.items():
        table = pq.read_table(tmp_path / "figures" / f"{name}.parquet")
        assert tuple(table.column_names) == COLUMNS[name] and table.to_pylist() == rows

    page = stats_page(stats)
    plots = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(plots) == 4 and all(ElementTree.fromstring(plot) is not None for plot in plots)
    assert plots[0].count("<rect") == len(hours)
    assert (
        "&lt;script&gt;" in page
        and "<script" not in page
        and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    )


def test_messages_of_years_before_1000_are_archived_under_days_that_spark_reads(
    spark: SparkSession, store: StoreBuilder, tmp_path: Path
) -> None:
    store.put("orders")
    for at in (datetime(1, 1, 1, tzinfo=UTC), datetime(999, 12, 31, tzinfo=UTC)):
        store.put("orders", store_timestamp_ms=int(at.timestamp() * 1000))
    archive_store(None, store.root, tmp_path / "archive")
    assert verify_archive(None, tmp_path / "archive", store.root).ok
    days = read_archive(spark, tmp_path / "archive").selectExpr("cast(day AS string)").collect()
    assert sorted(row[0] for row in days) == ["0001-01-01", "0999-12-31", "2023-11-14"]


@pytest.mark.parametrize("job", ["compact", "stats"])
def test_a_store_without_queues_is_not_counted_as_an_empty_one(
    spark: SparkSession, store: StoreBuilder, job: str
) -> None:
    store.put("orders", properties={"KEYS": "k"})
    shutil.rmtree(store.paths.consume_queue)
    with pytest.raises(ConfigError, match="consume queues.*penstock store rebuild"):
        if job == "compact":
            compact_topic(spark, store.root, "orders", Target("last", store.root))
        else:
            store_stats(spark, store.root)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_a_command_and_the_archive_goes_on_from_there(
    sent: Sent, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    place = tmp_path / "archive"
    command = [PENSTOCK, "spark", "archive", str(sent.store), str(place), "--master", "local[1]"]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 600  # Java may take its time on a machine that is busy
        while not (place / "_penstock" / "archive.json").exists():
            assert time.monotonic() < until and ran.poll() is None
            time.sleep(0.01)
        ran.send_signal(number)
        _, said = ran.communicate(timeout=500)
    finally:
        ran.kill()
        ran.communicate()
    assert ran.returncode == code and "Traceback" not in said, said
    archive_store(None, sent.store, place)
    report = verify_archive(None, place, sent.store)
    with StoreDirectory(sent.store) as opened:
        queues = [each for each in opened.queues() if not each.topic.startswith("rmq_sys_")]
    assert report.ok and report.messages == sum(each.max_offset for each in queues)
