"""`penstock bench rebuild`: one process and Spark by turns, and the files are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.bench.stores.rebuild import fill
from penstock.cli.main import main
from penstock.shared.layout import StorePaths
from penstock.shared.store.watermark import load_watermark


@pytest.mark.takes(30)
def test_a_rebuild_is_measured_and_what_differs_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    fill(store, 4 << 20, 1024)
    command = ["bench", "rebuild", "--store", str(store), "--cores", "1", "-o", "json"]
    log_end = load_watermark(StorePaths(store).watermark)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["messages"] == found["keys"] // 2 == (4 << 20) // 1204
    assert log_end is not None and found["log_bytes"] == log_end.flushed < 8 << 20
    one, spark = found["rows"]
    assert (one["cores"], one["to_native"], spark["cores"]) == (0, 1, 1)
    assert spark["to_native"] == pytest.approx(one["seconds"] / spark["seconds"])
    assert spark["worker_mib"] > 30 and spark["all_mib"] > 2 * spark["worker_mib"]

    # a queue that is not as the log says comes out as another one
    entries = StorePaths(store).queue("bench-0", 0) / ("0" * 20)
    raw = bytearray(entries.read_bytes())
    raw[19] ^= 1
    entries.write_bytes(raw)
    with pytest.raises(SystemExit) as ended:
        main([*command[:-3], "1", "-o", "json"])
    assert ended.value.code == 5
    assert "other files than the reput" in capsys.readouterr().err


def test_it_can_be_imported_without_what_spark_needs() -> None:
    hidden = "import sys; sys.modules.update(pyarrow=None, pyspark=None, numpy=None)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{hidden}; import penstock.bench.stores.rebuild"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
