"""`penstock bench spark`: the store and Parquet are read in turns, and every message counts."""

from __future__ import annotations

import json

import pytest

from penstock.cli.main import main


@pytest.mark.takes(40)
def test_the_store_is_measured_beside_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "spark", "--messages", "3000", "--size", "50", "--runs", "1", "-o", "json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["body_bytes"], found["cores"]) == (3000, 50, 2)
    for way in ("store", "parquet", "parquet_zstd", "count", "count_column"):
        assert found[f"{way}_s"] > 0
    ratio = found["store_to_parquet"] * found["store_s"] / found["parquet_s"]
    assert ratio == pytest.approx(1)
