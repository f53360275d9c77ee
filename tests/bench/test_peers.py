"""The comparison with other brokers: what is missing is a row, what is measured is counted."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.bench.log.sweeps import Point, Sweeps, told
from penstock.bench.peers.bars import bars_table
from penstock.bench.peers.brokers import java, rabbitmq
from penstock.bench.peers.brokers.java import Java
from penstock.bench.peers.brokers.ours import Penstock
from penstock.bench.peers.brokers.peer import (
    CONSUME,
    DURABLE,
    PACKED,
    SINGLE,
    WRITTEN,
    Load,
    Peer,
    Read,
    Server,
)
from penstock.bench.peers.brokers.rabbitmq import RabbitMQ
from penstock.bench.peers.brokers.redis import Redis
from penstock.bench.peers.compare import PEERS, compare
from penstock.bench.peers.page import write_page
from penstock.bench.peers.plan import BACKLOG, Plan
from penstock.bench.peers.table import Comparison, Known, Row, table
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.plot import line_plot
from penstock.shared.errors import MissingDependency, StoreUnavailable

pytestmark = pytest.mark.takes(30)

MACHINE = Machine(2, "cpu", 4.0, "6.1", "3.11", 0.5, 400, 2000, 10_000, 9000)


def test_what_is_not_installed_is_a_row_beside_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = Plan(phases=(WRITTEN, BACKLOG), sizes=(100,), runs=1, seconds=0.3)
    found = compare([Penstock(), Redis()], plan, tmp_path)
    ours = [row for row in found.rows if not row.why]
    assert sorted((row.kind, row.name, row.in_flight) for row in ours) == [
        (CONSUME, "Penstock", 0),
        (CONSUME, "Penstock, bodies alone", 0),
        (CONSUME, "Penstock, by the socket", 0),
        (PACKED, "Penstock", 4096),
        (PACKED, "Penstock, batches of 64", 4096),
        (SINGLE, "Penstock", 64),
        (SINGLE, "Penstock", 512),
    ]
    assert all(row.messages > 0 and row.repeated == 0 for row in ours)
    assert all(row.cpu_s_per_million[of] > 0 for row in ours for of in ("broker", "client"))
    reads = [row for row in ours if row.kind == CONSUME]
    assert [row.messages % plan.backlog(100) for row in reads] == [0, 0, 0]
    missing = [row for row in found.rows if row.why]
    assert [(row.name, row.ack, row.kind) for row in missing] == [
        ("Redis Streams", WRITTEN, PACKED),
        ("Redis Streams", WRITTEN, CONSUME),
    ]
    for kind in (PACKED, CONSUME):
        (line,) = (line for line in table(found, kind).splitlines() if "Redis" in line)
        assert "not measured" in line and "apt-get install redis-server" in line
    assert {phase: len(each) for phase, each in found.machines.items()} == {WRITTEN: 3, BACKLOG: 3}
    assert list(tmp_path.iterdir()) == []


class _Broken(Penstock):
    """Penstock with a client that fails at once, and with one that sends too little to be read."""

    asked: int = 0

    def command(self, server: Server, load: Load | Read) -> list[str]:
        if isinstance(load, Load) and load.messages:
            fewer = load.messages - max(way.batch for way in self.ways)
            return super().command(server, msgspec.structs.replace(load, messages=fewer))
        self.asked += 1
        return [sys.executable, "-c", "raise SystemExit('it is broken')"]


def test_a_load_that_fails_is_a_row_and_is_not_tried_again(tmp_path: Path) -> None:
    peer = _Broken()
    found = compare([peer], Plan(phases=(WRITTEN,), sizes=(100,), runs=3, seconds=0.2), tmp_path)
    assert len(found.rows) == peer.asked == sum(way.kind != CONSUME for way in peer.ways)
    assert all("it is broken" in row.why.lower() for row in found.rows)
    lines = table(found, SINGLE).splitlines()[2:]
    assert len(lines) == 2 and all("not measured: " in line for line in lines)


def test_a_backlog_that_is_not_complete_is_not_read(tmp_path: Path) -> None:
    peer = _Broken()
    plan = Plan(phases=(BACKLOG,), sizes=(100,), runs=1, seconds=0.2)
    rows = compare([peer], plan, tmp_path).rows
    assert [row.name for row in rows] == [
        "Penstock",
        "Penstock, bodies alone",
        "Penstock, by the socket",
    ]
    for row in rows:
        assert (row.kind, row.size, peer.asked) == (CONSUME, 100, 0)
        assert f"a backlog of {plan.backlog(100)} messages was sent" in row.why


@pytest.mark.parametrize("peer", [make for name, make in PEERS.items() if name != "penstock"])
def test_every_peer_says_what_to_install(
    peer: Callable[[], Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "SCRIPTS", tmp_path)
    # what a comparison has fetched into the checkout
    monkeypatch.setattr(java, "TARGET", tmp_path)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingDependency, match="apt-get install"):
        peer().version()


def test_a_stream_of_rabbitmq_is_never_counted_as_durable(tmp_path: Path) -> None:
    with (
        pytest.raises(MissingDependency, match="before they are synced"),
        RabbitMQ().serve(tmp_path, DURABLE),
    ):
        pass


def test_a_driver_that_cannot_be_built_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.bench.peers.brokers.java.TARGET", tmp_path)  # nothing fetched yet
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingDependency, match="mvn is not installed.*apt-get install maven"):
        Java("kafka", "Kafka").build()


def _found() -> Comparison:
    cpu = {"broker": 2.0, "client": 1.0, "total": 3.0}
    rows = [
        Row(
            name,
            DURABLE,
            100,
            run,
            messages=10,
            seconds=1.0,
            messages_per_s=rate,
            p50_ms=1.0,
            p99_ms=2.0,
            cpu_s_per_million=cpu,
        )
        for name, rates in (("Penstock", (100.0, 300.0, 200.0)), ("Other", (100.0, 50.0, 90.0)))
        for run, rate in enumerate(rates)
    ]
    rows.append(Row("Third", DURABLE, why="[MISSING] it is | not there"))
    known = [
        Known("Penstock", "1", "", "its own", {DURABLE: "sync"}),
        Known("Third", "", "no", "", {}),
    ]
    found = Comparison(known, rows, {DURABLE: [MACHINE]}, 3, 3.0, 4096, 4)
    found.command, found.finished, found.backlog = "the command", "today", {"100": 640}
    found.sweeps = Sweeps(in_flight=[Point("durable", x, 100 * x, x) for x in (1, 8, 64)])
    found.sweeps.failed = ["9 queues: there is | no room"]
    return found


def test_the_table_has_medians_and_their_ratio_to_penstock() -> None:
    lines = table(_found(), PACKED).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in cells}) == 1
    assert cells[2][2:7] == ["Penstock", "200", "100 to 300", "0.0", "1.00"]
    assert cells[3][2:7] == ["Other", "90", "50 to 100", "0.0", "0.45"]
    assert cells[4][2:4] == ["Third", "not measured: [MISSING] it is / not there"]


def test_the_page_is_made_from_the_json_alone(tmp_path: Path) -> None:
    (tmp_path / "performance.json").write_bytes(msgspec.json.encode(_found()))
    again = msgspec.json.decode((tmp_path / "performance.json").read_bytes(), type=Comparison)
    (tmp_path / "performance-printed.txt").write_text("```text\n$ penstock bench rebuild\n```\n")
    write_page(again, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert table(_found(), PACKED) in page and "the command" in page and "- Third: no" in page
    assert page.split("## What is asked")[1].strip().startswith(bars_table(_found()))
    assert "- not measured: 9 queues: there is / no room\n" in page
    assert "\n```text\n$ penstock bench rebuild\n```\n\n## What is asked" in page
    assert re.findall(r"!\[over in flight]\((.*)\)", page) == ["performance-in-flight.svg"]
    assert (tmp_path / "performance-in-flight.svg").read_text().startswith("<svg")


def test_the_page_is_what_its_sources_make_of_it(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name in ("performance.json", "performance-printed.txt"):
        (tmp_path / name).write_bytes((docs / name).read_bytes())
    write_page(
        msgspec.json.decode((docs / "performance.json").read_bytes(), type=Comparison), tmp_path
    )
    assert (tmp_path / "performance.md").read_text() == (docs / "performance.md").read_text(), (
        "write it again: python -m penstock.bench.peers.page docs/performance.json"
    )


def test_a_part_of_a_sweep_that_fails_is_told_and_what_it_found_stays() -> None:
    def points() -> Iterator[Point]:
        yield Point("durable", 1, 1.0, 1.0)
        raise StoreUnavailable("the broker stops in order", "exit code 1")

    found, said = Sweeps(), list[str]()
    with told(found, "some queues", said.append):
        found.queues += points()
    assert [point.x for point in found.queues] == [1]
    (failed,) = found.failed
    assert failed.startswith("some queues: ") and "stops in order: exit code 1" in failed
    assert said == ["some queues", failed]


def test_a_plot_draws_every_point_inside_its_frame() -> None:
    lines = {"a <b>": [(1.0, 10.0), (100.0, 95.0)], "c": [(10.0, 0.0)]}
    svg = line_plot("title", "x", "y", lines, log_x=True)
    points = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(points) == 3
    assert [float(x) for x, _ in points] == [80.0, 510.0, 295.0]
    assert all(36 <= float(y) <= 272 for _, y in points)
    assert "a &lt;b&gt;" in svg and "<b>" not in svg
