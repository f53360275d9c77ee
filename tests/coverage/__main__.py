"""What the tests of `make coverage` do not reach: a table of the rooms, then the functions by name.

    python tests/coverage              everything that was measured
    python tests/coverage shared/log   this folder only, with the numbers of the lines

A function is named when no line of its body ran. What was measured is what a process wrote down at
its end: one that was killed, as many are here, leaves nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import coverage

ROOT = Path(__file__).resolve().parents[2]
HEAD = "| room | files | statements | not run | covered |\n|---|--:|--:|--:|--:|"


class File(NamedTuple):
    """A file of the product: its statements, and those that did not run, as line numbers."""

    path: Path
    statements: set[int]
    missed: set[int]
    shown: str  # the lines that did not run, as ranges


def main(only: list[str]) -> None:
    """Print what was measured of the folders in `only`, or of all."""
    files = [
        file
        for file in _measured()
        if not only or any(str(file.path).startswith(each) for each in only)
    ]
    if not files:
        sys.exit("nothing was measured there: make coverage measures")
    rooms: dict[str, list[File]] = {}
    for file in files:
        rooms.setdefault(str(file.path.parent), []).append(file)
    print(HEAD)
    for room, members in sorted(rooms.items()):
        print(_row(room, members))
    print(_row("all", files))
    print("\nNot reached by these tests:\n")
    for file in sorted(files):
        names = [] if file.missed == file.statements else list(_not_reached(file))
        if file.missed and file.missed == file.statements:
            print(f"- `{file.path}`: the whole file")
        elif names:
            print(f"- `{file.path}`: {', '.join(f'`{name}`' for name in names)}")
        if only and file.missed:
            print(f"  lines {file.shown}")


def _measured() -> Iterator[File]:
    measured = coverage.Coverage()
    measured.load()
    for name in measured.get_data().measured_files():
        path = Path(name).resolve()
        if not path.is_relative_to(ROOT):
            continue  # a copy that a test has made of the product
        _, statements, _, missed, shown = measured.analysis2(name)
        if statements:
            yield File(path.relative_to(ROOT), set(statements), set(missed), shown)


def _row(room: str, files: list[File]) -> str:
    statements = sum(len(file.statements) for file in files)
    missed = sum(len(file.missed) for file in files)
    share = 100 * (statements - missed) / statements
    return f"| `{room}` | {len(files)} | {statements} | {missed} | {share:.1f} % |"


def _not_reached(file: File) -> Iterator[str]:
    """The functions of which no statement ran, in the order of the file; none inside another."""
    tree = ast.parse((ROOT / file.path).read_bytes())

    def walk(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, f"{name}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = range(child.body[0].lineno, (child.end_lineno or 0) + 1)
                body = file.statements.intersection(lines)
                if body and body <= file.missed:
                    yield name + child.name

    return walk(tree, "")


if __name__ == "__main__":
    main(sys.argv[1:])
