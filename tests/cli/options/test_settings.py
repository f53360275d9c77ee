"""`penstock config show`, and settings on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from penstock.shared.config import Config

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def penstock() -> Run:
    def run(*arguments: str) -> CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def test_every_key_is_shown_with_its_value_and_its_origin(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('delete_when = "05"\n')
    monkeypatch.setenv("PENSTOCK_BROKER_MAX_QUEUES", "99")
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    ended = penstock(
        "config", "show", "--config", str(file), "--set", "file_reserved_time_h=1", "--origin",
        "-o", "json",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout)
    assert list(shown) == list(Config.__struct_fields__)
    assert shown["delete_when"] == {"value": "05", "origin": f"file {file}"}
    assert shown["max_queues"] == {"value": 99, "origin": "PENSTOCK_BROKER_MAX_QUEUES"}
    assert shown["file_reserved_time_h"] == {"value": 1, "origin": "flag"}
    assert shown["produce_port"] == {"value": 20911, "origin": "default"}


def test_some_keys_are_shown_as_a_table(penstock: Run) -> None:
    ended = penstock("config", "show", "delete_when", "max_queues", "--set", "max_queues=7")
    assert ended.returncode == 0, ended.stderr
    assert [line.split() for line in ended.stdout.splitlines()] == [
        ["key", "value"],
        ["delete_when", "04"],
        ["max_queues", "7"],
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["delete_wen"], "Did you mean delete_when?"),
        (["--set", "delete_wen=1"], "Did you mean delete_when?"),
        (["--set", "delete_when"], "key=value"),
        (["--set", "delete_when=25"], "hours from 00 to 23"),
        (["--config", "/nowhere.toml"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_exit_code_2(
    penstock: Run, arguments: list[str], said: str
) -> None:
    ended = penstock("config", "show", *arguments)
    assert ended.returncode == 2 and said in ended.stderr and "Traceback" not in ended.stderr
