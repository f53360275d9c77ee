"""`penstock context`: what is saved is what every command uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class Shell:
    """A user with a directory for settings and one to work in."""

    def __init__(self, place: Path) -> None:
        (place / "work").mkdir()
        self.place = place
        own = {"XDG_CONFIG_HOME": str(place / "config"), "PENSTOCK_CONTEXT": ""}
        self.environment = {**os.environ, **own}

    def run(
        self, *words: str, code: int = 0, given: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *words],
            cwd=self.place / "work",
            env=self.environment,
            input=given.decode(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_every_command_uses_the_context_whichever_endpoint_it_names(
    shell: Shell, broker: Any
) -> None:
    shell.run("context", "add", "shop", "--endpoint", broker.consume, "--use")
    shell.run("topics", "create", "goods")
    shell.run("produce", "goods", "--wait", "60", given=b"one\n")
    assert shell.run("consume", "goods", "-o", "plain").stdout == "one\n"
    assert '"goods"' in shell.run("topics", "ls", "-o", "json").stdout
    shell.run("groups", "ls")
    told = shell.run("status", code=2).stderr
    assert "this command looks at a store's files" in told and "context shop" in told
    shell.run("context", "add", "shop", "--store", str(broker.store))
    assert json.loads(shell.run("status", "-o", "json").stdout)["store"] == str(broker.store)


def test_up_starts_the_broker_that_the_other_commands_would_look_for(shell: Shell) -> None:
    shell.run("context", "add", "here", "--store", "elsewhere", "--use")
    told = shell.run("up", "--daemon", "--port", "auto")
    try:
        there = str(shell.place / "work" / "elsewhere")
        assert f"the store is {there}, by context here" in told.stderr
        assert json.loads(shell.run("status", "-o", "json").stdout)["store"] == there
    finally:
        shell.run("down")
    assert not (shell.place / "work" / "store").exists()


def test_contexts_are_listed_chosen_and_forgotten(shell: Shell) -> None:
    assert shell.run("context", "ls", "-o", "json").stdout == ""
    shell.run("context", "add", "b", "--endpoint", "tcp://127.0.0.1:9")
    shell.run("context", "add", "a", "--store", "s")
    shell.run("context", "use", "a")
    rows = [
        json.loads(line) for line in shell.run("context", "ls", "-o", "json").stdout.splitlines()
    ]
    there = str(shell.place / "work" / "s")
    assert [(row["name"], row["current"], row["store"]) for row in rows] == [
        ("a", True, there),
        ("b", False, ""),
    ]
    shown = json.loads(shell.run("context", "show", "-o", "json").stdout)
    assert shown == {"endpoint": "", "store": there, "origin": "context a"}
    shell.run("context", "rm", "a")
    assert "context" not in json.loads(shell.run("context", "show", "-o", "json").stdout)["origin"]
    shell.run("context", "use", "b")
    shell.run("context", "use", "none")
    assert "*" not in shell.run("context", "ls").stdout
    for words in (("use", "c"), ("rm", "c"), ("add", "no ne", "--store", "s"), ("add", "c")):
        assert shell.run("context", *words, code=2).stderr.startswith("error: [INVALID_ARGUMENT]")
