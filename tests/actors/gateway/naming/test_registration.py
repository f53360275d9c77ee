"""A broker that registers with name servers: at its start, when topics change, and at its stop."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.actors.gateway import LoneNameServer
from penstock.actors.gateway.naming.registration import AGAIN_MS
from penstock.client import Producer
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import decode_command
from penstock.remoting.frames import FrameSplitter

WAIT_S = 60


def await_true(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def route(peer: Any, topic: str) -> dict[str, Any] | None:
    answer = peer.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return json.loads(answer.body) if answer.code == Response.SUCCESS else None


def codes_heard(silent: socket.socket) -> list[int]:
    """The requests that have come to a server which has answered none, until its peers ended."""
    silent.setblocking(False)
    codes = []
    with suppress(BlockingIOError):
        while True:
            connection, _ = silent.accept()
            with connection, connection.makefile("rb") as file:
                codes += [decode_command(frame).code for frame in FrameSplitter().feed(file.read())]
    return codes


def test_a_broker_registers_follows_its_topics_and_leaves(
    tmp_path: Path,
    new_peer: Callable[[str], Any],
    start_broker: Callable[..., Any],
    lone_name_server: Callable[..., Any],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, answers nothing
        first = lone_name_server(tmp_path)
        addresses = [first.endpoint.removeprefix("tcp://"), "127.0.0.1:1", "no.such.host.invalid:9"]
        addresses.append(f"127.0.0.1:{silent.getsockname()[1]}")
        broker = start_broker(
            gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
            cluster_name='"mixed"', namesrv_addr=f'"{";".join(addresses)}"',
            broker_ip='"10.9.8.7"',
        )  # fmt: skip
        port = broker.status()["endpoints"]["remoting"].rpartition(":")[2]
        remoting = f"10.9.8.7:{port}"
        peer = new_peer(first.endpoint)
        await_true(lambda: route(peer, "TBW102") is not None)
        info = json.loads(peer.ask(Request.GET_BROKER_CLUSTER_INFO).body)
        assert info["clusterAddrTable"] == {"mixed": ["broker-a"]}
        assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": remoting}
        with Producer(broker.produce) as producer:
            producer.send("young", b"x").result(WAIT_S)
        await_true(lambda: route(peer, "young") is not None)
        found = route(peer, "young")
        assert found is not None and found["brokerDatas"][0]["brokerAddrs"] == {"0": remoting}

        # one that was started again hears all of it
        first.stop()
        second = lone_name_server(tmp_path, int(first.endpoint.rpartition(":")[2]))
        peer = new_peer(second.endpoint)
        await_true(lambda: route(peer, "young") is not None)

        broker.stop()
        assert route(peer, "young") is None, "it has said that it stops, not only been silent"
        # whoever does not go by ended connections is told, too
        assert codes_heard(silent)[-1] == Request.UNREGISTER_BROKER
        assert json.loads(peer.ask(Request.GET_BROKER_CLUSTER_INFO).body)["clusterAddrTable"] == {}


def test_a_broker_that_a_name_server_refuses_says_so_and_serves(
    tmp_path: Path, start_broker: Callable[..., Any], lone_name_server: Callable[..., Any]
) -> None:
    """By what another broker has registered: of two with one id the newer counts."""
    from penstock.remoting.naming.routes import Routes

    refusing = lone_name_server(tmp_path)

    def refuse(*_: object) -> None:
        return None

    assert isinstance(refusing.server, LoneNameServer)
    routes = refusing.server._server.routes
    assert isinstance(routes, Routes)
    routes.register = refuse  # type: ignore[method-assign, assignment]  # a name server of 5.x that knows better
    address = refusing.endpoint.removeprefix("tcp://")
    broker = start_broker(
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
        namesrv_addr=f'"{address}"',
    )  # fmt: skip
    await_true(lambda: f"name server {address} refuses this broker" in broker.said.read_text())
    with Producer(broker.produce) as producer:
        assert producer.send("served", b"x").result(WAIT_S)


def test_a_name_server_that_ends_each_connection_is_dialed_no_more_than_every_two_seconds(
    start_broker: Callable[..., Any],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ending:
        ending.settimeout(WAIT_S)
        start_broker(
            gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
            namesrv_addr=f'"127.0.0.1:{ending.getsockname()[1]}"',
        )  # fmt: skip
        dialed, _ = ending.accept()
        ended_s = time.monotonic()
        dialed.close()
        ending.accept()[0].close()
        # the broker's clock has whole milliseconds
        assert time.monotonic() - ended_s > AGAIN_MS / 1000 - 0.01


def test_a_name_server_whose_name_none_can_have_is_reported_and_the_broker_serves(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker(
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
        namesrv_addr='"a..b:9876"', broker_ip='"10.9.8.7"',
    )  # fmt: skip
    await_true(lambda: "name server a..b:9876 is not found" in broker.said.read_text())
    with Producer(broker.produce) as producer:
        assert producer.send("served", b"x").result(WAIT_S)
