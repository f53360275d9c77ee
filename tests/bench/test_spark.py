"""`penstock bench spark`: the store and Parquet are read in turns, and every message counts."""

from __future__ import annotations

import json

import pytest

from penstock.bench.spark import stream
from penstock.bench.spark.measure import (
    COUNT,
    COUNT_COLUMN,
    DISCARD,
    KEY,
    KEY_SCAN,
    PARQUET,
    SINK,
    STORE,
    ZSTD,
)
from penstock.cli.main import main


@pytest.mark.takes(70)
def test_the_store_is_measured_beside_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        amount = ["--messages", "3000", "--size", "50", "--runs", "1"]
        main(["bench", "spark", *amount, "--sinks", "-o", "json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["body_bytes"], found["cores"]) == (3000, 50, 2)
    assert set(found["seconds"]) == {
        *(STORE, PARQUET, ZSTD, COUNT, COUNT_COLUMN),
        *(KEY, KEY_SCAN, SINK, DISCARD),
    }
    assert all(seconds > 0 for seconds in found["seconds"].values())
    ratio = found["seconds"][PARQUET] / found["seconds"][STORE]
    assert found["ratios"][f"{STORE} / {PARQUET}"] == pytest.approx(ratio)


@pytest.mark.takes(70)
def test_a_stream_is_measured_at_a_steady_rate_and_at_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SETTLE_S", 0.1)
    monkeypatch.setattr(stream, "TOPICS", 3)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "spark", "--stream", "--rate", "200", "--seconds", "2", "-o", "json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["topics"], found["rate_per_s"], found["messages"]) == (3, 200, 500)
    assert found["batches"] > 0
    assert 0 < found["p50_age_ms"] <= found["p90_age_ms"] <= found["max_age_ms"]
    assert found["rest_percent"] > 0 and found["rest_with_stream_percent"] > 0
