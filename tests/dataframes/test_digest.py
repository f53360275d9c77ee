"""The checksum of an export: of each queue's bodies, whatever lies between them."""

from __future__ import annotations

from hashlib import sha256

import pyarrow as pa

from penstock.dataframes.digest import Digest
from penstock.dataframes.reading import SCHEMA

Row = tuple[str | None, int | None, bytes | None]
_FIELDS = [SCHEMA.field(name) for name in ("topic", "queue_id", "body")]


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    arrays = [pa.array(values, each.type) for values, each in zip(columns, _FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_FIELDS))


def _digest(*parts: list[Row], columns: tuple[str, ...] = ("topic", "queue_id", "body")) -> str:
    made = Digest()
    for part in parts:
        # a slice, as a column may be one
        made.add(_batch([("before", 9, b"before"), *part])[1:].select(list(columns)))
    return made.hexdigest()


def _of_one(bodies: list[bytes]) -> bytes:
    lengths = b"".join(len(body).to_bytes(8, "big") for body in bodies)
    return sha256(lengths).digest() + sha256(b"".join(bodies)).digest()


BODIES = [b"", b"a", b"", b"bcd", b"e" * 1000]


def test_it_is_of_the_bodies_of_each_queue_and_not_of_the_batches() -> None:
    rows: list[Row] = [("t", 0, body) for body in BODIES]
    assert _digest(rows) == sha256(_of_one(BODIES)).hexdigest()
    assert _digest(rows[:2], [], rows[2:]) == _digest(rows)
    joined: Row = ("t", 0, b"".join(BODIES))
    assert len({_digest(rows), _digest(rows[1:]), _digest(rows[::-1]), _digest([joined])}) == 4


def test_the_order_of_queues_makes_no_difference_and_that_in_a_queue_does() -> None:
    queues = [("a", 0), ("a", 2), ("a", 10), ("b", 0)]
    rows: list[Row] = [
        (*queue, b"%d of %d" % (n, i)) for n in range(3) for i, queue in enumerate(queues)
    ]
    bodies = [[b"%d of %d" % (n, i) for n in range(3)] for i in range(len(queues))]
    by_queue = sorted(rows, key=lambda row: row[:2])
    expected = sha256(b"".join(map(_of_one, bodies))).hexdigest()
    assert (
        _digest(rows)
        == _digest(by_queue)
        == _digest(by_queue[::3], by_queue[1::3], by_queue[2::3])
        == expected
    )
    assert _digest([rows[4], *rows[:4], *rows[5:]]) != expected


def test_columns_that_a_file_lacks_count_as_one_queue() -> None:
    rows: list[Row] = [("t", n % 2, body) for n, body in enumerate(BODIES)]
    nulls: list[Row] = [(None, None, body or None) for body in BODIES]
    expected = sha256(_of_one(BODIES)).hexdigest()
    assert _digest(rows, columns=("body",)) == _digest(nulls) == expected
    assert _digest(rows, columns=("topic", "body")) == expected
    mixed: list[Row] = [("t", 1, b"x"), (None, None, b"y"), ("t", None, b"z"), ("", 0, b"v")]
    in_order = [[b"y"], [b"v"], [b"z"], [b"x"]]
    assert _digest(mixed) == sha256(b"".join(map(_of_one, in_order))).hexdigest()
