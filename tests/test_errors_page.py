"""docs/errors.md names every error that users can import, as the classes have it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from penstock import errors
from penstock.cli.main import penstock
from penstock.cli.printing.error_lines import Interrupted
from penstock.cli.streams import OutputFailed
from penstock.shared.errors import BY_STATUS, PenstockError

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
ROW = re.compile(r"^\| `(\w+)`(?: \*(.*?)\*)? \| (.*?) \| (\d+) \| (.+) \| (.+) \|$", re.M)
ROWS = {name: rest for name, *rest in ROW.findall(PAGE.read_text())}
COMMAND = re.compile(r"`penstock ([a-z -]+)")


def _class(name: str) -> type[PenstockError]:
    kind = getattr(errors, name)
    assert issubclass(kind, PenstockError)
    return kind


def _words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_public_error_has_its_row() -> None:
    assert sorted(ROWS) == sorted(errors.__all__)
    assert list(ROWS) == list(dict.fromkeys(name for name, *_ in ROW.findall(PAGE.read_text())))


def test_status_exit_code_and_bases_are_those_of_the_classes() -> None:
    for name, (bases, statuses, exit_code, _, _) in ROWS.items():
        kind = _class(name)
        also = {status for status, named in BY_STATUS.items() if named is kind}
        assert _words(statuses) == {kind.status} | also, name
        assert int(exit_code) == kind.exit_code, name
        direct = {base.__name__ for base in kind.__bases__} - {"PenstockError", "Exception"}
        assert _words(bases) == direct, name


def test_every_status_that_comes_over_a_socket_is_on_the_page() -> None:
    internal = {"RING_UNAVAILABLE"}  # a producer that meets it sends by the socket
    shown = set().union(*(_words(statuses) for _, statuses, *_ in ROWS.values()))
    assert set(BY_STATUS) - internal <= shown


def test_what_only_commands_end_with_is_on_the_page() -> None:
    text = PAGE.read_text()
    for kind in (OutputFailed, Interrupted):
        assert f"`{kind.status}`" in text and f"| {kind.exit_code} |" in text


def test_the_commands_of_the_page_are_there() -> None:
    with click.Context(penstock) as ctx:
        for words in COMMAND.findall(PAGE.read_text()):
            command: click.Command | None = penstock
            for word in words.split():
                if isinstance(command, click.Group):
                    command = command.get_command(ctx, word)
                    assert command is not None, words


def test_an_error_is_one_line_on_standard_error_and_an_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "status", "--store", tmp_path / "none"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (errors.ConnectError.exit_code, "")
    assert re.fullmatch(r"error: \[CONNECT_FAILED\] .+\n", done.stderr)
