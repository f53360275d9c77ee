"""Files that an import reads: each form, each type that may be meant, each error with its row."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.dataframes.reading import SCHEMA, read_file
from penstock.errors import ConfigError


def _rows(path: Path) -> list[dict[str, Any]]:
    batches = list(read_file(path, path.suffix[1:]))
    assert all(batch.schema == SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("f.jsonl", '{"body": "x"}\n\n5\n', "row 3: Expected `object`, got `int`"),
        ("f.jsonl", '{"topic": "a"}\n', "row 1: it has neither body nor body_base64"),
        ("f.jsonl", '{"body_base64": "!!!"}\n', "row 1: Only base64 data"),
        ("f.jsonl", '{"body_base64": 5}\n', "row 1: Expected `str | null`, got `int`"),
        ("f.jsonl", '{"body": {"id": 1}}\n', "row 1: Expected `str | null`, got `object`"),
        ("f.jsonl", '{"body": "x", "topic": 5}\n', "row 1: Expected `str | null`"),
        ("f.jsonl", '{"body": "x", "queue_id": "x"}\n', "row 1: Expected `int | null`"),
        ("f.jsonl", '{"body": "x", "queue_id": -3}\n', "row 1: Expected `int` >= 0"),
        ("f.jsonl", '{"body": "x", "queue_id": 3000000000}\n', "row 1: Expected `int` <"),
        ("f.jsonl", '{"body": "x", "properties": [1]}\n', "row 1: Expected `object | null`"),
        ("f.jsonl", '{"body": "x", "properties": {"a": 1}}\n', "row 1: Expected `str`"),
        ("f.jsonl", '{"body": "\\ud800"}\n', "row 1: "),
        ("f.jsonl", '{"x": ' + "[" * 200_000, "row 1: maximum recursion depth"),
        ("f.csv", "topic,body\na,!!!\n", "row 2: Only base64 data"),
        ("f.csv", "body,queue_id\neA==,x\n", "row 2: invalid literal for int"),
        ("f.csv", "topic,queue_id,body\na,1\n", "row 2: it has 2 fields, and there are 3 names"),
        ("f.csv", "topic,body\na,eA==,5\n", "row 2: it has 3 fields, and there are 2 names"),
        ("f.csv", "body,properties\neA==,[1]\n", "row 2: Expected `object`, got `array`"),
        ("f.csv", "body,queue_id\neA==,3000000000\n", "too large"),
        ("f.csv", "a,eA==\n", "the file has no column `body`"),
        ("f.csv", "", "the file has no column `body`"),
        ("f.parquet", "junk" * 9, "the file cannot be read as parquet"),
        ("f.arrow", "junk" * 9, "the file cannot be read as arrow"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_the_row(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        _rows(path)
    assert told in str(raised.value)
    assert str(path) in str(raised.value)


def test_text_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    for name, data in (("f.jsonl", b'{"body": "\xff"}'), ("f.csv", b"topic,body\n\xff,eA==\n")):
        (tmp_path / name).write_bytes(data)
        # the second are the words of msgspec 0.23
        with pytest.raises(ConfigError, match="can't decode byte 0xff|Invalid UTF-8"):
            _rows(tmp_path / name)


BODIES = [b"x", b"yy", b"x"]


@pytest.mark.parametrize(
    "bodies",
    [
        pa.array(BODIES),
        pa.array(BODIES, pa.large_binary()),
        pa.array(BODIES, pa.binary_view()),
        pa.array(["x", "yy", "x"]),
        pa.array(["x", "yy", "x"], pa.large_string()),
        pa.array(BODIES).dictionary_encode(),
    ],
    ids=lambda bodies: str(bodies.type),
)
def test_columns_may_be_of_any_type_that_holds_their_values(tmp_path: Path, bodies: Any) -> None:
    columns = {
        "body": bodies,
        "queue_id": pa.array([1.0, None, 3.0]),  # as pandas has whole numbers of which one lacks
        "properties": [{"a": "1", "b": None}, {"a": None, "b": "2"}, None],
        "another": [1, 2, 3],
    }
    wanted = [
        {"topic": None, "queue_id": 1, "properties": {"a": "1"}, "body": b"x"},
        {"topic": None, "queue_id": None, "properties": {"b": "2"}, "body": b"yy"},
        {"topic": None, "queue_id": 3, "properties": {}, "body": b"x"},
    ]
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    assert _rows(tmp_path / "f.parquet") == wanted
    with pa.ipc.new_file(tmp_path / "f.arrow", pa.table(columns).schema) as sink:
        sink.write_table(pa.table(columns))
    assert _rows(tmp_path / "f.arrow") == wanted


@pytest.mark.parametrize(
    "columns",
    [{"body": [1]}, {"body": [b"x"], "queue_id": [1.5]}, {"body": [b"x"], "queue_id": ["x"]}],
    ids=str,
)
def test_values_of_another_type_are_an_error(tmp_path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    with pytest.raises(ConfigError, match="cannot be read as parquet"):
        _rows(tmp_path / "f.parquet")


def test_a_file_of_columns_without_a_body_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"topic": ["a"]}), tmp_path / "f.parquet")
    with pytest.raises(ConfigError, match="the file has no column `body`"):
        _rows(tmp_path / "f.parquet")


def test_a_body_may_be_longer_than_a_field_of_csv_usually_is(tmp_path: Path) -> None:
    limit, body = csv.field_size_limit(), bytes(200_000)
    (tmp_path / "f.csv").write_text(f"body\n{base64.b64encode(body).decode()}\n")
    assert [row["body"] for row in _rows(tmp_path / "f.csv")] == [body]
    assert csv.field_size_limit() == limit


def test_batches_of_large_bodies_are_short(tmp_path: Path) -> None:
    bodies = [bytes([number]) * (1 << 20) for number in range(40)]
    pq.write_table(pa.table({"body": bodies}), tmp_path / "f.parquet")
    lines = [json.dumps({"body_base64": base64.b64encode(body).decode()}) for body in bodies]
    (tmp_path / "f.jsonl").write_text("\n".join(lines))
    for form in ("parquet", "jsonl"):
        batches = list(read_file(tmp_path / f"f.{form}", form))
        assert [body for each in batches for body in each["body"].to_pylist()] == bodies
        assert max(each.num_rows for each in batches) <= 17
