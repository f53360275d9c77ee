"""The documents are run: their code, their commands, and their tables against the code's own."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.actors.gateway.processors import PROCESSORS
from penstock.actors.monitor.overview import PIPELINE
from penstock.bench.loads.stack import Stack, running_stack
from penstock.cli.demo.command import FLIGHTS
from penstock.cli.main import penstock
from penstock.client import GroupConsumer
from penstock.shared.config import Config
from penstock.shared.config_sources import load_config
from penstock.shared.memory.positions import POSITIONS, STAGES
from penstock.shared.memory.roster import ACTORS, ROSTER
from penstock.spark.reading.options import Options
from penstock.spark.sink.columns import COLUMNS as SINK_COLUMNS
from penstock.spark.sink.options import SinkOptions
from penstock.spark.source import COLUMNS

pytestmark = pytest.mark.takes(190)

ROOT = Path(__file__).parent.parent
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
DOCUMENTS = [*(ROOT / name for name in BESIDE), *sorted((ROOT / "docs").glob("*.md"))]
CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))
SMALL_FILES = (
    "mapped_file_size_commit_log_bytes = 16_777_216",
    "mapped_file_size_consume_queue_bytes = 20_000",
)
# these do not end by themselves, need another terminal, or have their own tests
NOT_RUN = re.compile(
    r"^make |^pip |penstock up(?! --daemon)|--follow|penstock demo|penstock (bench|chaos)| ~/store"
)
# a second broker of a document would find the ports of the first taken
PORTS = [name for name in Config.__struct_fields__ if name.endswith("_port")]
ANY_PORTS = {f"PENSTOCK_BROKER_{name.upper()}": "0" for name in PORTS}


def _blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.M | re.S)


def _shell_lines(document: Path) -> list[str]:
    return [line for block in _blocks(document, "sh") for line in block.splitlines()]


def _table(document: Path, first_column: str) -> list[list[str]]:
    """The rows of the table whose heading begins so, without backticks."""
    lines = iter(document.read_text().splitlines())
    rows = []
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            next(lines)
            break
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("`", "").strip("|").split("|")])
    return rows


def _resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `penstock WORDS` runs, and its arguments."""
    command: click.Command = penstock
    while isinstance(command, click.Group):
        assert words, f"{command.name} needs a command"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command penstock {words[0]}"
        command, words = found, words[1:]
    return command, words


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A broker whose store is ./store for what runs in its directory; one order is in it."""
    with running_stack(None, SMALL_FILES) as running:
        shutil.copy(ROOT / "README.md", running.store.parent)
        _run(running, ["sh", "-c", "echo '{\"id\": 0}' | penstock produce orders --store ./store"])
        yield running
        # of a document that has failed half way
        for log in running.store.parent.glob("*/penstock/broker.log"):
            store = str(log.parent.parent)
            down = [sys.executable, "-m", "penstock.cli.main", "down", "--store", store]
            subprocess.run(down, capture_output=True)


@pytest.fixture(scope="module")
def with_spark(stack: Stack) -> Iterator[Callable[[str], str]]:
    """Runs Python that uses Spark; each start of Spark takes as long as many a document."""
    command = [sys.executable, str(ROOT / "tests" / "spark" / "snippets.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **_place(stack)) as process:

        def run(code: str) -> str:
            print(json.dumps(code), file=process.stdin, flush=True)
            assert process.stdout is not None
            printed, error = json.loads(process.stdout.readline())
            assert not error, f"{code}\n{printed}\n{error}"
            return str(printed)

        yield run


def _place(stack: Stack) -> dict[str, Any]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"cwd": stack.store.parent, "env": {**os.environ, "PATH": path, **ANY_PORTS}}


def _run(stack: Stack, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **_place(stack))
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def documents_with(language: str) -> pytest.MarkDecorator:
    """Run the test for each document that has blocks of this language."""
    found = [document for document in [*DOCUMENTS, *CHINESE] if _blocks(document, language)]
    # the Chinese tutorial is compared with the English one below
    found = [each for each in found if str(each.relative_to(ROOT)) != "docs/zh/tutorial.md"]
    names = [str(each.relative_to(ROOT)) for each in found]
    return pytest.mark.parametrize("document", found, ids=names)


@documents_with("python")
def test_the_python_in_a_document_runs_against_a_broker(
    document: Path, stack: Stack, with_spark: Callable[[str], str]
) -> None:
    code = "\n".join(_blocks(document, "python"))
    code = code.replace("tcp://127.0.0.1:20911", stack.produce)
    code = code.replace("tcp://127.0.0.1:20912", stack.consume)
    assert with_spark(code) if "spark" in code else _run(stack, [sys.executable, "-c", code])


@documents_with("sh")
def test_the_commands_in_a_document_run_as_they_are_printed(document: Path, stack: Stack) -> None:
    lines = [line for line in _shell_lines(document) if not NOT_RUN.search(line)]
    assert lines
    files = re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', document.read_text(), re.M | re.S)
    for name, text in files:
        (stack.store.parent / name).write_text(text)
    for line in lines:
        _run(stack, ["sh", "-c", line])


@documents_with("sh")
def test_every_command_in_a_document_exists_with_its_options(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("store", "first", "backup"):
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").touch()
    for line in _shell_lines(document):
        for part in re.split(r"\||&&", line.replace("~/", "./")):
            words = shlex.split(part, comments=True)
            if words[0] == "penstock":
                command, arguments = _resolve(words[1:])
                command.make_context(command.name, arguments).close()
    _resolve_inline(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_sentence_exists_with_its_options(document: Path) -> None:
    _resolve_inline(document)


def _resolve_inline(document: Path) -> None:
    """The command and the options of each `penstock ...`, and not its arguments, which may lack."""
    for inline in re.findall(r"`penstock ([a-z][^`]*)`", document.read_text()):
        words = re.split(r"\s", inline)
        commands = list(takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words))
        command = _command(commands)
        options = {
            option for each in command.params for option in (*each.opts, *each.secondary_opts)
        }
        named = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
        assert named <= options | {"--help"}, inline


def _command(words: list[str]) -> click.Command:
    """What the first of these words lead to; a group where they end with one."""
    command: click.Command = penstock
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"no command penstock {' '.join(words)}"
        command = found
    return command


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"\bmake ([a-z]+)\b", " ".join(_shell_lines(ROOT / "README.md")))
    named += re.findall(r"(?:^|`)make ([a-z]+)\b", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(named) > 6 and set(named) <= targets


def test_every_path_that_a_document_names_is_there() -> None:
    """Of the tree, or of what is made in it."""
    folders = "actors|bench|chaos|cli|client|configs|docs|maintenance|remoting|shared|spark|tests"
    path = re.compile(rf"`((?:{folders})/[\w./-]+)(?:::\w+)?`")
    wrong = [
        f"{document.name}: {named}"
        for document in DOCUMENTS
        for named in path.findall(document.read_text())
        if not (ROOT / named).exists() and named != "actors/NAME.py"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *CHINESE], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_shows_the_last_line_of_the_demo() -> None:
    assert f"demo ok: {FLIGHTS} published, {FLIGHTS} consumed" in (ROOT / "README.md").read_text()


def test_the_architecture_names_exactly_the_positions_there_are() -> None:
    rows = _table(ROOT / "docs" / "architecture.md", "position")
    assert rows == [[cell.replace("`", "") for cell in position] for position in POSITIONS]


def test_the_picture_of_the_pipeline_has_every_actor_and_each_stages_position() -> None:
    first, second = (_picture(ROOT / name) for name in ("README.md", "docs/architecture.md"))
    assert first == second
    boxes = re.findall(r"\| (\w+) \|", first)
    assert sorted(boxes) == sorted(ACTORS)
    assert boxes[: len(PIPELINE)] == list(PIPELINE), "joined, and in the order of a message"
    lines = first.splitlines()
    (row,) = (number for number, line in enumerate(lines) if "| writer |" in line)
    assert lines[row + 2].split() == list(STAGES.values()), "below its stage"


def _picture(page: Path) -> str:
    """How a page shows the way from a producer to a consumer."""
    found = re.search(r"^```text\n( producer .*?)^```$", page.read_text(), re.M | re.S)
    assert found
    return found[1]


def test_the_architecture_names_exactly_the_doorbells_there_are() -> None:
    rows = _table(ROOT / "docs" / "architecture.md", "actor")
    rings = {name: () if whom == "nobody" else tuple(whom.split(", ")) for name, whom, _ in rows}
    assert rings == {row.name: row.notifies for row in ROSTER}


def test_the_head_of_each_actor_names_its_positions_and_whom_it_notifies() -> None:
    for row in ROSTER:
        folder = ROOT / "actors" / row.name
        path = folder / "actor.py" if folder.is_dir() else folder.with_suffix(".py")
        head = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        sections = dict(re.findall(r"^(\w+):(.*?)(?=^\w[\w ]*:|\Z)", head, re.M | re.S))
        own = {position.name for position in POSITIONS if position.owner == row.name}
        assert set(re.findall(r"`(\w+)`", sections["Owns"])) == own, row.name
        # the coordinator's head says what it says to whom; it notifies nobody
        said = re.findall(r"\w+", sections.get("Notifies", ""))
        assert {word for word in said if word in ACTORS} == set(row.notifies), row.name


def test_every_question_of_the_map_is_answered_by_one_file_that_is_there() -> None:
    rows = _table(ROOT / "docs" / "map.md", "question")
    answers = [answer for _, answer in rows]
    assert len(rows) == len(set(answers)) >= 30
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []


def test_the_map_shows_the_rooms_with_their_own_sentences() -> None:
    rows = _table(ROOT / "docs" / "map.md", "room")
    shown = {name: (text, set(re.findall(r"\w+", may))) for name, text, may in rows}
    heads = {}
    for path in (ROOT / "shared").glob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        sentence = re.search(r"May import (.+?)\.(?:\s|$)", text, re.S)
        named = set(re.findall(r"`(\w+)`", sentence[1] if sentence else ""))
        heads[path.parent.name] = (text.splitlines()[0], named or shown[path.parent.name][1])
    assert shown == heads


def test_the_map_shows_the_rooms_of_clients_and_commands_with_their_own_sentences() -> None:
    shown = dict(_table(ROOT / "docs" / "map.md", "room of"))
    heads = {
        f"{package}/{path.parent.name}": _first_sentence(path)
        for package in ("client", "cli")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    # cells are read without the marks of code
    assert {name: text.replace("`", "") for name, text in shown.items()} == {
        name: text.replace("`", "") for name, text in heads.items()
    }


def _first_sentence(path: Path) -> str:
    head = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return " ".join(head.split("\n\n")[0].split())


def test_the_map_has_every_folder() -> None:
    named = {row[0].removesuffix(".py") for row in _table(ROOT / "docs" / "map.md", "folder")}
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert named == folders | {"supervisor"}


def test_the_spark_document_names_exactly_the_columns_and_options_there_are() -> None:
    document = ROOT / "docs" / "spark.md"
    columns = {name: kind for name, kind, _ in _table(document, "column")}
    assert columns == {name: kind.simpleString() for name, kind in COLUMNS.items()}
    options = [row[0] for row in _table(document, "option")]
    assert options == list(Options.__struct_encode_fields__)


def test_the_consuming_document_names_exactly_the_arguments_of_a_groups_member() -> None:
    rows = _table(ROOT / "docs" / "consuming.md", "argument")
    named = [name for row in rows for name in row[0].split(", ")]
    taken = list(inspect.signature(GroupConsumer).parameters)
    said_elsewhere = {"endpoint", "store", "group", "clock"}
    assert sorted(named) == sorted(set(taken) - said_elsewhere)


def test_the_sinks_document_names_exactly_its_columns_and_options() -> None:
    document = ROOT / "docs" / "spark-sink.md"
    columns = {name: kind for name, kind, _ in _table(document, "column of the sink")}
    assert list(columns) == list(SINK_COLUMNS)
    for name, kinds in SINK_COLUMNS.items():
        words = columns[name].replace(" or ", ", ").split(", ")
        assert words == [kind.simpleString() for kind in kinds]
    options = [row[0] for row in _table(document, "option of the sink")]
    assert options == list(SinkOptions.__struct_encode_fields__)


def test_the_security_page_names_every_port_that_is_listened_on() -> None:
    named = dict(re.findall(r"`(\w+_port)` \((\d+)\)", (ROOT / "SECURITY.md").read_text()))
    assert {name: int(port) for name, port in named.items()} == {
        name: getattr(Config(), name) for name in PORTS
    }


def test_the_codes_of_the_clients_page_are_those_that_are_served() -> None:
    """Of operators' tools and name servers; the others are named in words."""
    text = (ROOT / "docs" / "clients.md").read_text()
    cells = re.findall(r"^\| ([\d, ]+) \| [^`|]", text, re.M)
    named = [int(code) for cell in cells for code in cell.split(",")]
    assert len(named) > 50 and set(named) <= {int(code) for code in PROCESSORS}


def test_the_configuration_file_names_every_key_once_with_its_default() -> None:
    file = ROOT / "configs" / "broker.toml"
    assert load_config(file).config == Config()
    assert list(tomllib.loads(file.read_text())) == list(Config.__struct_fields__)


def test_every_key_of_the_configuration_file_is_explained_above_it() -> None:
    lines = (ROOT / "configs" / "broker.toml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and line[0] != "#"]
    assert len(keys) == len(Config.__struct_fields__)
    assert [lines[number] for number in keys if not lines[number - 1].startswith("# ")] == []


def test_the_small_configuration_is_one_that_a_broker_takes() -> None:
    config = load_config(ROOT / "configs" / "dev.toml").config
    assert config.mapped_file_size_commit_log_bytes < Config().mapped_file_size_commit_log_bytes
