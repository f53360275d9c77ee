"""pandas, Polars and DuckDB take what a store gives, and share the memory of numbers with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from penstock.dataframes import Store
from penstock.embedded import Broker
from penstock.testing import SMALL_FILES

ROWS = 500
COLUMNS = ["queue_offset", "body"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    place = tmp_path_factory.mktemp("frames")
    with Broker(place / "store", settings=SMALL_FILES, log=place / "log") as broker:
        producer = broker.producer()
        producer.create_topic("orders", 1)
        producer.send_batch("orders", [b"%d" % number for number in range(ROWS)]).result(60)
        consumer = broker.consumer("orders", follow=False)
        assert sum(1 for _ in consumer) == ROWS  # by then they are in their queue
        yield Store(place / "store")


@pytest.fixture
def table(store: Store) -> pa.Table:
    found = store.to_arrow("orders", columns=COLUMNS, start=1700000000000)
    assert found.num_rows == ROWS and found.column("queue_offset").num_chunks == 1
    return found


def _address(table: pa.Table) -> int:
    (numbers,) = table.column("queue_offset").chunks
    return int(numbers.buffers()[1].address)


def test_pandas_has_numbers_where_arrow_has_them(table: pa.Table) -> None:
    frame = table.to_pandas(split_blocks=True)
    assert _address(table) == frame["queue_offset"].to_numpy().ctypes.data
    assert frame["queue_offset"].tolist() == list(range(ROWS))
    assert frame["body"].iloc[-1] == b"%d" % (ROWS - 1)


def test_polars_has_numbers_where_arrow_has_them(table: pa.Table, store: Store) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table)
    numbers = frame["queue_offset"].to_numpy(allow_copy=False)
    assert np.asarray(numbers).ctypes.data == _address(table)
    assert frame["body"].to_list() == [b"%d" % number for number in range(ROWS)]
    assert polars.from_arrow(store.reader("orders", columns=COLUMNS)).equals(frame)


def test_duckdb_queries_a_table_and_what_is_larger_than_memory(
    table: pa.Table, store: Store
) -> None:
    duckdb = pytest.importorskip("duckdb")
    wanted = (ROWS, ROWS * (ROWS - 1) // 2, ROWS * (ROWS - 1) // 2)
    query = "count(*), sum(queue_offset), sum(decode(body)::int)"
    for rows in (table, store.reader("orders", columns=COLUMNS)):
        assert duckdb.from_arrow(rows).aggregate(query).fetchall() == [wanted]
