"""The page's files, without a browser: nothing from elsewhere, labels, and contrast of colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from penstock.actors.monitor.overview import PIPELINE
from penstock.actors.monitor.routes import FILES
from penstock.shared.memory.roster import ACTORS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "actors" / "monitor" / "page"
README = ROOT / "README.md"
TEXTS = ("--text", "--quiet", "--link", "--good", "--warn", "--bad")


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed((PAGE / "index.html").read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_every_file_of_the_page_is_served_and_is_small() -> None:
    assert {name for name, _ in FILES.values()} == {path.name for path in PAGE.iterdir()}
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < 64 << 10


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    """What the page's policy would refuse is not there."""
    for tag, attributes in Elements().found:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        for name in ("src", "href"):
            assert (attributes.get(name) or "/")[0] in "/#", attributes
    assert all("src" in script for script in Elements().all("script"))
    assert not Elements().all("style")
    for path in PAGE.iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), path.name


def test_the_page_draws_the_pipeline_as_the_readme_does() -> None:
    code = (PAGE / "charts.js").read_text()
    drawn = re.search(r"^```text\n( producer .*?)^```$", README.read_text(), re.M | re.S)
    assert drawn
    for name, named in (("BETWEEN", PIPELINE[1:]), ("FOR", set(ACTORS) - {*PIPELINE})):
        (table,) = re.findall(rf"^export const {name} = {{(.*?)}};$", code, re.M | re.S)
        rows = dict(re.findall(r"(\w+): \"(.+?)\"", table))
        assert rows.keys() == set(named)
        for said in rows.values():
            assert [word for word in said.split() if word not in drawn[1]] == []
    (sent,) = re.findall(r'^const SENDERS = "(.+)";$', code, re.M)
    assert sent in drawn[1]


def test_no_text_of_a_broker_can_become_markup() -> None:
    code = (PAGE / "page.js").read_text() + (PAGE / "charts.js").read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in code
    assert re.findall(r'from "(.+?)"', code) == ["./charts.js"]


def test_the_frame_has_what_a_reader_of_screens_needs() -> None:
    page = Elements()
    (html,) = page.all("html")
    assert html["lang"] == "en"
    names = {meta.get("name"): meta.get("content") for meta in page.all("meta")}
    assert names["viewport"] == "width=device-width, initial-scale=1"
    assert names["color-scheme"] == "light dark"
    assert [len(page.all(tag)) for tag in ("title", "h1", "main", "nav", "header")] == [1] * 5
    first = page.all("a")[0]
    assert first["href"] == "#main" and page.all("main")[0]["id"] == "main"


def _colours() -> dict[str, dict[str, str]]:
    """The named colours of both schemes."""
    css = (PAGE / "page.css").read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    return {
        name: dict(re.findall(r"(--\w+): (#[0-9a-f]{6});", part))
        for name, part in (("light", light), ("dark", dark))
    }


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for lines and marks; rules between rows are decoration."""
    colours = _colours()[scheme]
    assert colours.keys() == {*TEXTS, "--ground", "--panel", "--line", "--rule"}
    for text in TEXTS:
        for ground in ("--ground", "--panel"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for ground in ("--ground", "--panel"):
        assert contrast(colours["--line"], colours[ground]) >= 3
    # whatever else has a colour takes it from these
    css = re.sub(r"--\w+: #[0-9a-f]{6};", "", (PAGE / "page.css").read_text())
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb|opacity", css)


def test_the_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
