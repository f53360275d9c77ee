"""Records read by range, without Spark: bytes exact, damage named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged, UnreadableBody
from penstock.shared.formats.compression import compress
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_layout import MAGIC_V2
from penstock.shared.store.directory import StoreDirectory
from penstock.spark import scan
from penstock.spark.merged import read_merged
from penstock.spark.plan import plan
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import parse_options
from penstock.spark.reading.rows import How
from penstock.spark.reading.views import StoreView
from penstock.spark.source import COLUMNS

from .conftest import BORN_MS, STORED_MS, StoreBuilder

Read = Callable[..., list[dict[str, Any]]]


def _one_by_one(
    store: StoreDirectory, pieces: Sequence[QueueRange], columns: Sequence[str]
) -> Iterator[list[pa.Array]]:
    for piece in pieces:
        yield from scan.read_range(store, piece, columns)


def _together(
    store: StoreDirectory, pieces: Sequence[QueueRange], columns: Sequence[str]
) -> Iterator[list[pa.Array]]:
    return read_merged(store, pieces, columns, How())


@pytest.fixture(params=[_one_by_one, _together])
def read(request: pytest.FixtureRequest) -> Read:
    """All rows of all queues: of one after the other, and of all together."""

    def read_all(store: StoreBuilder, *columns: str) -> list[dict[str, Any]]:
        names = columns or tuple(COLUMNS)
        rows = []
        with StoreView(store.root) as view:
            for pieces in plan(view, parse_options({"path": store.root})):
                for arrays in request.param(view.store, pieces, names):
                    lists = [array.to_pylist() for array in arrays]
                    rows += [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
        return rows

    return read_all


def row_of(record: Record) -> dict[str, Any]:
    """The row that a stored record must become."""
    properties = decode_properties(record.properties)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": record.body,
        "born_timestamp": moment(record.born_timestamp_ms),
        "store_timestamp": moment(record.store_timestamp_ms),
        "properties": list(properties.items()),
    }


def moment(time_ms: int) -> datetime:
    whole, rest = divmod(time_ms, 1000)
    return datetime.fromtimestamp(whole, UTC).replace(microsecond=rest * 1000)


def test_records_of_all_shapes_come_back_as_they_were_stored(
    store: StoreBuilder, read: Read
) -> None:
    shapes = random.Random(7)
    hosts = [pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 1)]
    topics = ["flights", "%RETRY%" + "g" * 200, "%DLQ%" + "h" * 121]
    written = []
    for _ in range(1500):
        tagged = {"TAGS": "早上é"} if shapes.random() < 0.7 else {}
        keyed = {"KEYS": "one two"} if shapes.random() < 0.7 else {}
        written.append(
            store.put(
                shapes.choice(topics),
                shapes.randrange(3),
                shapes.randbytes(shapes.choice([0, 1, 30, 900])),
                tagged | keyed | ({"größe": "42"} if shapes.random() < 0.5 else {}),
                born_host=shapes.choice(hosts),
                store_host=shapes.choice(hosts),
            )
        )
    assert len(list(store.paths.commit_log.iterdir())) > 5
    assert decode_record(encode_record(store.put(topics[1]))).magic == MAGIC_V2
    rows = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in read(store)}
    assert len(rows) == 1501
    for record in written:
        assert rows[record.topic, record.queue_id, record.queue_offset] == row_of(record)


def test_batches_and_chunks_of_entries_leave_no_seam(
    store: StoreBuilder, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [store.put(queue_id=i % 3, body=b"x" * (i % 400)) for i in range(700)]
    whole = read(store)
    assert sorted(row["physical_offset"] for row in whole) == [r.physical_offset for r in written]
    for name, value in (("BATCH_BYTES", 2500), ("ENTRIES_AT_ONCE", 37), ("WIDEST_GAP_BYTES", 300)):
        monkeypatch.setattr(scan, name, value)
        assert read(store) == whole


def test_blank_entries_are_skipped(store: StoreBuilder, read: Read) -> None:
    store.put("other", body=b"before" * 9)
    for _ in range(5):
        store.put_entry("flights", 0, 0, BLANK_SIZE)
    kept = [store.put(), store.put()]
    rows = [row for row in read(store) if row["topic"] == "flights"]
    assert rows == [row_of(record) for record in kept]
    columns = read(store, "topic", "queue_offset")
    assert [row["queue_offset"] for row in columns if row["topic"] == "flights"] == [5, 6]


def test_columns_of_the_consume_queue_need_no_log(store: StoreBuilder, read: Read) -> None:
    store.put()
    next(store.paths.commit_log.iterdir()).write_bytes(bytes(store.segment_bytes))
    row = {"queue_id": 0, "physical_offset": 0, "topic": "flights"}
    assert read(store, "queue_id", "physical_offset", "topic") == [row]


def test_a_damaged_body_matters_only_to_those_who_read_it(store: StoreBuilder, read: Read) -> None:
    store.put(properties={"TAGS": "t"})
    store.write_log(88, b"?")
    assert read(store, "tags") == [{"tags": "t"}]
    with pytest.raises(StoreDamaged, match="body CRC differs"):
        read(store, "body")


def test_a_time_that_spark_cannot_show_is_null(store: StoreBuilder, read: Read) -> None:
    store.put(born_timestamp_ms=2**63 - 1)
    store.put(born_timestamp_ms=-(2**63))
    store.put()
    born = [row["born_timestamp"] for row in read(store, "born_timestamp")]
    assert born == [None, None, moment(BORN_MS + 2)]
    assert [row["store_timestamp"] for row in read(store)][0] == moment(STORED_MS)


@pytest.mark.parametrize(
    ("at", "raw", "reason"),
    [
        (0, b"\x7f", "record of"),
        (4, b"\x00", "magic 00a320a7"),
        (20, b"\x01", "another queue or queue offset"),
        (15, b"\x01", "another queue or queue offset"),
        (28, b"\x01", "names 72057594"),
        (84, b"\x7f", "body of"),
        (84, b"\xff", "body of"),
        (88, b"?", "body CRC differs"),
        (92, b"\x09", "topic runs past|do not add up"),
        (93, b"g", "another queue or queue offset"),
        (100, b"\x7f", "do not add up"),
    ],
)
def test_a_damaged_record_is_named(
    store: StoreBuilder, read: Read, at: int, raw: bytes, reason: str
) -> None:
    for _ in range(3):
        damaged = store.put(properties={"a": "b"})
    store.put("other")
    store.write_log(damaged.physical_offset + at, raw)
    place = f"at {damaged.physical_offset} .*{'0' * 20}, byte {damaged.physical_offset}; entry: "
    with pytest.raises(StoreDamaged, match=f"message 2 of flights/0.*({reason}).*{place}"):
        read(store)


@pytest.mark.parametrize(
    ("position", "size", "reason"),
    [
        (0, 12, "less than 91 bytes"),
        (0, 90, "less than 91 bytes"),
        (50, 98, "is not where its entry says"),
        (0, 97, "97 are left"),
        (0, 150, "106 bytes where its entry says 150"),
        (1 << 40, 98, "outside the log.s segments"),
        (65536 - 50, 98, "outside the log.s segments"),
        (0, 0x7FFFFFF0, "outside the log.s segments"),
    ],
)
def test_a_damaged_entry_is_named(
    store: StoreBuilder, read: Read, position: int, size: int, reason: str
) -> None:
    store.put(body=b"body" * 2)
    store.put_entry("flights", 0, position, size)
    store.put()
    with pytest.raises(StoreDamaged, match=f"{reason}.*consumequeue/flights/0/0{{20}}, byte 20"):
        read(store)


def test_a_message_that_expired_after_planning_is_no_damage(store: StoreBuilder) -> None:
    for _ in range(900):
        store.put(body=b"x" * 100)
    piece = QueueRange("flights", 0, 0, 900)
    sorted(store.paths.commit_log.iterdir())[0].unlink()
    with (
        StoreDirectory(store.root) as directory,
        pytest.raises(OffsetOutOfRange, match="expired meanwhile"),
    ):
        list(scan.read_range(directory, piece, ["body"]))


def test_compressed_bodies_are_decompressed_and_one_that_cannot_be_is_named(
    store: StoreBuilder,
    read: Read,
) -> None:
    text = b"all work and no play " * 200
    store.put(body=b"plain")
    for name in ("zlib", "lz4", "zstd"):
        stored, bits = compress(name, text)
        store.put(body=stored, sys_flag=bits)
    bodies = [row["body"] for row in read(store, "body")]
    assert bodies == [b"plain", text, text, text]
    store.put(body=b"no zstd", sys_flag=0x201)
    with pytest.raises(UnreadableBody, match="flights/0@4"):
        read(store, "body")
    assert len(read(store, "queue_offset", "tags")) == 5, "who does not read it does not care"
