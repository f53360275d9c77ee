"""`tail`, templates, selections, forms of tables, `cheat` and `debug-bundle` on a real broker."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.cheat import CHEATS
from penstock.cli.main import penstock as command
from penstock.client import GroupConsumer, Producer

COMMAND = [sys.executable, "-m", "penstock.cli.main"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(broker: Any) -> Run:
    with Producer(broker.produce) as producer:
        producer.create_topic("seen", 2)
        for number in range(20):
            body = {"number": number, "lines": [{"price": 5}, {"price": number}]}
            producer.send("seen", body, keys=f"k{number}").result(60)
        producer.create_topic("mixed", 1)
        producer.send_batch("mixed", [b"no json", b'{"a":"x"}', b"[1]"]).result(60)

    def ask(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *words],
            env={**os.environ, "PENSTOCK_STORE": str(broker.store)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return ask


def test_tail_shows_the_newest_of_all_queues_in_their_order(run: Run) -> None:
    shown = run("tail", "seen", "-n", "5", "--no-follow", "--select", ".number").stdout
    assert shown.split() == ["15", "16", "17", "18", "19"]
    assert run("tail", "seen", "-n", "0", "--no-follow").stdout == ""
    everything = run("tail", "seen", "-n", "1000", "--no-follow", "--template", r"%k\n").stdout
    assert everything.split() == [f"k{number}" for number in range(20)]


@pytest.mark.parametrize("command", [["tail"], ["tail", "-f"], ["consume", "-f"]])
def test_tail_goes_on_with_what_comes_and_f_is_to_follow(broker: Any, command: list[str]) -> None:
    topic = "-".join(["coming", *command]).replace("--", "-")
    with Producer(broker.produce) as producer:
        producer.create_topic(topic, 1)
        producer.send(topic, b"old").result(60)
        words = [*command, topic, "--endpoint", broker.consume]
        with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "old\n"
            producer.send(topic, b"new").result(60)
            assert following.stdout.readline() == "new\n"
            following.terminate()


def test_consume_prints_by_a_template_and_what_a_path_finds(run: Run) -> None:
    one = ("consume", "seen", "--queue", "0", "--max", "1")
    shown = run(*one, "--template", r"%t %p/%o %k %s\n", "--select", ".lines[].price").stdout
    key = run(*one, "--template", "%k").stdout
    assert shown == f"seen 0/0 {key} 5\nseen 0/0 {key} {key[1:]}\n"
    assert run("consume", "mixed", "--select", ".a", code=1).stdout == '"x"\nnull\n'
    told = run("consume", "mixed", "--select", ".a", "-o", "plain", code=1)
    assert told.stdout == "x\nnull\n" and "no JSON to select from" in told.stderr
    assert "no -o json" in run("consume", "seen", "--select", ".a", "-o", "json", code=2).stderr
    for wrong in (("--template", "%z"), ("--select", "a")):
        assert "INVALID_ARGUMENT" in run("consume", "seen", *wrong, code=2).stderr


def test_rows_are_printed_as_json_lines_csv_and_plain(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("consume", "mixed", "-o", "csv").stdout)))
    assert [row["body"] for row in rows] == ["no json", '{"a":"x"}', "[1]"]
    assert (
        run("consume", "seen", "-o", "jsonl").stdout == run("consume", "seen", "-o", "json").stdout
    )
    for words in (("topics", "ls"), ("config", "show"), ("groups", "ls"), ("context", "ls")):
        assert run(*words, "-o", "jsonl").stdout == run(*words, "-o", "json").stdout
    topics = run("topics", "ls", "-o", "csv").stdout.splitlines()
    assert topics[0] == "topic,read queues,write queues,perm" and "seen,2,2,rw" in topics
    assert "seen\t2\t2\trw" in run("topics", "ls", "-o", "plain").stdout.splitlines()
    told = run("consume", "nowhere", "-o", "jsonl", code=1).stderr
    assert json.loads(told)["error"]["status"] == "TOPIC_NOT_EXIST"


def rows_of(run: Run, *words: str) -> list[dict[str, str]]:
    """The rows that a command lists: as csv, and the same cells as plain."""
    rows = list(csv.DictReader(io.StringIO(run(*words, "-o", "csv").stdout)))
    assert not any(None in row or None in row.values() for row in rows), "lines beside the rows"
    plain = run(*words, "-o", "plain").stdout.splitlines()
    assert [line.count("\t") + 1 for line in plain] == [len(row) for row in rows]
    return rows


def test_what_lists_rows_has_them_alone_and_whole_in_csv_and_plain(broker: Any, run: Run) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("rows", 2)
        body = "long " * 40
        receipt = producer.send("rows", body.encode(), keys="a-key", queue=1).result(60)
    store = str(broker.store)
    assert [row["queue"] for row in rows_of(run, "topics", "describe", "rows")] == ["0", "1"]
    for question in (("key", "rows", "a-key"), ("id", receipt.message_id)):
        assert [row["body"] for row in rows_of(run, "query", *question)] == [body]
    assert run("query", "key", "rows", "none", "-o", "plain", code=1).stdout == ""
    inspected = rows_of(run, "store", "inspect", store, "--topic", "rows", "--body")
    assert [(row["queue"], row["body"]) for row in inspected] == [("1", body)]
    assert len(rows_of(run, "store", "inspect", store, "--topic", "seen")) == 20
    assert {"writer", "reader"} <= {row["actor"] for row in rows_of(run, "status")}
    assert rows_of(run, "recovery", "show") == []


def test_members_and_offsets_of_a_group_are_rows(broker: Any, run: Run) -> None:
    with GroupConsumer(store=broker.store, group="rows", topics="seen", start="first") as member:
        until = time.monotonic() + 60
        while not member.poll(1):
            assert time.monotonic() < until
        members = rows_of(run, "groups", "describe", "rows")
        assert [row["subscribes to"] for row in members] == ["seen, %RETRY%rows"]
        lags = rows_of(run, "groups", "lag", "rows")
        assert [re.fullmatch(r"[0-9]+|unknown", row["bytes"]) is None for row in lags] == [
            False
        ] * 2
    moved = rows_of(run, "groups", "reset", "rows", "seen", "--to", "earliest", "--dry-run")
    assert [row["after"] for row in moved] == ["0", "0"]


def test_the_commands_of_cheat_exist_and_name_a_topic_that_there_is(run: Run) -> None:
    shown = run("cheat", "read").stdout
    assert re.search("penstock tail (coming-[a-z-]+|mixed|seen)\n", shown) and "TOPIC" not in shown
    rows = [json.loads(line) for line in run("cheat", "-o", "json").stdout.splitlines()]
    assert {row["task"] for row in rows} == CHEATS.keys()
    for row in rows:
        words = shlex.split(row["command"].partition(" | ")[2] or row["command"].partition(" <")[0])
        words, found = words[1:], command
        while isinstance(found, click.Group):
            inner = found.get_command(click.Context(found), words[0])
            assert inner is not None, row
            found, words = inner, words[1:]
        options = {each for option in found.params for each in option.opts}
        assert {word for word in words if word.startswith("--")} <= options, row


def test_a_bundle_has_all_but_messages_and_secrets(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "help.tar.gz"
    told = json.loads(run("debug-bundle", "--to", str(file), "-o", "json").stdout)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as bundle:
        parts = {name.rpartition("/")[2]: bundle.extractfile(name) for name in bundle.getnames()}
        read = {name: part.read() for name, part in parts.items() if part is not None}
    # a broker in the foreground has no log of its own
    assert read.keys() == {*told["parts"], "missing.txt"} and b"log.txt" in read["missing.txt"]
    assert {"versions.json", "status.json", "config.json", "stacks.txt"} <= read.keys()
    assert json.loads(read["status.json"])["actors"] and b"=== writer, pid" in read["stacks.txt"]
    # what it was told by its own file, and what nobody who looks was told
    assert json.loads(read["config.json"])["produce_port"] == {
        "value": 0,
        "origin": "the broker that runs",
    }
    assert not [name for name, raw in read.items() if b"no json" in raw or b"price" in raw]


def test_a_bundle_of_a_stopped_store_says_what_it_could_not_have(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [*COMMAND, "debug-bundle", "--store", "store", "-o", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert (tmp_path / told["file"]).is_file()
    assert any(each.startswith("status.json: [CONNECT_FAILED]") for each in told["missing"])
