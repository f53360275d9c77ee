"""The data source in a real Spark session."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StringType, StructField, StructType

from penstock.client.arrow.columns import SCHEMA
from penstock.shared.formats.compression import decompress
from penstock.shared.formats.record import pack_host
from penstock.shared.store.directory import StoreDirectory
from penstock.spark import register
from penstock.spark.jobs.archive_files import SCHEMA as ARCHIVED
from penstock.spark.reading.options import parse_options
from penstock.spark.source import COLUMNS, PenstockSource, StoreReader

from .conftest import BORN_MS, STORED_MS, StoreBuilder

GOLDEN = Path(__file__).parent.parent / "golden"
COLUMN_TYPES = [
    ("topic", "string"),
    ("queue_id", "int"),
    ("queue_offset", "bigint"),
    ("physical_offset", "bigint"),
    ("keys", "string"),
    ("tags", "string"),
    ("body", "binary"),
    ("born_timestamp", "timestamp"),
    ("store_timestamp", "timestamp"),
    ("properties", "map<string,string>"),
]

# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def load(spark: SparkSession, root: str | Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").option("path", str(root)).options(**options).load()


def test_a_poll_and_an_archive_have_the_columns_of_the_source() -> None:
    assert list(COLUMNS) == SCHEMA.names == ["topic", *ARCHIVED.names]


def test_all_columns_have_their_types_and_values(spark: SparkSession, store: StoreBuilder) -> None:
    long_topic = "%RETRY%" + "g" * 200
    ipv6 = pack_host("2001:db8::1", 9)
    properties = {"KEYS": "k1 k2", "TAGS": "早上é", "größe": "42"}
    store.put(body=b"\x00\xff", properties=properties)
    empty = store.put(body=b"")
    retried = store.put(long_topic, 3, b"retried", {"TAGS": "t"}, born_host=ipv6, store_host=ipv6)
    frame = load(spark, store.root)
    assert frame.dtypes == COLUMN_TYPES
    shown = frame.selectExpr(
        "* except (born_timestamp, store_timestamp)",
        "unix_millis(born_timestamp)",
        "unix_millis(store_timestamp)",
    )
    places = empty.physical_offset, retried.physical_offset
    assert 0 < places[0] < places[1]
    assert sorted(tuple(row) for row in shown.collect()) == [
        (long_topic, 3, 0, places[1], None, "t", b"retried", {"TAGS": "t"}, BORN_MS, STORED_MS),
        ("flights", 0, 0, 0, "k1 k2", "早上é", b"\0\xff", properties, BORN_MS, STORED_MS),
        ("flights", 0, 1, places[0], None, None, b"", {}, BORN_MS + 1, STORED_MS + 1),
    ]


@pytest.mark.parametrize("name", ["clean-5.3", "crashed-5.3", "ipv6-5.3", "clean-4.9"])
def test_a_store_written_by_rocketmq_reads_as_its_manifest_says(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, **SAFELY)
    lines = (tmp_path / "manifest.jsonl").read_text("utf-8").splitlines()
    manifest = {line["physical_offset"]: line for line in map(json.loads, lines)}
    queued = {offset for offset, line in manifest.items() if is_queued(line)}
    # the broker's own topics are read where they are named
    topics = ",".join({manifest[offset]["topic"] for offset in queued})
    rows = load(spark, tmp_path / "store", subscribe=topics).collect()
    assert {row.physical_offset for row in rows} == queued
    assert len(rows) == len(queued)
    with StoreDirectory(tmp_path / "store") as files:
        stored = {offset: files.record_at(offset).body for offset in queued}
    for row in rows:
        line = manifest[row.physical_offset]
        assert (row.topic, row.queue_id, row.queue_offset) == (
            line["topic"],
            line["queue_id"],
            line["queue_offset"],
        )
        # the manifest tells of the bytes that are stored, compressed or not
        assert hashlib.sha256(stored[row.physical_offset]).hexdigest() == line["body_sha256"]
        assert row.body == decompress(stored[row.physical_offset], line["sys_flag"])
        assert row.properties == line["properties"]
        assert (row.tags, row.keys) == (row.properties.get("TAGS"), row.properties.get("KEYS"))


def is_queued(line: dict[str, Any]) -> bool:
    """Prepared and rolled back messages are in the log only."""
    return line["sys_flag"] & 0x00C not in (0x004, 0x00C)


def test_a_plan_of_many_partitions_loses_and_repeats_nothing(
    spark: SparkSession, store: StoreBuilder
) -> None:
    written = [store.put(queue_id=i % 3, body=b"x" * (i % 300)) for i in range(1000)]
    frame = load(spark, store.root, maxRecordsPerPartition="90", columns="physical_offset,body")
    assert frame.rdd.getNumPartitions() >= 12
    found = Counter((row.physical_offset, len(row.body)) for row in frame.collect())
    assert found == Counter((record.physical_offset, len(record.body)) for record in written)


def test_a_users_schema_chooses_columns(spark: SparkSession, store: StoreBuilder) -> None:
    store.put(queue_id=2, body=b"b")
    reader = spark.read.format("penstock").schema("body binary, topic string, queue_id int")
    assert [tuple(row) for row in reader.load(store.root).collect()] == [(b"b", "flights", 2)]


@pytest.mark.parametrize("schema", ["topic string, colour string", "queue_id bigint"])
def test_a_users_schema_with_another_column_or_type_is_refused(
    spark: SparkSession, store: StoreBuilder, schema: str
) -> None:
    store.put()
    frame = spark.read.format("penstock").schema(schema).load(store.root)
    with pytest.raises(AnalysisException, match="no such column|is not of this type"):
        frame.collect()


@pytest.mark.parametrize("column", ["tags", "properties"])
def test_a_users_schema_without_nulls_is_refused_by_the_columns_name(
    spark: SparkSession, store: StoreBuilder, column: str
) -> None:
    store.put()
    pairs = MapType(StringType(), StringType(), valueContainsNull=False)
    fields = {
        "tags": StructField("tags", StringType(), nullable=False),
        "properties": StructField("properties", pairs),
    }
    frame = spark.read.format("penstock").schema(StructType([fields[column]])).load(store.root)
    with pytest.raises(AnalysisException, match=f"column {column} .* all columns are nullable"):
        frame.collect()


def test_a_queue_without_messages_gives_no_rows(spark: SparkSession, store: StoreBuilder) -> None:
    store.paths.queue("flights", 0).mkdir(parents=True)
    assert load(spark, store.root, subscribe="flights").collect() == []


def test_a_missing_topic_fails_with_the_topics_there_are(
    spark: SparkSession, store: StoreBuilder
) -> None:
    store.put()
    with pytest.raises(
        AnalysisException, match="no topic of this name.*trains.*are: flights"
    ) as no:
        load(spark, store.root, subscribe="trains").collect()
    assert str(no.value).count(".py") == 1, "nobody needs to know through which files it came"


def test_a_query_sees_what_there_was_when_it_was_planned(
    spark: SparkSession, store: StoreBuilder
) -> None:
    store.put()
    options = {"path": store.root, "subscribe": "flights"}
    reader = PenstockSource(options).reader(PenstockSource(options).schema())
    assert isinstance(reader, StoreReader)
    planned = reader.partitions()
    for _ in range(2000):  # into further segments of log and queue
        store.put(body=b"x" * 100)
    batches = [batch for partition in planned for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in batches) == 1


def test_a_frame_keeps_its_snapshot_and_the_next_load_sees_more(
    spark: SparkSession, store: StoreBuilder
) -> None:
    store.put()
    frame = load(spark, store.root, columns="body")
    assert frame.count() == 1
    for _ in range(1000):
        store.put(body=b"x" * 100)
    assert frame.count() == 1
    assert load(spark, store.root, columns="body").count() == 1001


def test_damage_fails_the_query_and_is_named(spark: SparkSession, store: StoreBuilder) -> None:
    store.put()
    damaged = store.put()
    store.write_log(damaged.physical_offset + 4, b"\x00")
    named = f"StoreDamaged.*message 1 of flights/0 .* at {damaged.physical_offset} "
    with pytest.raises(PythonException, match=named) as raised:
        load(spark, store.root).collect()
    assert "reading/rows.py" not in str(raised.value)


def test_the_format_is_usable_from_sql(spark: SparkSession, store: StoreBuilder) -> None:
    store.put(properties={"TAGS": "UA"})
    spark.sql(f"CREATE TEMPORARY VIEW m USING penstock OPTIONS (path '{store.root}')")
    assert spark.sql("SELECT tags FROM m").collect()[0].tags == "UA"
    spark.catalog.dropTempView("m")


def test_a_table_of_sparks_catalog_is_refused_with_the_view_that_can_be_made(
    spark: SparkSession, store: StoreBuilder
) -> None:
    """Spark plans a query of a table without the options that the table was made with."""
    store.put()
    using = f"USING penstock OPTIONS (path '{store.root}', subscribe 'flights')"
    view = "CREATE TEMPORARY VIEW"
    for made in (
        f"CREATE TABLE m {using}",
        f"CREATE TABLE m USING penstock LOCATION '{store.root}'",
    ):
        with pytest.raises(
            AnalysisException, match=f"does not keep the options.*{view} NAME USING"
        ):
            spark.sql(made)
    # with columns of its own it is made, and nobody asks the source
    spark.sql(f"CREATE TABLE m (body binary) {using}")
    try:
        with pytest.raises(AnalysisException, match=f"no store directory is named.*{view}"):
            spark.sql("SELECT * FROM m").collect()
    finally:
        spark.sql("DROP TABLE m")
    spark.sql(f"{view} m {using}")
    assert spark.sql("SELECT * FROM m").count() == 1
    spark.catalog.dropTempView("m")


def test_registering_where_spark_finds_the_format_by_itself_does_nothing(
    spark: SparkSession, store: StoreBuilder
) -> None:
    register(spark)  # a second registration would warn, and a warning fails the test
    store.put()
    assert load(spark, store.root, columns="topic").count() == 1
    assert parse_options({"path": store.root}).columns == ""


@pytest.mark.parametrize("push", ["true", "false"])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, store: StoreBuilder, push: str
) -> None:
    for number in range(20):
        tagged = {"TAGS": "ab"[number % 2], "KEYS": f"k{number}"}
        store.put(queue_id=number % 4, properties=tagged)
    store.put("orders")

    def where(condition: str) -> DataFrame:
        return load(spark, store.root, pushFilters=push).where(condition)

    chosen = where(
        "topic = 'flights' and queue_id in (1, 3) and tags = 'b' and queue_offset > 1"
        f" and store_timestamp <= timestamp_millis({STORED_MS + 3}) and length(body) = 4"
    )
    text = explained(chosen)
    assert ("PushedFilters: [" in text and "tags" in text) == (push == "true"), text
    found = sorted((row.queue_id, row.queue_offset) for row in chosen.collect())
    assert found == [(1, 2), (1, 3), (3, 2), (3, 3)]
    assert where("tags is null").count() == 1
    assert where("keys = 'k7' or tags = 'c'").count() == 1


def test_a_frame_has_all_its_rows_after_a_filtered_query(
    spark: SparkSession, store: StoreBuilder
) -> None:
    store.put(properties={"TAGS": "a"})
    store.put()
    frame = load(spark, store.root)
    assert (frame.where("tags is null").count(), frame.count()) == (1, 2)


def explained(frame: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain("formatted")
    return shown.getvalue()


def test_damaged_records_become_rows_in_permissive_mode(
    spark: SparkSession, store: StoreBuilder
) -> None:
    store.put(properties={"a": "b"})
    damaged = store.put()
    store.write_log(damaged.physical_offset + 4, b"\x00")
    frame = load(spark, store.root, mode="permissive")
    assert frame.dtypes == [*COLUMN_TYPES, ("_corrupt_record", "string")]
    sound, broken = sorted(frame.collect(), key=lambda row: row.queue_offset)
    assert (sound.body, sound.properties, sound._corrupt_record) == (b"body", {"a": "b"}, None)
    assert (broken.topic, broken.queue_offset, broken.body, broken.properties) == (
        "flights",
        1,
        None,
        None,
    )
    assert f"at {damaged.physical_offset}" in broken._corrupt_record
    assert load(spark, store.root, mode="dropMalformed", columns="topic").count() == 1


def test_a_store_without_queues_is_read_from_its_log(
    spark: SparkSession, store: StoreBuilder
) -> None:
    for number in range(500):
        store.put(queue_id=number % 2, body=b"%d" % number)
    rows = sorted(load(spark, store.root).collect())
    shutil.rmtree(store.paths.consume_queue)
    again = load(spark, store.root, splitBytes="20000")
    assert again.rdd.getNumPartitions() > 1
    assert sorted(again.collect()) == rows
