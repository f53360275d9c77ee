"""`/metrics`: declared once, read strictly, documented, and drawn by the board."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.monitor.board import expressions, grafana_board
from penstock.actors.monitor.metric_table import BY_NAME, METRICS, NOT_SHOWN, document
from penstock.client import Producer
from penstock.shared.memory.durations import BUCKETS
from penstock.shared.memory.positions import POSITIONS

ROOT = Path(__file__).parents[3]
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.e+-]+|NaN|[+-]Inf)")
BASE_UNITS = {"seconds", "bytes", "ratio"}
Series = dict[tuple[str, str], float]


def scrape(monitor: str) -> str:
    with urllib.request.urlopen(f"{monitor}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def parsed(text: str) -> tuple[dict[str, str], Series]:
    """Types and samples. Fails on whatever Prometheus' format has not, and on its bad habits."""
    assert text.endswith("\n") and "\n\n" not in text
    kinds: dict[str, str] = {}
    found: Series = {}
    lines = iter(text.splitlines())
    family = ""
    for line in lines:
        if line.startswith("# HELP "):
            family, _, help_text = line.removeprefix("# HELP ").partition(" ")
            assert help_text and family not in kinds, "each family comes once, with its help"
            kind = next(lines).removeprefix(f"# TYPE {family} ")
            assert kind in ("counter", "gauge", "histogram")
            assert kind != "counter" or family.endswith("_total")
            assert kind == "counter" or not re.search(r"_(total|count|sum|bucket)$", family)
            kinds[family] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match[1], match[2] or "", float(match[3])
        own = {family} if kinds[family] != "histogram" else _parts(family)
        assert name in own, f"{name} stands below {family}"
        assert (name, labels) not in found, line
        assert kinds[family] != "counter" or value >= 0
        found[name, labels] = value
    return kinds, found


def _parts(family: str) -> set[str]:
    return {f"{family}_{part}" for part in ("bucket", "sum", "count")}


def test_a_scrape_is_strictly_in_the_format_and_has_what_is_declared(monitored: Any) -> None:
    with Producer(monitored.produce) as producer:
        for number in range(50):
            producer.send("scraped", b"%d" % number).result(60)
    kinds, found = parsed(scrape(monitored.monitor))
    assert {name: BY_NAME[name].kind for name in kinds} == kinds
    # what cannot be known after a few seconds
    assert {metric.name for metric in METRICS} - kinds.keys() <= {
        "penstock_disk_full_in_seconds",
        "penstock_group_lag_messages",
    }
    for (name, labels), _ in found.items():
        metric = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
        names = tuple(re.findall(r'(?:^|,)([a-z_]+)="', labels))
        assert names == metric.labels or names == ("le",), name


def test_numbers_are_those_of_the_broker(monitored: Any) -> None:
    with Producer(monitored.produce) as producer:
        for number in range(20):
            producer.send("counted", b"%d" % number).result(60)
    _, found = parsed(scrape(monitored.monitor))
    status = monitored.status()
    wrote = status["positions"]["wrote"]
    assert found["penstock_stage_position_bytes", 'stage="writer"'] == wrote > 0
    assert found["penstock_stage_position_bytes", 'stage="flusher"'] == wrote
    assert found["penstock_actor_up", 'actor="reader"'] == 1
    assert ("penstock_actor_up", 'actor="gateway"') not in found, "this broker has none"
    assert found["penstock_healthy", ""] == found["penstock_ready", ""] == 1


def test_each_durable_answer_is_counted_with_its_time(monitored: Any) -> None:
    _, before = parsed(scrape(monitored.monitor))
    with Producer(monitored.produce) as producer:
        for _ in range(7):
            producer.send("timed", b"x").result(60)
    _, after = parsed(scrape(monitored.monitor))
    for name, least in (("penstock_acknowledge_seconds", 7), ("penstock_flush_seconds", 1)):
        new = after[f"{name}_count", ""] - before[f"{name}_count", ""]
        assert new >= least and (new == 7 or name == "penstock_flush_seconds")
        assert 0 < after[f"{name}_sum", ""] - before[f"{name}_sum", ""] < 60 * new
        buckets = [(k[1], v) for k, v in after.items() if k[0] == f"{name}_bucket"]
        edges = [math.inf if "Inf" in le else float(le[4:-1]) for le, _ in buckets]
        assert edges[-1] == math.inf and len(edges) == BUCKETS // 4
        # a doubling each
        assert edges[1:-1] == pytest.approx([2 * edge for edge in edges[:-2]])
        assert [v for _, v in buckets] == sorted(v for _, v in buckets)
        assert buckets[-1][1] == after[f"{name}_count", ""]


def test_names_and_units_follow_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"penstock_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.sentence.endswith(".") and metric.unit
        base = metric.name.removesuffix("_total")
        said = next((unit for unit in BASE_UNITS if base.endswith(f"_{unit}")), None)
        assert said == (metric.unit if metric.unit in BASE_UNITS else None), metric.name


def test_every_position_is_a_metric_or_is_said_to_be_none() -> None:
    used = {metric.position for metric in METRICS} - {""}
    assert used <= {position.name for position in POSITIONS} and not used & NOT_SHOWN
    source = "".join(
        (ROOT / "actors" / "monitor" / name).read_text()
        for name in ("exposition.py", "overview.py", "metric_table.py")
    )
    for position in POSITIONS:
        word = position.name
        read = word in used or f'"{word}"' in source or position.unit == "errno"
        read |= word in ("committed", "flushed", "dispatched") or word.startswith("deleted_")
        read |= word.startswith("transactions_")
        assert read or word in NOT_SHOWN, f"{word} is not in the table, and not said to be left out"


def test_the_document_is_made_of_the_table() -> None:
    """If not, write what `document()` returns."""
    assert (ROOT / "docs" / "metrics.md").read_text() == document()


def test_the_board_draws_declared_metrics_only() -> None:
    board = grafana_board()
    drawn = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"penstock_[a-z_]+", target["expr"])
            assert len(names) == 1
            drawn.add(re.sub(r"_bucket$", "", names[0]))
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= set(BY_NAME[re.sub(r"_bucket$", "", names[0])].labels)
    assert drawn == BY_NAME.keys() - {"penstock_build_info", "penstock_start_time_seconds"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(expressions(metric) for metric in METRICS)


def test_promtool_finds_nothing_to_say(monitored: Any) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape(monitored.monitor),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
