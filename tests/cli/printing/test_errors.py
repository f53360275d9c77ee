"""How every command says what went wrong: one line, or one JSON object; and what was meant."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.main import penstock
from penstock.cli.printing.suggestions import OPTIONS, WORDS

Command = Callable[..., subprocess.CompletedProcess[str]]
# what the compiled loops and their twins take
LOOPS = {"msgspec", "isal", "typing_extensions"}


def _commands(
    command: click.Command = penstock, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name))


ALL = dict(_commands())
LEAVES = [path for path, command in ALL.items() if not isinstance(command, click.Group)]


def _error(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert "Traceback" not in done.stderr and done.stdout == ""
    (line,) = done.stderr.splitlines()
    found = json.loads(line)["error"]
    assert isinstance(found, dict) and found["exit_code"] == done.returncode
    return found


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (["status", "--store", "nowhere"], 3, "CONNECT_FAILED"),
        (["consume", "t", "--store", "nowhere"], 3, "CONNECT_FAILED"),
        (["produce", "t", "/no/such/file"], 2, "INVALID_ARGUMENT"),
        (["produce"], 2, "INVALID_ARGUMENT"),
        (["nonsense"], 2, "INVALID_ARGUMENT"),
        (["topics", "nonsense"], 2, "INVALID_ARGUMENT"),
        (["topics", "ls", "--nonsense"], 2, "INVALID_ARGUMENT"),
        (["topics"], 2, "INVALID_ARGUMENT"),
        (["clean", "--store"], 2, "INVALID_ARGUMENT"),
        (["config", "show", "--set", "nonsense=1"], 2, "CONFIG_ERROR"),
        (["chaos", "--rounds", "0"], 2, "INVALID_ARGUMENT"),
        (["store", "inspect", ".", "--offset", "1"], 2, "INVALID_ARGUMENT"),
    ],
)
def test_with_o_json_an_error_is_one_object(
    command: Command, arguments: list[str], code: int, status: str
) -> None:
    # wherever the option stands, and however it is written; the rest may be beyond parsing
    for option in (["-o", "json"], ["--output=json"], ["-ojson"]):
        if arguments == ["clean", "--store"]:
            words = [arguments[0], *option, arguments[1]]
        else:
            words = [*arguments, *option]
        found = _error(command(*words))
        assert (found["status"], found["exit_code"]) == (status, code)
        assert set(found) == {"status", "what", "value", "hint", "exit_code"}
        assert found["what"] and found["hint"]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_a_wrong_option_is_one_line_that_names_the_help(
    command: Command, path: tuple[str, ...]
) -> None:
    done = command(*path, "--no-such-option")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("error: [INVALID_ARGUMENT] there is no option of this name: --no-such")
    assert line.endswith(f"ee: penstock {' '.join(path)} --help")


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_help_shows_no_limit_that_is_none_and_no_table_as_running_text(
    path: tuple[str, ...],
) -> None:
    command = ALL[path]
    with click.Context(command, info_name=" ".join(("penstock", *path))) as context:
        shown = command.get_help(context)
    assert re.search(r"=None|None<", shown) is None
    # columns that were filled up like a paragraph have their gaps in the middle of a line
    broken = r"^ {2}\S.*[a-z] {3,}[a-z].* {3,}[a-z]"
    assert re.search(broken, shown, re.M) is None


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("subscribe", "penstock tail"),
        ("consumes", "penstock consume"),
        ("prodcue", "penstock produce"),
        ("publish", "penstock produce"),
        ("START", "penstock up"),
        ("ls", "penstock topics ls"),
        ("topics list", "penstock topics ls"),
        ("store check", "penstock store verify"),
        ("stop", "Ctrl-C"),
        ("query keys", "penstock query key"),
        ("consume orders -o", "an option has no value: -o"),
        ("consume orders --folow", "did you mean --follow?"),
        ("consume orders --count 3", "did you mean --max?"),
        ("produce -t orders", "the argument TOPIC"),
        ("status --dir x", "did you mean --store?"),
        ("frobnicate", "see: penstock --help"),
    ],
)
def test_what_was_meant_is_said(command: Command, words: str, meant: str) -> None:
    done = command(*words.split())
    assert done.returncode == 2 and meant in done.stderr.replace("Did you", "did you").replace(
        "See:", "see:"
    )
    assert len(done.stderr.splitlines()) == 1


def test_every_suggestion_is_a_command_or_an_option_that_there_is() -> None:
    for group, words in WORDS.items():
        for word in words.values():
            parts = [*group.split()[1:], *word.split()]
            path = tuple(part for part in parts if not part.startswith("-"))
            assert path in ALL, f"{group} {word}"
            options = {option for each in ALL[path].params for option in each.opts} | {"--help"}
            assert {part for part in parts if part.startswith("-")} <= options
        there = {path[-1] for path in ALL if path[:-1] == tuple(group.split()[1:]) and path}
        assert not set(words) & there
    every = {option for command in ALL.values() for each in command.params for option in each.opts}
    assert set(OPTIONS.values()) - {"TOPIC"} <= every


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_help_has_examples_that_can_be_run(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("README.md", "photo.jpg", "orders.jsonl", "broker.toml"):
        (tmp_path / name).touch()
    for name in ("store", "archive", "DIR"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    text = ALL[path].get_help(click.Context(ALL[path], info_name=" ".join(path)))
    _, _, examples = text.partition("Examples:\n")
    found = [line for line in examples.splitlines() if f"penstock {' '.join(path)}" in line]
    assert found, text
    for line in found:
        # after wide gaps there is an explanation
        for part in re.split(r" {2,}", line.strip())[0].split(" | "):
            words = shlex.split(part)
            words = words[: words.index(">")] if ">" in words else words
            words = [word.replace("~", str(tmp_path)) for word in words]
            if "penstock" not in words:
                continue
            rest = words[words.index("penstock") + 1 :]
            assert tuple(rest[: len(path)]) == path
            ALL[path].make_context(" ".join(path), rest[len(path) :]).close()


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_is_explained_and_has_one_name_for_one_thing(path: tuple[str, ...]) -> None:
    options = [each for each in ALL[path].params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []
    for each in options:
        if each.name == "timeout":
            assert each.help is not None and each.help.startswith(
                "Seconds that the broker may be silent"
            )


def test_what_the_terminal_interrupts_ends_with_130_and_one_line(
    broker: object, terminal: Callable[..., object]
) -> None:
    store = broker.store
    shown = terminal("consume", "nothing", "--follow", "-o", "table", "--store", store)
    shown.show(until="stored")
    shown.type(b"\x03")
    # Python ends by the signal itself where that has met a string that it was compiling, as named
    # tuples do while modules are imported; a shell says 130 of both
    assert shown.end() in (130, -signal.SIGINT)
    assert "interrupted" in shown.text and "Traceback" not in shown.text


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [(["--help"], set()), (["version"], LOOPS), (["status"], LOOPS)],
    ids=["help", "version", "status"],
)
def test_a_command_that_is_typed_often_imports_few_packages(
    broker: Any, arguments: list[str], packages: set[str]
) -> None:
    program = (
        "import sys; before = set(sys.modules)\nfrom penstock.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(*(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PENSTOCK_STORE": str(broker.store)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = set(done.stderr.split())
    foreign = {each.partition(".")[0] for each in found} - sys.stdlib_module_names
    assert {each for each in foreign if "cython" not in each} <= {"click", "penstock"} | packages
    if arguments == ["--help"]:
        own = {each for each in found if each.startswith("penstock.")}
        named = {each for each in own if each.startswith("penstock.cli.")} | {"penstock.cli"}
        assert own - named == {"penstock.shared", "penstock.shared.errors"} and len(named) < 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "store"], "there are more arguments than the command takes: store. See:"),
        (["up", "--set"], "an option has no value: --set. Write it behind the option"),
        (
            ["topics", "create", "t", "--queues", "x"],
            "--queues cannot be used: 'x' is no whole num",
        ),
        (["consume", "t", "--timeout", "5x"], "--timeout cannot be used: '5x' is no number. See:"),
    ],
)
def test_what_click_says_is_said_as_everything_else(
    command: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str], said: str
) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and said in done.stderr
