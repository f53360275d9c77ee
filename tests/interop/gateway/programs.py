"""RocketMQ's clients of other languages: how each is fetched, and how its program is run.

Each is pinned by version and hash, and its program (clients/) runs in a process of its own. One
that cannot be fetched here is skipped, with what was missing. `place` has the ports of a broker.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, decode_command, encode_command

PROGRAMS = Path(__file__).parent / "clients"
# outside of the tests, whose files are looked at as our own
BUILT = Path(__file__).parents[3] / "build" / "clients"
FETCH_S, RUN_S, ROUTE_S = 300, 240, 30
QUEUES = 4


def fetched(command: list[str], done: Path, place: Path) -> None:
    """Have a client's package fetched once; skip where it cannot be had."""
    if done.exists():
        return
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    try:
        run = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"not fetched within {FETCH_S} s: {' '.join(command)}")
    if run.returncode != 0:
        pytest.skip(f"cannot be fetched here: {(run.stdout + run.stderr).strip()[-300:]}")
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


def python_client(package: str, digest: str) -> list[str]:
    """The wheel, and nothing but it, in an environment of its own."""
    place = BUILT / package
    pinned = BUILT / f"{package}.txt"
    BUILT.mkdir(parents=True, exist_ok=True)
    pinned.write_text(f"{package} --hash=sha256:{digest}\n")
    if not (place / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=FETCH_S)
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    fetched([*pip, "--require-hashes", "-r", str(pinned)], place / "fetched", BUILT)
    return [python, str(PROGRAMS / "python_client.py")]


def official_python() -> list[str]:
    digest = "5d71a88ea023f06a6dc3ffd35d88270b8d8aa553f2075e258fc67d4d3e9ba5b9"
    return python_client("rocketmq-client-python==0.5.0rc2", digest)


def other_python() -> list[str]:
    digest = "19a10219f5074d1050e88cdbdfed3903a374b3f83c0dd2c8773e1e93e33ad02d"
    return python_client("rocketmq==0.4.4", digest)


def node() -> list[str]:
    """package-lock.json has the hash of each package."""
    place = BUILT / "node"
    shutil.copytree(PROGRAMS / "node", place, dirs_exist_ok=True)
    fetched(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place / "fetched", place)
    return ["node", str(place / "client.js")]


def go() -> list[str]:
    """go.sum has the hash of each module."""
    program = BUILT / "go-client"
    build = ["go", "build", "-mod=readonly", "-o", str(program), "."]
    sources = [*(PROGRAMS / "go").iterdir()]
    if program.exists() and program.stat().st_mtime < max(f.stat().st_mtime for f in sources):
        program.unlink()
    BUILT.mkdir(parents=True, exist_ok=True)
    fetched(build, program, PROGRAMS / "go")
    return [str(program)]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "Python 0.5.0rc2": official_python,
    "Python 0.4.4": other_python,
    "Go 2.1.2": go,
    "Node 3.12.0": node,
}


def ask(port: int, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    with socket.create_connection(("127.0.0.1", port), ROUTE_S) as peer:
        peer.sendall(encode_command(Command(code, 1, fields, body)))
        stream = peer.makefile("rb")
        while True:
            found = decode_command(stream.read(int.from_bytes(stream.read(4), "big")))
            if found.is_response:  # and not that the group has changed
                return found


def make_topic(place: Any, topic: str) -> None:
    """The same request to either broker, until the name server knows it."""
    fields = {"topic": topic, "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    fields |= {"perm": "6", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    made = ask(place.port, Request.UPDATE_AND_CREATE_TOPIC, fields)
    assert made.code == Response.SUCCESS, made.remark
    await_route(place, topic)


def make_group(place: Any, group: str) -> None:
    """By a heartbeat: with the group its topic of retries is made. Clients look for routes when
    they start, and then after 30 s."""
    kind = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "groupName": group}
    kind |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    heartbeat = {"clientID": f"maker-of-{group}", "producerDataSet": []}
    heartbeat |= {"consumerDataSet": [kind | {"subscriptionDataSet": [], "unitMode": False}]}
    said = ask(place.port, Request.HEART_BEAT, {}, json.dumps(heartbeat).encode())
    assert said.code == Response.SUCCESS, said.remark
    await_route(place, f"%RETRY%{group}")


def await_route(place: Any, topic: str) -> None:
    until = time.monotonic() + ROUTE_S
    while True:
        route = ask(place.name_server_port, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if route.code == Response.SUCCESS:
            return
        assert time.monotonic() < until, route.remark
        time.sleep(0.05)


def printed(command: list[str], place: Any, topic: str, home: Path, *part: str) -> dict[str, Any]:
    """What a client's program prints of a broker, {feature: seen}. The library in C++ has once not
    ended, in six runs on a machine with sixty times the work that it can do, and why is not known:
    so one that hangs is run once more, with a topic of its own."""
    for attempt in (topic, f"{topic}-again"):
        make_topic(place, attempt)
        make_group(place, f"{attempt}-push")  # some message of it is given again
        at = home / attempt  # the libraries write there
        at.mkdir(parents=True)
        # files, for nobody reads a pipe while it is waited for
        with (at / "said").open("w") as said, (at / "errors").open("w") as errors:
            running = subprocess.Popen(
                [*command, place.name_server, attempt, *part],
                stdout=said,
                stderr=errors,
                cwd=at,
                env={"HOME": str(at), "PATH": os.environ["PATH"]},
            )
        try:
            running.wait(RUN_S)
            break
        except subprocess.TimeoutExpired:
            continue
        finally:
            running.kill()
            running.wait()
    lines = (at / "said").read_text().splitlines()
    found = {name: value for line in lines for name, value in json.loads(line).items()}
    assert found.pop("end", False), (found, (at / "errors").read_text()[-1000:])
    return found
