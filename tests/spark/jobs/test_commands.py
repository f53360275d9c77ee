"""The commands of `penstock spark`, in this process and in one session: what they do and print."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli.main import main
from penstock.client import Consumer
from penstock.maintenance.verify.check import verify_store

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "clean-5.3.tar.xz"
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
Run = Callable[..., str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as packed:
        packed.extractall(tmp_path, **SAFELY)
    (found,) = [path.parent for path in tmp_path.rglob("commitlog")]
    return found


@pytest.fixture
def run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a job; what it printed. It finds the session that there is, and would end it."""
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)

    def ran(*words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["spark", *map(str, words)])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out

    return ran


def messages(store: Path, topic: str) -> list[Any]:
    with Consumer(store=store, topic=topic, follow=False) as consumer:
        return list(consumer)


def test_rebuild_makes_the_files_again_and_says_how_many(run: Run, root: Path) -> None:
    def queues() -> dict[Path, bytes]:
        files = (at for at in (root / "consumequeue").rglob("*") if at.is_file())
        return {at: at.read_bytes() for at in files}

    before = queues()
    assert "messages, " in run("rebuild", root, "--queues")
    done = json.loads(run("rebuild", root, "-o", "json"))
    assert done["queues"] > 5 and done["keys"] > done["messages"] > 100 and done["lost"] == 0
    assert queues() == before
    assert verify_store(root).ok


def test_a_store_without_a_message_is_rebuilt_and_audited(run: Run, tmp_path: Path) -> None:
    (tmp_path / "new" / "commitlog").mkdir(parents=True)
    assert run("rebuild", tmp_path / "new").startswith("0 messages")
    assert "0 messages" in run("audit", tmp_path / "new")


def test_stats_prints_the_figures_and_writes_them(run: Run, root: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    text = run("stats", root, "--topics", "orders", "--html", page, "--parquet", figures)
    found = json.loads(run("stats", root, "--topics", "orders", "-o", "json"))
    (topic,) = found["tables"]["topics"]
    assert text.startswith(f"{topic['messages']} messages, {topic['bytes']} bytes of bodies\n")
    for name, rows in found["tables"].items():
        assert not rows or f"\n\n{name}\n" in text
        assert pq.read_table(figures / f"{name}.parquet").num_rows == len(rows)
    assert "<svg" in page.read_text()


def test_compact_makes_a_store_and_restore_puts_an_archive_into_it(
    run: Run, root: Path, tmp_path: Path
) -> None:
    new, archive = tmp_path / "new", tmp_path / "archive"
    to_new = ("compact", root, "--topic", "orders", "--into", "last", "--to", new)
    text = run(*to_new)
    again = json.loads(run(*to_new, "-o", "json"))
    assert text.startswith(f"{again['kept']} of {again['messages']} messages are in last")
    run("archive", root, archive, "--topics", "orders")
    with penstock.open(new):
        last = messages(new, "last")
        text = run("restore", new, archive, "--topic", "orders", "--into", "back")
        back = messages(new, "back")
    assert text == f"{len(back)} messages of orders are in back, in 2 queues\n"
    assert len(back) == again["messages"]
    keyed = Counter(each.keys for each in back if each.keys)
    assert len(last) == again["kept"] == len(keyed) - again["tombstones"]
    assert {each.keys for each in last} <= keyed.keys()
