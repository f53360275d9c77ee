"""Python clients next to Penstock's: what is missing says so, and ratios are those of medians."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import suppress
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from penstock.bench.loads.load import Seen
from penstock.bench.loads.load_process import measured, started
from penstock.bench.peers import paced, python_rates
from penstock.bench.peers.brokers.nats import Nats
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN
from penstock.bench.peers.brokers.rabbitmq import RabbitMQ
from penstock.bench.peers.brokers.redis import Redis
from penstock.bench.peers.paced import Pace, Paced
from penstock.bench.peers.python.python_clients import require
from penstock.bench.peers.python.python_load import Order
from penstock.bench.peers.python.python_peers import BROKERS, OURS, served
from penstock.bench.peers.python.python_streams import _Came, _Unanswered
from penstock.shared.errors import MissingDependency, StoreUnavailable

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


@pytest.mark.parametrize(
    ("main", "option"), [(paced.main, "--peers"), (python_rates.main, "--clients")]
)
def test_a_peer_that_there_is_not_is_named_with_those_there_are(
    main: click.Command, option: str
) -> None:
    said = CliRunner().invoke(main, [option, "redis,carrier-pigeon"])
    assert said.exit_code == 2
    assert "'carrier-pigeon' is not one of: penstock, redis," in said.output


def test_a_broker_that_cannot_be_had_is_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    names = "redis", "nats", "rabbitmq", "penstock"
    with served(names, BROKERS, tmp_path, DURABLE) as servers:
        assert list(servers) == ["penstock"]
    said = capsys.readouterr().err
    assert said.count("is not measured, durable: [MISSING_DEPENDENCY]") == 3


def _peers() -> list[object]:
    """Each that is installed; what Maven would have to bring is not tried."""
    found: list[object] = [OURS]
    for name, broker in {"redis": Redis(), "nats": Nats(), "rabbitmq": RabbitMQ()}.items():
        is_here = False
        with suppress(MissingDependency):
            require(BROKERS[name].client)
            is_here = bool(broker.server())
        skip = pytest.mark.skipif(not is_here, reason=f"{name} or its client is not installed")
        found.append(pytest.param(name, marks=skip))
    return found


@pytest.mark.parametrize("name", _peers())
def test_each_message_that_is_paced_arrives_and_each_that_is_sent_is_read(
    name: str, tmp_path: Path
) -> None:
    peer = BROKERS[name]
    client = peer.client or name
    with served([name], BROKERS, tmp_path, WRITTEN) as servers:
        server = servers[name]
        one = paced.measure(name, server, "paced", PACE)
        assert 0 < one.p50_ms <= one.p99_ms and one.broker_us > 0
        endpoint = server.told["consume" if name == OURS else "endpoint"]
        order = Order(endpoint, "full", 100, 0, warm_s=0, messages=640)
        sent = _seen(python_rates.command(client, server, order))
        total = sent.messages + sent.warm_messages
        assert total >= 640
        reads = msgspec.structs.replace(order, reads=True, messages=total, seconds=0.1)
        read = _seen(python_rates.command(client, server, reads))
        assert read.messages >= total and read.messages % total == 0


def test_asyncio_clients_wait_for_room_and_for_what_comes() -> None:
    asyncio.run(_wait_for_room_and_for_what_comes())


async def _wait_for_room_and_for_what_comes() -> None:
    unanswered, came = _Unanswered(1), _Came()
    unanswered.sent(2)
    waiting = asyncio.create_task(unanswered.room())
    taking = asyncio.create_task(came.take(60))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done() and not taking.done()
        unanswered.answered()
    await waiting
    came.put(b"a")
    came.put(b"b")
    assert await taking == [b"a", b"b"]
    assert await came.take(0.01) == []
    unanswered.sent(1)
    unanswered.answered("refused")
    with pytest.raises(StoreUnavailable, match="refused"):
        await unanswered.none()


def _seen(command: list[str]) -> Seen:
    with started([command]) as processes:
        (seen,) = measured(processes, 1, lambda done, total: None)
    return seen
