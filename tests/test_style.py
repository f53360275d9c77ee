"""The glossary of docs/style.md is kept: no word of its left column is left anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *("actors", "bench", "chaos", "cli", "client", "configs", "docs"),
    *("maintenance", "shared", "spark"),
)
SINGLE = ("supervisor.py", "README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")
SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".c", ".h", ".java", ".md", ".toml"}
STYLE = ROOT / "docs" / "style.md"
# the end of a line with the mark of a comment that goes on: a phrase may be broken there
LINE_END = re.compile(r"\s*\n\s*(?:(?:#:?|//|\*|--) +)?")
HEADLESS = re.compile(r"(?:^|[.:;] |\"\"\"|# |\*\* )(Who (?!owns which)[^.?:;]*)[.:;]")


def _files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "target" not in path.parts and path != STYLE:
                yield path
    yield from (ROOT / name for name in SINGLE if (ROOT / name).exists())
    yield from sorted((ROOT / "src" / "penstock").glob("*.py"))


def _text(path: Path) -> str:
    return LINE_END.sub(" ", path.read_text("utf-8"))


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
    edge = "" if first in "._" else r"(?<![\w.-])"
    return re.compile(rf"{edge}{begin}{re.escape(word[1:])}(?![\w-])")


# While the prose is being edited: STYLE_ONLY=shared/queue pytest -q tests/test_style.py
ONLY = os.environ.get("STYLE_ONLY", "")
pytestmark = pytest.mark.skipif(not ONLY, reason="name a folder in STYLE_ONLY; . is everything")
TEXTS = {path: _text(path) for path in _files() if path.is_relative_to(ROOT / ONLY)}


@pytest.mark.parametrize(("word", "may_stay"), _glossary(), ids=lambda value: str(value)[:30])
def test_no_word_of_the_glossarys_left_column_remains(word: str, may_stay: list[str]) -> None:
    pattern = _pattern(word)
    found = []
    for path, text in TEXTS.items():
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
        for path, text in TEXTS.items()
        for match in HEADLESS.finditer(text)
    ]
    assert not found, "\n".join(found)
