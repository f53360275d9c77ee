"""The glossary of docs/style.md is kept: no word of its left column is left anywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("actors", "bench", "chaos", "cli", "client", "configs", "dataframes", "docs", "embedded"),
    *("examples", "maintenance", "packaging", "remoting", "shared", "spark", "testing", "tests"),
)
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SINGLE = ("supervisor.py", "Makefile", *BESIDE)
SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".c", ".h", ".java", ".md", ".toml"}
STYLE = ROOT / "docs" / "style.md"
# the glossary itself, and a table of what commands print
LEFT_OUT = {STYLE, ROOT / "tests" / "cli" / "mistakes.toml"}
# the end of a line with the mark of a comment that goes on: a phrase may be broken there
LINE_END = re.compile(r"\s*\n\s*(?:(?:#:?|//|\*|--) +)?")
HEADLESS = re.compile(r"(?:^|[.:;] |\"\"\"|# |\*\* )(Who (?!owns which)[^.?:;]*)[.:;]")


def _files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "target" not in path.parts and path not in LEFT_OUT:
                yield path
    yield from (ROOT / name for name in SINGLE if (ROOT / name).exists())
    own = (ROOT / "src" / "penstock").glob("*.py")
    yield from sorted(path for path in own if not path.is_symlink())


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return LINE_END.sub(" ", (_without_texts(raw) if path.suffix == ".py" else raw).decode())


def _without_texts(raw: bytes) -> bytes:
    """Python without its strings, docstrings excepted.

    What a command prints or an error says is behaviour: it is changed for its readers and with its
    tests (tests/cli/mistakes.txt), not in passing.
    """
    tree = ast.parse(raw)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    kept = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    text = bytearray(raw)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        )
        if is_text and id(node) not in kept and isinstance(node, ast.expr):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            text[begin:end] = bytes(char if char == 10 else 95 for char in text[begin:end])
    return bytes(text)


def _glossary() -> list[tuple[str, list[str]]]:
    """Each word of the left column with what may contain it."""
    rows = []
    for line in STYLE.read_text("utf-8").split("\n| not this |")[1].splitlines()[2:]:
        if not line.startswith("|"):
            break
        left, _, right = (cell.strip() for cell in line.strip("|").split("|"))
        may_stay = re.findall(r"`([^`]+)`", right)
        rows += [(word, may_stay) for word in re.findall(r"`([^`]+)`", left)]
    return rows


def _pattern(word: str) -> re.Pattern[str]:
    first = word[0]
    begin = f"[{first}{first.upper()}]" if word.islower() and first.isalpha() else re.escape(first)
    edge = {".": "", "_": r"(?<!\w)"}.get(first, r"(?<![\w.-])")
    return re.compile(rf"{edge}{begin}{re.escape(word[1:])}(?![\w-])")


@cache
def _texts() -> dict[Path, str]:
    return {path: _text(path) for path in _files()}


@pytest.mark.parametrize(("word", "may_stay"), _glossary(), ids=lambda value: str(value)[:30])
def test_no_word_of_the_glossarys_left_column_remains(word: str, may_stay: list[str]) -> None:
    pattern = _pattern(word)
    found = []
    for path, text in _texts().items():
        if word[1:] not in text:  # looked for a hundred times as fast as the pattern
            continue
        allowed = [
            match.span() for each in may_stay for match in re.finditer(re.escape(each), text, re.I)
        ]
        found += [
            f"{path.relative_to(ROOT)}: ...{text[max(0, match.start() - 40) : match.end() + 40]}..."
            for match in pattern.finditer(text)
            if not any(start <= match.start() and match.end() <= end for start, end in allowed)
        ]
    assert not found, f"{len(found)} places say {word!r}:\n" + "\n".join(found)


def test_no_sentence_begins_with_who_unless_it_is_a_question() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[1]}"
        for path, text in _texts().items()
        for match in HEADLESS.finditer(text)
    ]
    # a comment's mark goes with the line's end, so its first word is looked at by itself
    found += [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in _files()
        if path.suffix == ".py"
        for line in path.read_text("utf-8").splitlines()
        if re.match(r"\s*# Who (?!owns which)[^?]*$", line)
    ]
    assert not found, "\n".join(found)


# what switches a rule off for a line, and the reason that has to follow it
EXCEPTION = re.compile(
    r"# (?:noqa(?:: [A-Z]+\d+)?|type: ignore(?:\[[a-z-]+\])?)(?P<reason>.*)|"
    r"filterwarnings\(\"ignore[^)]*\)(?P<beside>.*)"
)
# the same in pyproject.toml, for many lines at once
SWITCHED_OFF = re.compile(
    r"^(?:ignore|extend-ignore|per-file-ignores|extend-exclude|exclude_also|disable_warnings"
    r"|ignore_missing_imports|norecursedirs)\b.*|^ *\"ignore:.*"
)


def test_every_exception_from_a_rule_has_its_reason_beside_it() -> None:
    paths = [*(path for path in _files() if path.suffix in (".py", ".pyi"))]
    paths += sorted((ROOT / "tests").rglob("*.py"))
    silent = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if path != Path(__file__) and (match := EXCEPTION.search(line))
        if not re.search(r"\w+ \w+", match["reason"] or match["beside"] or "")
    ]
    assert silent == []


def test_what_the_project_switches_off_has_its_reason_beside_it_or_above() -> None:
    lines = (ROOT / "pyproject.toml").read_text("utf-8").splitlines()
    silent = [
        line
        for above, line in zip(lines, lines[1:], strict=False)
        if SWITCHED_OFF.search(line) and "#" not in line and not above.startswith("#")
    ]
    assert silent == []
