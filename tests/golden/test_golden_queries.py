"""Questions by key about stores of a real broker: our answers and those RocketMQ gave."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.config import Config
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET
from penstock.shared.index.lookup import IndexView, KeyQuery, look_up
from penstock.shared.store.directory import StoreDirectory

HERE = Path(__file__).parent
INDEX_GEOMETRY = Geometry(slots=50, items=200)
# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@pytest.mark.parametrize("name", ["broker-5.3", "broker-crc-5.3"])
def test_a_thousand_questions_have_rocketmqs_answers(name: str, tmp_path: Path) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, **SAFELY)
    lines = [json.loads(line) for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    assert len(lines) == 1000
    assert len(list((tmp_path / "store" / "index").iterdir())) == 2
    with StoreDirectory(tmp_path / "store") as store:
        view = IndexView(tmp_path / "store" / "index", INDEX_GEOMETRY)
        different = [
            (line, ours)
            for line in lines
            if (ours := _offsets(store, view, line)) != line["offsets"]
        ]
        view.close()
    assert different == []


def _offsets(store: StoreDirectory, view: IndexView, line: dict[str, Any]) -> list[int]:
    """The log offsets of what our look-up finds."""

    def log_at(offset: int, size: int) -> bytes:
        return store.read_log(offset, min(size, store.segment_of(offset).end - offset))

    wanted = KeyQuery(
        line["topic"],
        line["key"],
        min(line["max_num"], Config().max_msgs_num_batch),
        line["begin_ms"],
        line["end_ms"],
        unique=False,
    )
    turns = look_up(view.files(), wanted, log_at)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            at = slice(AT_PHYSICAL_OFFSET, AT_PHYSICAL_OFFSET + 8)
            return [int.from_bytes(record[at], "big") for record in end.value]
