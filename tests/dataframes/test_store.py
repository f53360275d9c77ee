"""Topics as Arrow, and as files and back: the rows, the order, the checksum."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.client import MessageQuery
from penstock.client.arrow.columns import SCHEMA
from penstock.dataframes import Store, export
from penstock.dataframes.export import FORMS, write_file
from penstock.dataframes.importing import import_file
from penstock.dataframes.store import batches
from penstock.embedded import Broker
from penstock.errors import ConfigError, InvalidArgument, StoreDamaged, TopicNotFound
from penstock.shared.formats.properties import SHARDING_KEY
from penstock.testing import SMALL_FILES

ROWS = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a topic of three queues, and another."""
    place = tmp_path_factory.mktemp("frames")
    with Broker(place / "store", settings=SMALL_FILES, log=place / "log") as running:
        producer = running.producer()
        producer.create_topic("orders", 3)
        sent = [
            producer.send(
                "orders",
                b"\xff%d" % number if number % 2 else b'{"n": %d}' % number,
                queue=number % 3,
                tags="odd" if number % 2 else None,
                keys=[f"k{number}", "all"],
                properties={"n": str(number)},
            )
            for number in range(ROWS)
        ]
        sent.append(producer.send("bills", b"", queue=0))
        for each in sent:
            each.result(60)
        # a question finds what was acknowledged before it, so the queues are up to date after it
        with MessageQuery(store=running.store) as query:
            assert len(query.by_key("orders", "k2999")) == 1
        yield running


def _content(broker: Broker, topic: str) -> list[tuple[Any, ...]]:
    """What an independent reader sees: by queue and offset."""
    found = [
        (m.queue_id, m.queue_offset, bytes(m.body), m.tags, m.keys, m.properties.get("n"))
        for m in broker.consumer(topic, follow=False)
    ]
    return sorted(found, key=lambda row: row[:2])


@pytest.mark.parametrize("by_endpoint", [False, True])
def test_a_table_has_the_rows_that_a_consumer_reads(broker: Broker, by_endpoint: bool) -> None:
    table = Store(broker.endpoints["consume"] if by_endpoint else broker.store).to_arrow("orders")
    assert table.schema == SCHEMA
    rows = [
        (
            *(row["queue_id"], row["queue_offset"], row["body"], row["tags"]),
            *(row["keys"], dict(row["properties"])["n"]),
        )
        for row in table.to_pylist()
    ]
    expected = [
        (q, o, body, tags, keys if isinstance(keys, str) else " ".join(keys), n)
        for q, o, body, tags, keys, n in _content(broker, "orders")
    ]
    assert rows == expected


def test_columns_ranges_and_filters_are_those_of_the_source(broker: Broker) -> None:
    store = Store(broker.store)
    assert store.to_arrow("bills", columns=["body", "topic"]).to_pylist() == [
        {"body": b"", "topic": "bills"}
    ]
    tail = store.to_arrow("orders", columns=["queue_offset"], start='{"orders": {"0": 990}}')
    assert sum(tail["queue_offset"].to_pylist()) == sum(range(990, 1000)) + 2 * sum(range(1000))
    assert len(store.to_arrow("orders", tags="odd")) == ROWS // 2
    assert len(store.to_arrow(start="2000-01-01T00:00")) == ROWS + 1
    assert store.reader("orders", columns=["body"]).read_all().num_rows == ROWS
    with pytest.raises(TopicNotFound, match="ordres"):
        store.to_arrow("ordres")
    with pytest.raises(ConfigError, match="no such column: bodi.*body"):
        store.to_arrow("orders", columns=["bodi"])
    with pytest.raises(ConfigError, match="a column is named twice: body"):
        store.to_arrow("orders", columns=["body", "topic", "body"])
    with pytest.raises(ConfigError, match="^.*] start is no time: yesterday"):
        store.to_arrow("orders", start="yesterday")
    with pytest.raises(InvalidArgument, match="topic's name is empty"):
        store.to_arrow("")  # and not all topics
    unknown: Any = None
    for unknown in (None, ["orders"], 5):
        with pytest.raises(InvalidArgument, match="topic is not a str"):
            store.to_arrow(unknown)
    for unknown, said in (
        ([], "no column is named"),
        ("body", "columns is not a list of names"),
        ([5], "a name of columns is not a str: int 5"),
    ):
        with pytest.raises(ConfigError, match=said):
            store.to_arrow("orders", columns=unknown)
    unknown = iter(["body"])
    assert store.to_arrow("orders", columns=unknown).num_rows == ROWS
    with pytest.raises(ConfigError, match="^.*] end is no time: soon"):
        store.to_arrow("orders", end="soon")


def _penstock(*arguments: object) -> dict[str, object]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments), "-o", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def test_a_sharding_key_is_kept_and_leads_where_it_led(broker: Broker, tmp_path: Path) -> None:
    with broker.producer() as producer:
        producer.create_topic("shards", 4)
        for number in range(20):
            producer.send("shards", b"%d" % number, shard=f"c{number % 5}").result(60)
    _penstock("store", "export", broker.store, "shards", "--out", tmp_path / "f.jsonl")
    _penstock("store", "import", tmp_path / "f.jsonl", "--topic", "more", "--store", broker.store)
    assert _content(broker, "more") == _content(broker, "shards")
    found = [m.properties[SHARDING_KEY] for m in broker.consumer("more", follow=False)]
    assert sorted(found) == sorted(f"c{number % 5}" for number in range(20))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_exported_and_imported_again_is_the_same(
    broker: Broker, tmp_path: Path, form: str
) -> None:
    file = tmp_path / f"orders.{form}"
    written = _penstock("store", "export", broker.store, "orders", "--out", file)
    assert (written["rows"], written["file_bytes"]) == (ROWS, file.stat().st_size)
    sent = _penstock("store", "import", file, "--topic", f"again-{form}", "--store", broker.store)
    assert (sent["rows"], sent["body_sha256"]) == (ROWS, written["body_sha256"])
    assert _content(broker, f"again-{form}") == _content(broker, "orders")


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ('{"topic": "halves", "body_base64": "!!!"}', "row 5001"),
        ('{"body": "x"}', "a row has no topic"),
        ("not JSON", "row 5001"),
    ],
)
def test_nothing_is_sent_of_a_file_with_a_row_that_cannot_be(
    broker: Broker, tmp_path: Path, last: str, told: str
) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text('{"topic": "halves", "body": "x"}\n' * 5000 + last + "\n")
    with broker.producer() as producer:
        with pytest.raises(ConfigError, match=told):
            import_file(file, "jsonl", producer)
        assert "halves" not in producer.topics()


def test_an_import_tells_how_far_it_is_and_of_how_many(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text('{"topic": "told", "body": "x"}\n' * 5000)
    told: list[tuple[int, int]] = []
    with broker.producer() as producer:
        import_file(file, "jsonl", producer, progress=lambda rows, of: told.append((rows, of)))
    assert told == [(4096, 5000), (5000, 5000)]


def test_an_export_has_the_order_of_the_log_and_its_checksum_not(
    broker: Broker, tmp_path: Path
) -> None:
    """Of all topics; in another store their queues lie between each other in another way."""
    first, again = tmp_path / "first.parquet", tmp_path / "again.parquet"
    topics = ("orders", "bills")
    written = _penstock("store", "export", broker.store, *topics, "--out", first)
    places = pyarrow.parquet.read_table(first)["physical_offset"].to_pylist()
    assert len(places) == ROWS + 1 and places == sorted(places)
    assert list(tmp_path.iterdir()) == [first]

    shuffled = pyarrow.parquet.read_table(first).sort_by(
        [("topic", "descending"), ("queue_id", "descending"), ("queue_offset", "ascending")]
    )
    pyarrow.parquet.write_table(shuffled, tmp_path / "shuffled.parquet")
    with Broker(tmp_path / "store", settings=SMALL_FILES, log=tmp_path / "log") as other:
        sent = _penstock("store", "import", tmp_path / "shuffled.parquet", "--store", other.store)
        stored = _penstock("store", "export", other.store, *topics, "--out", again)
    assert len({each["body_sha256"] for each in (written, sent, stored)}) == 1
    assert {each["rows"] for each in (written, sent, stored)} == {ROWS + 1}


def test_rows_share_a_row_group_until_it_is_large(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Store(broker.store).to_arrow("orders").to_batches(max_chunksize=100)
    groups = []
    for group_bytes in (export.ROW_GROUP_BYTES, 4 * rows[0].nbytes):
        monkeypatch.setattr(export, "ROW_GROUP_BYTES", group_bytes)
        file = tmp_path / f"{group_bytes}.parquet"
        assert write_file(file, "parquet", SCHEMA, iter(rows)).rows == ROWS
        assert pyarrow.parquet.read_table(file) == pa.Table.from_batches(rows)
        groups.append(pyarrow.parquet.ParquetFile(file).num_row_groups)
    assert groups[0] == 1 and 4 < groups[1] <= len(rows) // 4 + 1


def test_an_export_that_fails_leaves_no_file(broker: Broker, tmp_path: Path) -> None:
    selection = Store(broker.store).select("orders")

    def fails() -> Iterator[pa.RecordBatch]:
        yield next(batches(selection))
        raise StoreDamaged("a record is damaged")

    with pytest.raises(StoreDamaged):
        write_file(tmp_path / "orders.parquet", "parquet", SCHEMA, fails())
    assert list(tmp_path.iterdir()) == []

    def interrupted(rows: int) -> None:
        raise KeyboardInterrupt

    rows = iter(Store(broker.store).to_arrow("orders").to_batches(max_chunksize=10))
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "orders.arrow", "arrow", SCHEMA, rows, interrupted)
    with pytest.raises(ConfigError, match=r"no such directory: .*nowhere\. Make it: mkdir -p"):
        write_file(tmp_path / "nowhere" / "orders.arrow", "arrow", SCHEMA, rows)
    assert list(tmp_path.iterdir()) == []
    assert [each for each in threading.enumerate() if each.name == "export"] == []
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"a file of this name.*there\.csv"):
        write_file(tmp_path / "there.csv", "csv", SCHEMA, batches(selection))
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_frames_are_read_without_spark(broker: Broker) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from penstock.dataframes import Store\n"
        "print(Store(sys.argv[1]).to_arrow('bills').num_rows)"
    )
    command = [sys.executable, "-c", code, str(broker.store)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ran.stdout == "1\n", ran.stderr
