"""A broker and the offline commands on a store of other sizes than the defaults."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main
from penstock.client.sending.producer import Producer
from penstock.shared.layout import segment_name

pytestmark = pytest.mark.takes(25)

Run = Callable[..., "Ended"]
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": 65_536,
    "mapped_file_size_consume_queue_bytes": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 100,
}


DEFAULTS = dict.fromkeys(SIZES)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, `up`, which must fail, in another."""
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)

    def run(*arguments: object) -> Ended:
        words = [str(argument) for argument in arguments]
        if words[0] == "up":
            command = [sys.executable, "-m", "penstock.cli.main", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500)
            return Ended(done.returncode, done.stdout, done.stderr)
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def made(start_shared_broker: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store of these sizes with 400 messages, which tests copy."""
    place = tmp_path_factory.mktemp("made")
    broker = start_shared_broker(place=place, **SIZES)
    with Producer(broker.produce) as producer:
        sent = [producer.send("orders", b"x" * 500, keys=f"k{n}") for n in range(400)]
    assert len({each.result(0).queue_id for each in sent}) > 1
    broker.stop()
    return place / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A stopped store of these sizes with 400 messages."""
    return shutil.copytree(made, tmp_path / "store")


@pytest.mark.parametrize("remembers", [True, False])
def test_a_store_of_small_files_is_started_with_the_default_configuration(
    store: Path, penstock: Run, start_broker: Callable[..., Any], remembers: bool
) -> None:
    memory = store / "penstock" / "geometry.json"
    assert json.loads(memory.read_text()) == SIZES
    if not remembers:
        memory.unlink()  # as RocketMQ leaves one, or an older version
    ended = penstock("config", "show", "--store", store, "--origin", "-o", "json")
    shown = json.loads(ended.stdout)
    assert {key: shown[key] for key in SIZES} == {
        key: {"value": value, "origin": "store"} for key, value in SIZES.items()
    }
    broker = start_broker(place=store.parent, **DEFAULTS)
    with Producer(broker.produce) as producer:
        assert producer.send("orders", b"one more", keys="more").result(60)
    broker.stop()
    assert json.loads(memory.read_text()) == SIZES
    for key, body in (("k7", "x" * 57 + "..."), ("more", "one more")):
        found = penstock("query", "key", "orders", key, "--store", store)
        assert found.returncode == 0 and body in found.stdout, found.stderr
    ended = penstock("store", "verify", store, "-o", "json")
    report = json.loads(ended.stdout)
    assert (report["messages"], report["problems"], report["notes"]) == (401, [], [])


def test_a_size_that_is_asked_for_and_is_not_the_store_s_is_refused(
    store: Path, penstock: Run
) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}

    before = contents()
    key = "mapped_file_size_commit_log_bytes"
    for command in (("up", "--store", store), ("store", "repair", store, "--apply")):
        ended = penstock(*command, "--set", f"{key}=1073741824")
        assert ended.returncode == 2, ended.stderr
        assert key in ended.stderr and "has 65536, and 1073741824 is asked for" in ended.stderr
    assert contents() == before


def _segment(root: Path) -> Path:
    return root / "commitlog" / segment_name(65_536)


def _queue_file(root: Path) -> Path:
    return root / "consumequeue" / "orders" / "0" / segment_name(400)


def _index(root: Path) -> Path:
    return min((root / "index").iterdir())


def _geometry(root: Path) -> Path:
    return root / "penstock" / "geometry.json"


def _link(path: Path) -> None:
    path.rename(path.parents[2] / "moved")
    path.symlink_to(path.parents[2] / "moved")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _break_topics(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("x")


OTHER = json.dumps({**SIZES, "mapped_file_size_commit_log_bytes": 32_768})
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a segment is cut short": lambda root: os.truncate(_segment(root), 30_000),
    "a segment has grown": lambda root: os.truncate(_segment(root), 70_000),
    "a segment is missing": lambda root: _segment(root).unlink(),
    "a link is a segment": lambda root: _link(_segment(root)),
    "a strange name": lambda root: (root / "commitlog" / segment_name(123)).write_bytes(b"x"),
    "a stray file": lambda root: (root / "commitlog" / "0").write_bytes(b"x"),
    "a queue's file is cut short": lambda root: os.truncate(_queue_file(root), 100),
    "a queue's file is missing": lambda root: _queue_file(root).unlink(),
    "an index file is cut short": lambda root: os.truncate(_index(root), 100),
    "an index file is empty": lambda root: os.truncate(_index(root), 0),
    "a directory is an index file": lambda root: _directory(_index(root)),
    "a directory is the checkpoint": lambda root: _directory(root / "checkpoint"),
    "sizes of another store": lambda root: _geometry(root).write_text(OTHER),
    "sizes that are none": lambda root: _geometry(root).write_text("{"),
    "topics that are none": _break_topics,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_command_that_an_error_names_mends_what_it_is_about(
    store: Path, penstock: Run, start_broker: Callable[..., Any], damage: str
) -> None:
    DAMAGES[damage](store)
    refused = penstock("up", "--store", store, "--port", "auto")
    assert refused.returncode == 5, refused.stderr
    found = re.search(r"(?:penstock store (?:repair|rebuild)|mv|rm) /.*$", refused.stderr.strip())
    assert found, refused.stderr
    for command in re.sub(r" \(without.*", "", found[0]).split(" && "):
        words = shlex.split(command)
        if words[0] != "penstock":
            assert subprocess.run(words, timeout=60).returncode == 0
        elif words[2] == "rebuild":
            assert penstock(*words[1:]).returncode == 0
        else:
            # what it would do is what it does
            assert words[-1] == "--apply" and penstock(*words[1:-1]).returncode == 1
            assert penstock(*words[1:]).returncode == 0
    start_broker(place=store.parent, **DEFAULTS).stop()
    checked = json.loads(penstock("store", "verify", store, "-o", "json").stdout)
    assert (checked["problems"], checked["messages"] >= 399) == ([], True)
    assert penstock("store", "repair", store).returncode == 0


SEEN: dict[str, Callable[[Path], object]] = {
    "a queue begins too late": lambda root: _queue_file(root).with_name(segment_name(0)).unlink(),
    "a queue's entry is another": lambda root: _write(_queue_file(root), 40, b"xx"),
    "an index item is another": lambda root: _write(_index(root), 400, b"xx"),
    "both": lambda root: (
        _write(_queue_file(root), 40, b"xx"),
        _write(_index(root), 400, b"xx"),
    ),
    "a record is damaged": lambda root: _write(_segment(root), 30_000, b"yy"),
    "the checkpoint is ahead": lambda root: _write(root / "checkpoint", 0, b"\x7f"),
    "the checkpoint is short": lambda root: os.truncate(root / "checkpoint", 10),
}


def _write(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize("damage", SEEN)
def test_the_command_that_verify_names_mends_what_it_found(
    store: Path, penstock: Run, damage: str
) -> None:
    SEEN[damage](store)
    checked = penstock("store", "verify", store, "-o", "json")
    assert checked.returncode in (1, 5)
    (command,) = json.loads(checked.stdout)["advice"]
    assert command in penstock("store", "verify", store).stdout
    words = shlex.split(command)
    done = penstock(*words[1:]) if words[0] == "penstock" else subprocess.run(words, timeout=60)
    assert done.returncode == 0
    assert penstock("store", "verify", store).returncode == 0


def test_what_is_damaged_all_over_is_told_in_few_lines(store: Path, penstock: Run) -> None:
    for segment in (store / "commitlog").iterdir():
        raw = segment.read_bytes()
        place, number = raw.find(b"x" * 500), 0
        with segment.open("r+b") as file:
            while place >= 0:
                if number % 2:
                    file.seek(place)
                    file.write(b"y")
                place, number = raw.find(b"x" * 500, place + 500), number + 1
    inspected = penstock("store", "inspect", store, "-o", "json")
    assert inspected.returncode == 5 and len(inspected.stdout.splitlines()) > 150
    lines = inspected.stderr.splitlines()
    assert len(lines) == 101 and re.fullmatch(r"damaged: \d+ more", lines[-1])
    planned = penstock("store", "repair", store)
    assert planned.returncode == 1 and re.search(r"^and \d+ more$", planned.stdout, re.MULTILINE)
    assert len(planned.stdout.splitlines()) < 320
