"""Clients run where Python runs: in a child process that looks like another system, and has nothing
that only Linux has, they work over TCP. What needs Linux says so."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.client.connecting.waker import Waker

pytestmark = pytest.mark.takes(10)

# what is taken away, before anything of Penstock is imported
ELSEWHERE = """
import os, socket, sys, signal
import asyncio, concurrent.futures, logging, subprocess, tempfile, threading, uuid, zmq, zmq.asyncio
import click, click.shell_completion, rich.console, rich.progress
sys.platform = "darwin"
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty"):
    sys.modules[name] = None
for name in ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC",
             "register_at_fork", "preadv", "posix_fallocate", "pidfd_open", "memfd_create",
             "sched_getaffinity", "O_CLOEXEC", "O_NOFOLLOW", "waitid", "setns"):
    if hasattr(os, name):
        delattr(os, name)

def watch(event, arguments):
    path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    if event == "open" and path.startswith(("/dev/shm", "/proc", "/sys")):
        os.write(2, f"opened {path}\\n".encode())
        os._exit(9)
    if event in ("socket.connect", "socket.bind") and isinstance(arguments[1], (str, bytes)):
        os.write(2, b"a socket file was used\\n")
        os._exit(9)
sys.addaudithook(watch)
"""
# what Windows lacks besides; its own modules are not here, so what asks for them comes first
WINDOWS = """
import select
for name in ("SIGHUP", "SIGQUIT", "SIGKILL", "SIGPROF", "SIGCHLD", "pthread_sigmask", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("poll", "epoll"):
    delattr(select, name)
"""
COMMAND = """
import penstock.cli.main
penstock.cli.main.main(sys.argv[1:])
"""
CLIENTS = """
import asyncio, penstock
from penstock.client import Consumer, GroupConsumer, Producer, aio
produce, consume = sys.argv[1:]
with penstock.connect(produce) as broker:
    producer = broker.producer()
    producer.create_topic("elsewhere", 2)
    # enough for a ring, where there were one
    sent = [producer.send("elsewhere", b"x" * 20_000, keys=f"k{n}") for n in range(400)]
    receipts = [each.result(120) for each in sent]
    assert broker.query().by_id(receipts[0].message_id).keys == "k0"
    found = list(broker.consumer("elsewhere", follow=False))
    assert len(found) == 400, len(found)
    member = broker.group("elsewhere", "elsewhere", start="first")
    batch = member.poll(120)
    member.commit(120)
    with broker.producer(group="shop").transaction("elsewhere") as transaction:
        transaction.send(b"sold")

async def ask():
    async with aio.connect(consume) as broker:
        producer = await broker.producer()
        await producer.send("elsewhere", {"number": 1})
        consumer = await broker.consumer("elsewhere", follow=False)
        return len([message async for message in consumer])

print(asyncio.run(ask()), len(batch) > 0)
"""
REFUSED = """
import penstock
from penstock.client import Producer
from penstock.errors import MissingDependency
for call in (lambda: Producer(store="store"), lambda: penstock.open("store"),
             lambda: penstock.connect("store").producer()):
    try:
        call()
    except MissingDependency as error:
        assert "needs Linux" in error.what and "tcp://" in error.hint
    else:
        raise SystemExit(f"{call} is not refused")
import penstock.cli.main
penstock.cli.main.main(["up", "--store", "store"])
"""


def elsewhere(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ELSEWHERE + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def test_clients_of_every_kind_work_over_tcp(broker: Any) -> None:
    done = elsewhere(CLIENTS, broker.produce, broker.consume)
    assert done.returncode == 0 and done.stdout == "402 True\n", done.stdout + done.stderr


def test_what_needs_linux_says_so_and_what_to_do() -> None:
    done = elsewhere(REFUSED)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a broker needs Linux: this is darwin" in done.stderr and "tcp://HOST" in done.stderr


@pytest.mark.parametrize("kind", ["eventfd", "sockets"])
def test_a_waker_is_readable_from_a_wake_until_it_is_cleared(kind: str) -> None:
    import select

    waker = Waker()
    if kind == "sockets":
        waker.close()
        waker._use_sockets()
    try:
        poll = select.poll()
        poll.register(waker.handle, select.POLLIN)
        assert poll.poll(0) == []
        for _ in range(100_000 if kind == "sockets" else 3):  # more than a pair of sockets holds
            waker.wake()
        assert poll.poll(0)
        while poll.poll(0):
            waker.clear()
        waker.wake()
        assert poll.poll(0)
    finally:
        waker.close()


def command_elsewhere(system: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = ELSEWHERE.replace("darwin", system) + (WINDOWS if system == "win32" else "") + COMMAND
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, input="a\nb\n", capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_commands_that_ask_a_broker_work_by_its_endpoint(broker: Any, system: str) -> None:
    topic = f"of-{system}"
    for by, arguments, said in (
        (broker.produce, ("topics", "create", topic), topic),
        (broker.produce, ("produce", topic, "--key", "k1"), "2 messages sent"),
        (broker.produce, ("topics", "ls"), topic),
        (broker.consume, ("consume", topic, "--max", "2", "-f"), "a\n"),
        (broker.consume, ("query", "key", topic, "k1"), "a"),
        (broker.consume, ("trace", "k1"), "stored"),
    ):
        done = command_elsewhere(system, *arguments, "--endpoint", by)
        out = done.stdout + done.stderr
        assert done.returncode == 0 and said in out, (arguments, out)


@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize("name", ["store", "status", "top", "doctor", "config", "namesrv", "demo"])
def test_a_command_that_needs_linux_says_so(system: str, name: str) -> None:
    done = command_elsewhere(system, name)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"penstock {name} needs Linux: this is {system}" in done.stderr
