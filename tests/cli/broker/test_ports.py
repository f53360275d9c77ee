"""Ports that are taken, and endpoints that lead to no broker: what commands say, how they end."""

from __future__ import annotations

import os
import selectors
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Producer

SMALL = ("--set", "mapped_file_size_commit_log_bytes=1048576", "--set")
SMALL += ("max_message_size_bytes=65536",)
WAIT_S = 60


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]


def penstock(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), capture_output=True, text=True, timeout=60, **options
    )


@contextmanager
def running(*arguments: object) -> Iterator[dict[str, str]]:
    """A broker; what its ready line says."""
    process = subprocess.Popen(
        _command("up", *arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(WAIT_S), "not ready"
        line = process.stdout.readline()
        assert line.startswith("ready "), line
        yield dict(word.split("=", 1) for word in line.split() if "=" in word)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("kind", ["produce", "consume"])
def test_a_port_that_another_broker_has_is_named_with_its_store_and_pid(
    broker: Any, tmp_path: Path, kind: str
) -> None:
    port = getattr(broker, kind).rpartition(":")[2]
    ports = {"produce": "0", "consume": "0"} | {kind: port}
    done = penstock(
        "up", "--store", tmp_path / "b", "--produce-port", ports["produce"],
        "--consume-port", ports["consume"], "--port", "auto",
    )  # fmt: skip
    assert done.returncode == 2 and "PORT_IN_USE" in done.stderr
    assert f":{port}: " in done.stderr and f"{kind}rs is taken" in done.stderr
    assert str(broker.store) in done.stderr and f"pid {broker.process.pid}" in done.stderr
    # what did not start has made nothing that a broker would trip over
    with running("--store", tmp_path / "b", "--port", "auto", *SMALL):
        pass


def test_the_hint_for_a_taken_port_is_a_command_that_works(broker: Any, tmp_path: Path) -> None:
    """With all that was said but for the ports, the taken one stands in a file even."""
    file = tmp_path / "broker.toml"
    taken = broker.produce.rpartition(":")[2]
    file.write_text(f"produce_port = {taken}\nmax_message_size_bytes = 65536\n")
    store = tmp_path / "a store"
    arguments = ("--config", file, "--store", store, "--set", f"consume_port={taken}")
    size = ("--set", "mapped_file_size_commit_log_bytes=1048576")
    done = penstock("up", *arguments, *size)
    assert done.returncode == 2, done.stderr
    words = shlex.split(done.stderr[done.stderr.index("penstock up") :])
    with running(*words[2:]) as found:
        assert found["produce"] != broker.produce
        with Producer(store=store) as producer:
            producer.send("orders", b"x").result(WAIT_S)
        assert [path.stat().st_size for path in (store / "commitlog").iterdir()][0] == 1 << 20


def test_the_default_ports_taken_are_an_error_and_no_other_ports_in_silence(
    tmp_path: Path,
) -> None:
    """As when a second broker starts; where somebody has them already, that one is in the way."""
    held = []
    for port in (20911, 20912):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            listener.close()  # another program's: as good
        else:
            held.append(listener)
    try:
        done = penstock("up", "--store", tmp_path / "b")
    finally:
        for listener in held:
            listener.close()
    assert (done.returncode, done.stdout) == (2, "")
    assert "127.0.0.1:20911" in done.stderr and "--port auto" in done.stderr


def test_without_a_word_rocketmqs_clients_are_served_where_they_look_or_it_is_an_error(
    tmp_path: Path,
) -> None:
    """What is taken here is one of them, so that nothing else on the machine comes into it."""
    ours = [word for name in ("produce", "consume") for word in (f"--{name}-port", 0)]
    ours += ["--group-port", 0, "--transaction-port", 0]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"gateway_name_server_port={listener.getsockname()[1]}"
        arguments = ("--store", tmp_path / "b", *ours, *SMALL, "--set", taken)
        done = penstock("up", *arguments)
        assert done.returncode == 2 and "port for clients of RocketMQ is taken" in done.stderr
        assert "--port auto" in done.stderr and "gateway_enable=false" in done.stderr
        with running(*arguments, "--set", "gateway_enable=false") as ready:
            assert "name_server" not in ready
    with running("--store", tmp_path / "b", "--port", "auto", *SMALL) as ready:
        for name in ("name_server", "remoting"):
            host, _, port = ready[name].rpartition(":")
            socket.create_connection((host, int(port)), WAIT_S).close()


def test_another_program_that_has_the_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = penstock("up", "--store", tmp_path / "b", "--produce-port", port)
    assert done.returncode == 2 and "PORT_IN_USE" in done.stderr
    assert f"process {os.getpid()} has it: " in done.stderr and "python" in done.stderr


@contextmanager
def kept_port() -> Iterator[int]:
    """A port where nobody listens, which none takes who takes any; a broker that is told to can."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_auto_is_for_all_ports_and_one_may_be_named_all_the_same(tmp_path: Path) -> None:
    with (
        kept_port() as port,
        running(
            "--store", tmp_path / "b", "--port", "auto", "--produce-port", port, *SMALL
        ) as ready,
    ):
        assert ready["produce"] == f"tcp://127.0.0.1:{port}"
        assert not {at.rpartition(":")[2] for at in ready.values()} & {"20912", "20913", "20914"}


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::7"])
def test_an_address_of_another_machine_is_told_as_such(tmp_path: Path, address: str) -> None:
    done = penstock(
        "up", "--store", tmp_path / "b", "--port", "auto", "--set", f"bind_host={address}"
    )
    assert done.returncode == 2 and "CONFIG_ERROR" in done.stderr
    assert address in done.stderr and "bind_host" in done.stderr


COMMANDS = {
    "produce": ("produce", "orders"),
    "consume": ("consume", "orders"),
    "query": ("query", "key", "orders", "k"),
    "topics": ("topics", "ls"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_at_once_why_there_is_no_broker(name: str, tmp_path: Path) -> None:
    with kept_port() as port:
        nobody = f"tcp://127.0.0.1:{port}"
        for arguments, code, said in (
            (("--endpoint", nobody), 3, "nobody listens at this endpoint"),
            (("--endpoint", "localhost:20911"), 2, "tcp://localhost:20911"),
            (("--endpoint", ""), 2, "this endpoint is empty"),
            (("--endpoint", nobody, "--store", tmp_path), 2, "both an endpoint and a store"),
            (("--store", tmp_path / "none"), 3, f"penstock up --store {tmp_path / 'none'}"),
        ):
            began = time.monotonic()
            done = penstock(*COMMANDS[name], *arguments, input="")
            assert (done.returncode, done.stdout) == (code, ""), done.stderr
            assert said in done.stderr and "Traceback" not in done.stderr
            assert time.monotonic() - began < 15, "half of what a client's timeout is"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_at_the_wrong_port_is_told_the_right_one(broker: Any, name: str) -> None:
    produces = name in ("produce", "topics")
    wrong, right = (
        (broker.consume, broker.produce) if produces else (broker.produce, broker.consume)
    )
    done = penstock(*COMMANDS[name], "--endpoint", wrong, input="")
    assert done.returncode == 3 and f"connect to {right}" in done.stderr


def test_a_command_waits_for_a_broker_that_is_not_there_yet(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    waiting = subprocess.Popen(
        _command("produce", "orders", "--store", store, "--wait", WAIT_S),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    broker_in(tmp_path)
    _, said = waiting.communicate("x\n", timeout=2 * WAIT_S)
    assert waiting.returncode == 0 and "1 message sent to orders" in said
