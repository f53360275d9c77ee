"""Python clients beside ours: what is missing says so, and ratios are those of medians."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import msgspec
import pytest

from penstock.bench.load import Seen
from penstock.bench.load_process import measured, started
from penstock.bench.peers import paced, python_rates
from penstock.bench.peers.ours import Penstock
from penstock.bench.peers.paced import Pace, Paced
from penstock.bench.peers.peer import WRITTEN, Peer
from penstock.bench.peers.python_clients import require
from penstock.bench.peers.python_load import Order
from penstock.bench.peers.redis import Redis
from penstock.shared.errors import MissingDependency

PACE = Pace(WRITTEN, 100, 500, 0, 0.4)


def test_a_client_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'penstock\[peers\]'"):
        require("redis")


def test_ratios_are_of_medians_and_of_the_same_load() -> None:
    other = PACE._replace(rate_per_s=10)
    found = {
        ("penstock", PACE): [Paced(3.0, 9.0, 300.0), Paced(1.0, 5.0, 100.0), Paced(2.0, 7.0, 200)],
        ("redis", PACE): [Paced(1.0, 2.0, 100.0)],
        ("penstock", other): [Paced(1.0, 2.0, 100.0)],
    }
    assert paced.rows(found) == [
        [WRITTEN, 10, 0, "penstock", 1, 1.0, 2.0, 100, "–", "–"],
        [WRITTEN, 500, 0, "penstock", 3, 2.0, 7.0, 200, 2.0, 2.0],
        [WRITTEN, 500, 0, "redis", 1, 1.0, 2.0, 100, "–", "–"],
    ]
    rates = {("penstock", 100, False): [100.0, 300.0, 200.0], ("redis", 100, False): [50.0]}
    assert [row[2:] for row in python_rates.rows(rates)] == [
        ["penstock", "200", "100 to 300", 1.0],
        ["redis", "50", "50 to 50", 4.0],
    ]


def _peers() -> list[object]:
    missing = shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None
    skip = pytest.mark.skipif(missing, reason="redis-server or redis-py is not installed")
    return ["penstock", pytest.param("redis", marks=skip)]


@pytest.mark.parametrize("name", _peers())
def test_each_message_that_is_paced_arrives_and_each_that_is_sent_is_read(
    name: str, tmp_path: Path
) -> None:
    peer: Peer = Penstock() if name == "penstock" else Redis()
    with peer.serve(tmp_path / name, WRITTEN) as server:
        one = paced.measure(name, server, "paced", PACE)
        assert 0 < one.p50_ms <= one.p99_ms and one.broker_us > 0
        endpoint = server.told["consume" if name == "penstock" else "endpoint"]
        order = Order(endpoint, "full", 100, 0, warm_s=0, messages=640)
        sent = _seen(python_rates.command(name, server, order))
        total = sent.messages + sent.warm_messages
        assert total >= 640
        reads = msgspec.structs.replace(order, reads=True, messages=total, seconds=0.1)
        read = _seen(python_rates.command(name, server, reads))
        assert read.messages >= total and read.messages % total == 0


def _seen(command: list[str]) -> Seen:
    with started([command]) as processes:
        (seen,) = measured(processes, 1, lambda done, total: None)
    return seen
