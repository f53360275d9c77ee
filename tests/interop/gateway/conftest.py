"""The table of docs/clients.md: what each client was seen to do as it does with a real broker.

A test that has compared a client hands its verdicts in: they are what the table has, or the test
fails. With PENSTOCK_WRITE_TABLES=1 (`make clients-tables`) they are written there instead.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"
FEATURES = "| feature |"  # how the table of clients begins
SAME, DIFFERS, NONE, UNTRIED = "same", "differs", "none", "untried"


@pytest.fixture
def verdicts() -> Callable[..., None]:
    """Compare what a client has said of both: verdicts("Java 5.3.3", {feature: what}, {...})."""

    def hand_in(client: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        assert ours.keys() == theirs.keys()
        table = Table()
        table.hold(client, {row: verdict(ours, theirs, row) for row in table.rows})

    return hand_in


def verdict(ours: Mapping[str, Any], theirs: Mapping[str, Any], row: str) -> str:
    if row not in theirs:
        return UNTRIED
    if ours[row] != theirs[row]:
        return DIFFERS
    return NONE if theirs[row] is None else SAME


class Table:
    """A table of the document: a row for each feature, a column for each client."""

    @property
    def rows(self) -> list[str]:
        return [cells[0] for cells in self._read()[2][1:]]

    def hold(self, column: str, found: Mapping[str, str]) -> None:
        with DOCUMENT.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # another process of tests may have another column
            before, after, (head, *rows) = self._read()
            at = head.index(column)
            told = {cells[0]: cells[at] for cells in rows if cells[0] in found}
            if told == found:
                return
            if "PENSTOCK_WRITE_TABLES" not in os.environ:
                different = {
                    row: (told.get(row), found.get(row))
                    for row in told | found
                    if told.get(row) != found.get(row)
                }
                pytest.fail(f"{DOCUMENT.name} tells other of {column} (told, found): {different}")
            made = [
                [*cells[:at], found.get(cells[0], cells[at]), *cells[at + 1 :]] for cells in rows
            ]
            text = [_row(head), "|---" * len(head) + "|", *map(_row, made)]
            DOCUMENT.write_text("\n".join([*before, *text, *after]) + "\n")

    def _read(self) -> tuple[list[str], list[str], list[list[str]]]:
        lines = DOCUMENT.read_text().splitlines()
        start = next(n for n, line in enumerate(lines) if line.startswith(FEATURES))
        end = next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[start:end]]
        return lines[:start], lines[end:], [cells[0], *cells[2:]]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
