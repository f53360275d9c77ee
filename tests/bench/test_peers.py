"""The comparison with other brokers: what is missing is a row, what is measured is counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.bench.machine import Machine
from penstock.bench.peers import rabbitmq
from penstock.bench.peers.compare import PEERS, Plan, compare
from penstock.bench.peers.java import Java
from penstock.bench.peers.ours import Penstock
from penstock.bench.peers.page import write_page
from penstock.bench.peers.peer import DURABLE, WRITTEN, Peer
from penstock.bench.peers.rabbitmq import RabbitMQ
from penstock.bench.peers.redis import Redis
from penstock.bench.peers.table import Comparison, Known, Row, table
from penstock.bench.plot import line_plot
from penstock.bench.sweeps import Point, Sweeps
from penstock.shared.errors import MissingDependency

MACHINE = Machine(2, "cpu", 4.0, "6.1", "3.11", 0.5, 400, 2000, 10_000, 9000)


def test_what_is_not_installed_is_a_row_beside_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = Plan(acks=(WRITTEN,), sizes=(100,), runs=1, seconds=0.3)
    found = compare([Penstock(), Redis()], plan, tmp_path)
    ours, batches = (row for row in found.rows if not row.why)
    assert (ours.name, batches.name) == ("Penstock", "Penstock, batches of 64")
    assert min(ours.messages, batches.messages) > 0 and ours.repeated == batches.repeated == 0
    assert ours.cpu_s_per_million["broker"] > 0 < ours.cpu_s_per_million["client"]
    (missing,) = (row for row in found.rows if row.why)
    assert (missing.name, missing.ack) == ("Redis Streams", WRITTEN)
    (line,) = (line for line in table(found).splitlines() if "Redis" in line)
    assert "not measured" in line and "apt-get install redis-server" in line


@pytest.mark.parametrize("peer", [make for name, make in PEERS.items() if name != "penstock"])
def test_every_peer_says_what_to_install(
    peer: Callable[[], Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "SCRIPTS", tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingDependency, match="apt-get install"):
        peer().version()


def test_a_stream_of_rabbitmq_is_never_counted_as_durable(tmp_path: Path) -> None:
    with (
        pytest.raises(MissingDependency, match="they are not"),
        RabbitMQ().serve(tmp_path, DURABLE),
    ):
        pass


def test_a_driver_that_cannot_be_built_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingDependency, match="mvn is installed.*apt-get install maven"):
        Java("kafka", "KafkaPeer").build()


def _found() -> Comparison:
    cpu = {"broker": 2.0, "client": 1.0, "total": 3.0}
    rows = [
        Row(name, DURABLE, 100, run, 10, 0, 1.0, rate, 1.0, 2.0, cpu)
        for name, rates in (("Penstock", (100.0, 300.0, 200.0)), ("Other", (100.0, 50.0, 90.0)))
        for run, rate in enumerate(rates)
    ]
    rows.append(Row("Third", DURABLE, 0, why="[MISSING] it is | not there"))
    known = [
        Known("Penstock", "1", "", "its own", {DURABLE: "sync"}),
        Known("Third", "", "no", "", {}),
    ]
    found = Comparison(known, rows, [MACHINE], 3, 3.0, 4096, 4, "the command", "today")
    found.sweeps = Sweeps(in_flight=[Point("durable", x, 100 * x, x) for x in (1, 8, 64)])
    return found


def test_the_table_has_medians_and_their_ratio_to_penstock() -> None:
    lines = table(_found()).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in cells}) == 1
    assert cells[2][2:7] == ["Penstock", "200", "100 to 300", "0.0", "1.00"]
    assert cells[3][2:7] == ["Other", "90", "50 to 100", "0.0", "0.45"]
    assert cells[4][2:4] == ["Third", "not measured: [MISSING] it is / not there"]


def test_the_page_is_made_from_the_json_alone(tmp_path: Path) -> None:
    (tmp_path / "performance.json").write_bytes(msgspec.json.encode(_found()))
    again = msgspec.json.decode((tmp_path / "performance.json").read_bytes(), type=Comparison)
    write_page(again, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert table(_found()) in page and "the command" in page and "- Third: no" in page
    assert re.findall(r"!\[over in flight]\((.*)\)", page) == ["performance-in-flight.svg"]
    assert (tmp_path / "performance-in-flight.svg").read_text().startswith("<svg")


def test_a_plot_draws_every_point_inside_its_frame() -> None:
    lines = {"a <b>": [(1.0, 10.0), (100.0, 95.0)], "c": [(10.0, 0.0)]}
    svg = line_plot("title", "x", "y", lines, log_x=True)
    points = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(points) == 3
    assert [float(x) for x, _ in points] == [80.0, 510.0, 295.0]
    assert all(36 <= float(y) <= 272 for _, y in points)
    assert "a &lt;b&gt;" in svg and "<b>" not in svg
