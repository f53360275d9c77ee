"""What users do wrong, what they are told, and that what they are told to do helps.

Each mistake of mistakes.toml is made as a user makes it: a command or a Python program, against a
broker and files that are there. What is said is compared with mistakes.txt, where paths, ports and
process ids have names instead. Then the next step is taken: a command that the text has word for
word (`next`), or the call corrected as the text tells (`told`, `corrected`). It must end well, and
with `again` the command that has failed must work afterwards.

After a text has changed:    MISTAKES=write pytest tests/cli/test_mistakes.py
Then read the difference of mistakes.txt as a user would.
"""

from __future__ import annotations

import http.server
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Producer
from penstock.shared.process.broker_status import read_status

pytestmark = pytest.mark.takes(40)

HERE = Path(__file__).parent
SNAPSHOT = HERE / "mistakes.txt"
MISTAKES: list[dict[str, Any]] = tomllib.loads((HERE / "mistakes.toml").read_text())["mistake"]
NAMES = [mistake["name"] for mistake in MISTAKES]
KEYS = {
    *("name", "prepare", "run", "python", "stdin", "stdout", "environment"),
    *("happened", "value", "next", "again", "told", "corrected"),
}
WRITE = os.environ.get("MISTAKES") == "write"
HEAD = """\
What users do wrong, and what they are told. The test makes it; people read it.
MISTAKES=write pytest tests/cli/test_mistakes.py
"""
TIMEOUT_S = 120
# small files and free ports, wherever a broker is started
SETTINGS = {
    "PRODUCE_PORT": "0",
    "CONSUME_PORT": "0",
    "GROUP_PORT": "0",
    "TRANSACTION_PORT": "0",
    "GATEWAY_ENABLE": "false",
    "MAPPED_FILE_SIZE_COMMIT_LOG_BYTES": str(1 << 20),
    "MAPPED_FILE_SIZE_CONSUME_QUEUE_BYTES": "20000",
    "MAX_MESSAGE_SIZE_BYTES": "65536",
    "TRANSIENT_STORE_POOL_BYTES": str(8 << 20),
    "MAX_HASH_SLOT_NUM": "100",
    "MAX_INDEX_NUM": "1000",
    "AUTO_CREATE_TOPIC_ENABLE": "false",
}
BEGINNING = "from penstock.client import BatchMessage, Consumer, MessageQuery, Producer\n"
VARYING = (
    (re.compile(r"\b(pid|process|kill) \d+"), r"\1 PID"),
    (re.compile(r"(?<=:)\d{5}\b(?=\D)"), "PORT"),
    (re.compile(r"(process PID has it: ).*?(?=\. )"), r"\1COMMAND"),
    (re.compile(r"\b[0-9A-F]{32}\b"), "MESSAGE-ID"),
    (re.compile(r"\b\d+ MiB free"), "N MiB free"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "TIME"),
    # resolvers say it in many ways
    (re.compile(r"(no-such-host\.invalid:PORT: ).*?(?=\. See)"), r"\1WHY"),
    (re.compile(r"\b\d+% of it"), "N% of it"),
    (re.compile(r"\band \d+ more;"), "and N more;"),
    # who is not root has another error for what nobody may
    (re.compile(r"\[Errno 1\] Operation not permitted"), "[Errno 13] Permission denied"),
)


class Scene:
    """Where a mistake is made: the words of its texts, and what it needs besides."""

    def __init__(self, place: Path, words: Mapping[str, str]) -> None:
        self.place = place
        self.words = {"PLACE": str(place), **words}
        self.undo = ExitStack()

    def filled(self, text: str) -> str:
        """The text with what its words stand for."""
        for word, meaning in self.words.items():
            text = re.sub(rf"\b{word}\b", lambda _, to=meaning: to, text)
        return text

    def named(self, text: str) -> str:
        """The text with words for what is different in each run."""
        for word, meaning in sorted(self.words.items(), key=lambda each: -len(each[1])):
            text = text.replace(meaning, word)
        for pattern, name in VARYING:
            text = pattern.sub(name, text)
        return text


# --- what some mistakes need ---


def _held_port(scene: Scene) -> None:
    listener = scene.undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    scene.words["TAKEN"] = str(listener.getsockname()[1])


def _http_port(scene: Scene) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    scene.undo.callback(server.server_close)
    scene.undo.callback(server.shutdown)
    scene.words["HTTP"] = str(server.server_address[1])


def _nobodys_port(scene: Scene) -> None:
    """It is kept, or another one's broker would have it in a moment; and nobody listens there."""
    bound = scene.undo.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    scene.words["NOBODY"] = str(bound.getsockname()[1])


def _broken_topics(scene: Scene) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (scene.place / "stopped" / "config" / name).write_text("{")


def _stray_file(scene: Scene) -> None:
    (scene.place / "stopped" / "commitlog" / "notes.txt").write_text("mine")


def _damaged(scene: Scene) -> None:
    log = scene.place / "stopped" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(60)
        file.write(b"????")
    (scene.place / "stopped" / "abort").write_text("0")


def _file(scene: Scene) -> None:
    (scene.place / "file").write_text("= =")


def _settings(scene: Scene) -> None:
    (scene.place / "broker.toml").write_text("max_queues = 'many'\n")


def _not_empty(scene: Scene) -> None:
    (scene.place / "full").mkdir()
    (scene.place / "full" / "of").write_text("things")


def _full_disk(scene: Scene) -> None:
    """A broker on a disk of its own, which others have filled."""
    disk, store = scene.place / "disk", scene.place / "disk" / "store"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    scene.undo.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
    quick = {"PENSTOCK_BROKER_CLEAN_RESOURCE_INTERVAL_MS": "50"}
    scene.undo.enter_context(_up(scene, ["up", "--store", str(store)], quick))
    _penstock(scene, ["topics", "create", "orders", "--store", str(store)])
    # till there is no more: the broker takes its own share of it meanwhile
    with suppress(OSError), (disk / "others").open("wb", buffering=0) as others:
        while others.write(bytes(4096)):
            pass
    deadline = time.monotonic() + TIMEOUT_S
    while not read_status(store)["positions"]["disk_full"]:
        assert time.monotonic() < deadline, "the cleaner looks at the disk"
        time.sleep(0.01)


def _empty(scene: Scene) -> None:
    (scene.place / "empty").mkdir()


PREPARE: dict[str, Callable[[Scene], None]] = {
    "a port that is held": _held_port,
    "a port that speaks HTTP": _http_port,
    "a port where nobody listens": _nobodys_port,
    "a broken topics.json": _broken_topics,
    "a stray file in the log": _stray_file,
    "a damaged record": _damaged,
    "a file": _file,
    "a file of settings": _settings,
    "a directory with something in it": _not_empty,
    "an empty directory": _empty,
    "a full disk": _full_disk,
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The module's broker and what is in it: topics, and messages in one of them."""
    place = tmp_path_factory.mktemp("broker")
    store = place / "store"
    with _up(Scene(place, {"STORE": str(store)}), ["up", "--store", str(store)]) as ready:
        endpoints = dict(word.split("=", 1) for word in ready.split()[1:])
        with Producer(endpoints["produce"]) as producer:
            # those that mistakes create come after them, so what is told does not change
            for topic in ("audit", "billing", "carts", "clicks", "events", "logins", "payments"):
                producer.create_topic(topic, 1)
            producer.create_topic("orders", 4)
            sent = [
                producer.send("orders", b"%d" % n, queue=n % 4, keys="k1", tags="paid")
                for n in range(8)
            ]
            receipts = [each.result(60) for each in sent]
            producer.send("clicks", b"one").result(60)
        yield {
            "STORE": str(store),
            "PRODUCE": endpoints["produce"],
            "CONSUME": endpoints["consume"],
            "ID": receipts[0].message_id,
            "COMMAND": f"{sys.executable} -m penstock.cli.main",
        }


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, words: dict[str, str]) -> Path:
    """A store like the broker's, on which nothing runs."""
    place = tmp_path_factory.mktemp("stopped")
    scene = Scene(place, words)
    with _up(scene, ["up", "--store", str(place / "store")]):
        _penstock(scene, ["topics", "create", "orders", "--store", str(place / "store")])
        lines = [
            "produce",
            "orders",
            "--queue",
            "0",
            "--key",
            "k1",
            "--store",
            str(place / "store"),
        ]
        assert _penstock(scene, lines, stdin="one\ntwo\n").returncode == 0
    return place / "store"


@pytest.fixture
def scene(tmp_path: Path, words: dict[str, str], stopped: Path) -> Iterator[Scene]:
    shutil.copytree(stopped, tmp_path / "stopped")
    (tmp_path / "small").write_text("one\n")
    (tmp_path / "big").write_text("x" * 65_537)
    made = Scene(tmp_path, words)
    with made.undo:
        yield made


# --- making a mistake ---


def _environment(scene: Scene, more: Mapping[str, str] = {}) -> dict[str, str]:  # noqa: B006 - only read
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    settings = {f"PENSTOCK_BROKER_{key}": value for key, value in SETTINGS.items()}
    own = {"PENSTOCK_STORE": scene.words["STORE"], "TZ": "UTC", "COLUMNS": "200", "NO_COLOR": "1"}
    return {**kept, **settings, **own, **more}


def _penstock(
    scene: Scene, arguments: list[str], stdin: str = "", **more: Any
) -> subprocess.CompletedProcess[str]:
    return _ran(scene, [sys.executable, "-m", "penstock.cli.main", *arguments], stdin, **more)


def _ran(
    scene: Scene,
    command: list[str],
    stdin: str = "",
    stdout: str = "",
    environment: Mapping[str, str] = {},  # noqa: B006 - only read
) -> subprocess.CompletedProcess[str]:
    to = os.open(stdout, os.O_WRONLY) if stdout else subprocess.PIPE
    try:
        return subprocess.run(
            command,
            input=stdin,
            stdout=to,
            stderr=subprocess.PIPE,
            text=True,
            cwd=scene.place,
            env=_environment(scene, environment),
            timeout=TIMEOUT_S,
        )
    finally:
        if stdout:
            os.close(to)


class _up:
    """A broker that a step has started; it must stop in good order."""

    def __init__(
        self,
        scene: Scene,
        arguments: list[str],
        more: Mapping[str, str] = {},  # noqa: B006 - only read
    ) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=scene.place,
            env=_environment(scene, more),
        )

    def __enter__(self) -> str:
        """The line that says where it listens."""
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready.startswith("ready"):
            self._process.kill()
            raise AssertionError(self._process.communicate()[1])
        return ready

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        _, said = self._process.communicate(timeout=TIMEOUT_S)
        assert self._process.returncode == 0, said


def _make(scene: Scene, mistake: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    more = {key: mistake[key] for key in ("stdin", "stdout", "environment") if key in mistake}
    return _try(scene, mistake.get("run", ""), mistake.get("python", ""), **more)


def _try(scene: Scene, command: str, program: str, **more: Any) -> subprocess.CompletedProcess[str]:
    if program:
        return _ran(scene, [sys.executable, "-c", BEGINNING + scene.filled(program)], **more)
    command = scene.filled(command)
    if not command.startswith("penstock "):
        return _ran(scene, ["sh", "-c", command], **more)
    return _penstock(scene, shlex.split(command)[1:], **more)


def _said(done: subprocess.CompletedProcess[str], program: bool) -> str:
    """What the user reads: all of a command, the last line of a program that has failed."""
    lines = done.stderr.rstrip("\n").splitlines()
    return (lines[-1] if program and lines else "\n".join(lines)) or "(nothing)"


def _step(scene: Scene, mistake: dict[str, Any], said: str) -> None:
    """Take the next step; it must end well, and where it says so it is no mistake any more."""
    if "corrected" in mistake:
        assert mistake["told"].lower() in said.lower(), "what is told leads to the correction"
        program = "python" in mistake
        text = mistake["corrected"]
        more = {"stdin": mistake["stdin"]} if "stdin" in mistake else {}
        if text.startswith("penstock up "):
            with _up(scene, shlex.split(scene.filled(text))[1:]):
                return
        done = _try(scene, "" if program else text, text if program else "", **more)
        assert done.returncode == 0, done.stderr
        return
    assert mistake["next"] in said, "the command is in the text, word for word"
    words = shlex.split(scene.filled(mistake["next"]))
    with ExitStack() as running:
        if words[:2] == ["penstock", "up"]:
            running.enter_context(_up(scene, words[1:]))
        else:
            done = _try(scene, mistake["next"], "")
            assert done.returncode == 0, done.stderr
        if mistake.get("again"):
            done = _make(scene, mistake)
            assert done.returncode == 0, done.stderr


# --- the tests ---


def _block(mistake: dict[str, Any], code: int, said: str) -> str:
    made = f"$ {mistake['run']}" if "run" in mistake else f">>> {mistake['python'].strip()}"
    step = mistake.get("corrected") or mistake["next"]
    first = "".join(f"{key}={value} " for key, value in mistake.get("environment", {}).items())
    return f"## {mistake['name']}\n{first}{made}\n{said}\nexit code {code}\n--> {step.strip()}\n"


def _kept() -> dict[str, str]:
    text = SNAPSHOT.read_text() if SNAPSHOT.exists() else ""
    blocks = re.split(r"\n(?=## )", text)[1:]
    return {block.partition("\n")[0].removeprefix("## "): block.rstrip("\n") for block in blocks}


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, str]]:
    """What is to be kept of this run, when asked for."""
    blocks: dict[str, str] = {}
    yield blocks
    if WRITE:
        now = _kept() | blocks
        text = "\n\n".join(now[name].rstrip("\n") for name in NAMES if name in now)
        SNAPSHOT.write_text(f"{HEAD}\n{text}\n")


@pytest.mark.parametrize("mistake", MISTAKES, ids=NAMES)
def test_a_mistake_is_told_with_its_value_and_the_next_step_helps(
    scene: Scene, mistake: dict[str, Any], written: dict[str, str]
) -> None:
    if "prepare" in mistake:
        PREPARE[mistake["prepare"]](scene)
    done = _make(scene, mistake)
    said = scene.named(_said(done, "python" in mistake))
    written[mistake["name"]] = _block(mistake, done.returncode, said)
    assert done.returncode not in (0, -signal.SIGSEGV), said
    assert "Traceback" not in said and not re.search(r"\b(docs|configs)/", said), said
    assert mistake["happened"] in said, said
    assert mistake["value"] in said, said
    if not WRITE:
        assert written[mistake["name"]].rstrip("\n") == _kept()[mistake["name"]]
    _step(scene, mistake, said)


def test_the_page_has_every_mistake_once_in_order() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 60
    assert WRITE or list(_kept()) == NAMES
    for mistake in MISTAKES:
        assert mistake.keys() <= KEYS, mistake["name"]
        assert ("run" in mistake) != ("python" in mistake), mistake["name"]
        assert ("next" in mistake) != ("corrected" in mistake), mistake["name"]
