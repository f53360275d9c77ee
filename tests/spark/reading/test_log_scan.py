"""Messages by a walk through the log: the same rows as by the queues, however it is cut."""

from __future__ import annotations

import random
import shutil
from typing import Any

import pytest

from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.reading.log_scan import LogRange, read_log
from penstock.spark.reading.options import Mode, parse_options
from penstock.spark.reading.rows import CORRUPT, How
from penstock.spark.reading.task import plan_query
from penstock.spark.scan import read_range
from penstock.spark.source import COLUMNS
from tests.spark.conftest import STORED_MS, StoreBuilder

ALL = tuple(COLUMNS)
PLAIN = How()


def read(
    store: StoreBuilder, how: How = PLAIN, columns: tuple[str, ...] = ALL, **options: str
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with StoreDirectory(store.root) as directory:
        planned = plan_query(parse_options({"path": store.root, **options}), [], ["body"])
        for piece in (piece for pieces in planned for piece in pieces):
            found = (
                read_log(directory, piece, columns, how)
                if isinstance(piece, LogRange)
                else read_range(directory, piece, columns, how)
            )
            for arrays in found:
                rows += zip(*(array.to_pylist() for array in arrays), strict=True)
    return sorted(rows, key=repr)


@pytest.fixture
def filled(store: StoreBuilder) -> StoreBuilder:
    shapes = random.Random(3)
    for number in range(1200):
        store.put(
            shapes.choice(["flights", "orders"]),
            shapes.randrange(3),
            shapes.randbytes(shapes.choice([0, 10, 1000])),
            {"TAGS": shapes.choice("ab"), "KEYS": f"k{number}"},
        )
    return store


def without_queues(store: StoreBuilder) -> None:
    shutil.rmtree(store.paths.consume_queue)


@pytest.mark.parametrize("split_bytes", ["0", "1000", "70000"])
def test_the_log_alone_gives_the_rows_that_the_queues_give(
    filled: StoreBuilder, split_bytes: str
) -> None:
    expected = read(filled)
    assert len(expected) == 1200
    filled.put("rmq_sys_penstock_staging")  # the broker's own: only where it is named
    without_queues(filled)
    assert read(filled, splitBytes=split_bytes) == expected


def test_options_choose_the_same_messages_as_with_queues(filled: StoreBuilder) -> None:
    chosen: list[dict[str, str]] = [
        {"subscribe": "orders"},
        {"subscribePattern": "f.*"},
        {"assign": '{"orders": [1]}'},
        {"startingOffsets": '{"orders": {"0": 50, "1": -1}}'},
        {"endingOffsets": '{"flights": {"2": 50, "1": -2}}'},
        {"startingTimestamp": str(STORED_MS + 100), "endingTimestamp": str(STORED_MS + 150)},
    ]
    expected = [read(filled, **options) for options in chosen]
    assert all(0 < len(rows) < 1200 for rows in expected)
    without_queues(filled)
    assert [read(filled, **options) for options in chosen] == expected


def test_an_assignment_of_no_queue_reads_none(filled: StoreBuilder) -> None:
    without_queues(filled)
    assert read(filled, assign='{"orders": []}') == read(filled, assign="{}") == []


def test_a_time_counts_before_an_offset_as_with_queues(filled: StoreBuilder) -> None:
    late, early = str(STORED_MS + 100), str(STORED_MS + 150)
    others = ("latest", '{"orders": {"0": 1}}', "group:app")
    times = [{"startingTimestamp": late, "startingOffsets": each} for each in others]
    times += [{"endingTimestamp": early, "endingOffsets": each} for each in ("earliest", *others)]
    expected = [read(filled, subscribe="orders", **options) for options in times]
    assert all(0 < len(rows) < 1200 for rows in expected)
    without_queues(filled)
    assert [read(filled, subscribe="orders", **options) for options in times] == expected


def test_prepared_and_rolled_back_messages_are_in_no_queue(store: StoreBuilder) -> None:
    for sys_flag in (0, 0x4, 0x8, 0xC):
        store.put(sys_flag=sys_flag)
    without_queues(store)
    assert read(store, columns=("queue_offset",)) == [(0,), (2,)]


def test_damage_is_an_error_or_what_the_mode_says(store: StoreBuilder) -> None:
    records = [store.put(body=b"%d" % number) for number in range(5)]
    store.write_log(records[2].physical_offset + 88, b"?")
    without_queues(store)
    place = records[2].physical_offset
    with pytest.raises(StoreDamaged, match=f"at {place} .*store verify"):
        read(store)
    dropped = read(store, How(mode=Mode.DROPMALFORMED), ("queue_offset",))
    assert dropped == [(0,), (1,), (3,), (4,)]
    rows = read(store, How(mode=Mode.PERMISSIVE), ("queue_offset", "physical_offset", CORRUPT))
    ((queue_offset, position, reason),) = [row for row in rows if row[2] is not None]
    assert (queue_offset, position) == (None, place) and "CRC" in reason
    assert len(rows) == 5


def test_half_a_record_at_the_end_is_damage_only_where_no_broker_died(store: StoreBuilder) -> None:
    whole = store.put()
    store.write_log(store.position, b"\0\0\0\x6a\xda\xa3\x20\xa7half")
    without_queues(store)
    with pytest.raises(StoreDamaged):
        read(store)
    store.paths.abort.touch()
    assert read(store, columns=("physical_offset",)) == [(whole.physical_offset,)]


def test_what_only_queues_can_say_is_refused_with_how_to_make_them(store: StoreBuilder) -> None:
    store.put()
    without_queues(store)
    with pytest.raises(ConfigError, match=r"needs consume queues.*penstock store rebuild"):
        read(store, startingOffsets="group:app")
