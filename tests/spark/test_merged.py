"""Several queues read together: in the order of the log, each in its own, and nothing twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.store.directory import StoreDirectory
from penstock.spark import merged, scan
from penstock.spark.merged import read_merged
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Mode
from penstock.spark.reading.rows import CORRUPT, How

from .conftest import StoreBuilder

COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "tags", "body")


def read(
    store: StoreBuilder,
    pieces: Sequence[QueueRange],
    columns: Sequence[str] = COLUMNS,
    how: How | None = None,
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with StoreDirectory(store.root) as directory:
        for arrays in read_merged(directory, pieces, columns, how or How()):
            rows += zip(*(array.to_pylist() for array in arrays), strict=True)
    return rows


def test_rows_come_in_the_order_of_the_log_whatever_is_read_ahead(
    store: StoreBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, expected = random.Random(3), []
    queues = [("rare", 0), *[(topic, queue) for topic in ("a", "bureau") for queue in range(3)]]
    for number in range(2000):
        topic, queue_id = dice.choices(queues, [0.05, 9, 1, 1, 1, 1, 1])[0]
        tag = dice.choice(["", "x", "y"])
        record = store.put(
            topic, queue_id, dice.randbytes(dice.randrange(60)), {"TAGS": tag} if tag else {}
        )
        if number % 7 == 0:
            store.put_entry(topic, queue_id, 0, BLANK_SIZE)
        where = topic, queue_id, record.queue_offset, record.physical_offset
        expected.append((*where, tag or None, record.body))
    pieces = [QueueRange(*queue, 0, store.next_offset[queue]) for queue in queues]
    assert read(store, pieces) == expected
    for name, value in (("ENTRIES_AHEAD", 21), ("FEWEST_ENTRIES", 2), ("BATCH_BYTES", 2500)):
        monkeypatch.setattr(merged, name, value)
    for name, value in (("ENTRIES_AT_ONCE", 37), ("EXPECTED_BYTES", 300)):
        monkeypatch.setattr(scan, name, value)
    assert read(store, pieces) == expected
    names = COLUMNS[:4]
    assert read(store, pieces, names) == [row[:4] for row in expected], "of entries alone"
    tagged = [row for row in expected if row[4] == "x"]
    assert read(store, pieces, how=How(tags="x")) == tagged
    some = [piece._replace(start=5, stop=min(piece.stop, 90)) for piece in pieces[1:]]
    assert read(store, some) == [row for row in expected if row[0] != "rare" and 5 <= row[2] < 90]
    assert read(store, []) == read(store, [pieces[0]._replace(stop=0)]) == []


def test_damage_is_named_or_reported_and_costs_no_other_row(store: StoreBuilder) -> None:
    records = [store.put(f"t{number % 2}", number % 3, b"body%d" % number) for number in range(30)]
    bad = records[17]
    store.put_entry("t0", 0, 1 << 40, 200)
    store.write_log(bad.physical_offset + 88, b"?")
    pieces = [QueueRange(*queue, 0, stop) for queue, stop in store.next_offset.items()]
    place = f"{bad.topic}/{bad.queue_id}"
    with pytest.raises(StoreDamaged, match=f"message {bad.queue_offset} of {place}.*body CRC"):
        read(store, [piece for piece in pieces if piece[:2] != ("t0", 0)])
    with pytest.raises(StoreDamaged, match="outside the log.*consumequeue/t0/0/0{20}, byte 100"):
        read(store, pieces)
    sound = [record.body for record in records if record is not bad]
    lenient = How(mode=Mode.DROPMALFORMED)
    assert sorted(row[0] for row in read(store, pieces, ["body"], lenient)) == sorted(sound)
    names = ("topic", "queue_id", "queue_offset", CORRUPT)
    told = [row for row in read(store, pieces, names, How(mode=Mode.PERMISSIVE)) if row[3]]
    assert sorted(row[:3] for row in told) == sorted(
        [(bad.topic, bad.queue_id, bad.queue_offset), ("t0", 0, 5)]
    )


def test_what_expired_after_planning_is_no_damage_and_can_be_passed_over(
    store: StoreBuilder,
) -> None:
    for number in range(900):
        store.put(queue_id=number % 2, body=b"x" * 100)
    pieces = [QueueRange("flights", queue_id, 0, 450) for queue_id in range(2)]
    whole = read(store, pieces)
    gone = sorted(store.paths.commit_log.iterdir())[0]
    with StoreDirectory(store.root) as directory:
        gone.unlink()
        with pytest.raises(OffsetOutOfRange, match="expired meanwhile"):
            list(read_merged(directory, pieces, COLUMNS, How()))
    left = [row for row in whole if row[3] >= store.segment_bytes]
    assert 0 < len(left) < 900
    assert read(store, pieces, how=How(fail_on_data_loss=False)) == left
