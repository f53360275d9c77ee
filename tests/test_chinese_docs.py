"""The Chinese documents have what the English ones have that needs no translation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_chinese_tutorial_has_the_commands_and_outputs_of_the_english_one() -> None:
    english, chinese = (
        re.findall(r"^```.*?^```$", (ROOT / "docs" / name).read_text(), re.M | re.S)
        for name in ("tutorial.md", "zh/tutorial.md")
    )
    assert chinese == english


def test_the_chinese_how_to_leads_to_every_english_one() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("  - How to:\n")[2].partition("\n  - ")[0]
    english = set(re.findall(r"\b([\w-]+\.md)$", nav, re.M))
    chinese = (ROOT / "docs" / "zh" / "how-to.md").read_text()
    assert len(english) > 15 and english - set(re.findall(r"\(\.\./([\w-]+\.md)", chinese)) == set()


def test_the_chinese_page_of_errors_has_every_error_with_its_statuses() -> None:
    english, chinese = (
        re.findall(r"^\| `(\w+)`.*? \| (`[A-Z_`, ]+) \|", (ROOT / "docs" / name).read_text(), re.M)
        for name in ("errors.md", "zh/errors.md")
    )
    assert chinese == english and len(english) > 20
