"""What a person waits for every day is measured as it is used, and in the end it is right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.bench.seen import page
from penstock.bench.seen.page import bench_page
from penstock.bench.seen.waits import bench_waits
from penstock.bench.stores.rebuild import fill
from penstock.cli.main import main


@pytest.mark.takes(20)
def test_commands_imports_and_a_tests_broker_are_timed() -> None:
    steps = list[tuple[int, int]]()
    rows = bench_waits(2, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    found = {row.what: row for row in rows}
    assert len(found) == len(rows) == 8
    for row in rows:
        assert row.runs == 2 and 0 < row.p50_ms <= row.max_ms
    # whoever does more in a process of the same kind cannot have waited less
    nothing, asked = found["python -c pass"], found["penstock topics ls"]
    assert asked.p50_ms > nothing.p50_ms / 2
    assert {row.asked_ms for row in rows} == {0, 60, 100, 250, 300}


@pytest.mark.takes(40)
def test_a_page_is_timed_with_all_topics_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SETTLE_S", 0.1)
    rows = bench_page(3, 2, 1.0, lambda done, total: None)
    asked = [row for row in rows if row.unit == "ms"]
    assert all(0 < row.p50 <= row.max and row.runs == 2 for row in asked)
    cost = [row.what for row in rows if row.unit == "% of a core"]
    nobody = "when nobody looks"
    loads = ("", ", 1,000 messages/s", ", all the messages it takes")
    assert cost[:3] == [nobody + load for load in loads]
    assert len(cost) == (8 if shutil.which("chromium") else 3)


@pytest.mark.takes(30)
def test_an_export_is_timed_beside_memory_and_comes_back_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    fill(store, 2 << 20, 1024)
    words = ["bench", "export", "--store", str(store), "--runs", "1", "--import", "-o", "json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["messages"] == (2 << 20) // 1204 and len(found["body_sha256"]) == 64
    rates = found["mb_per_s"], found["memory_mb_per_s"]
    assert found["to_memory"] == pytest.approx(rates[0] / rates[1], abs=0.1)
    assert min(rates) > 0 and found["import_s"] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["store"], "its own files are gone"
