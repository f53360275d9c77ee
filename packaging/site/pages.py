"""The pages of the site that are made from what they describe; mkdocs calls `on_files` at a build.

The README is the front page, with its links turned to pages. The configuration is
configs/broker.toml as tables: the comments above a key are its text. The API is the public names of
a few modules, whose docstrings mkdocstrings reads.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# Files of the checkout that are pages of the site under other names.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "configs/broker.toml": "configuration.md",
}
# What a program imports, in the order of the page.
MODULES = {
    "": "What a program starts with",
    "client": "Clients, which wait",
    "client/aio": "Clients for asyncio",
    "client/tracing": "Traces through messages",
    "embedded": "A broker of a program's own",
    "testing": "For tests",
    "dataframes": "Topics as tables",
    "errors": "Errors",
}
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


class Key(NamedTuple):
    """One key of the configuration."""

    name: str
    default: str
    text: str


def on_files(files: Any, config: Any) -> Any:
    """Add what is generated; called by mkdocs with its Files."""
    from mkdocs.structure.files import File  # the rest of this file is tested without it

    made = {
        page: as_page((ROOT / source).read_text(), source)
        for source, page in PAGES.items()
        if source.endswith(".md")
    }
    made["configuration.md"] = configuration((ROOT / "configs" / "broker.toml").read_text())
    made["api.md"] = api()
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of documents, which are right in a checkout, to pages; called by mkdocs."""
    name = page.file.src_uri
    made = name == "api.md" or name in PAGES.values()
    return markdown if made else as_page(markdown, f"docs/{name}")


def as_page(markdown: str, source: str) -> str:
    """The text of a file of the checkout, with links as from its page in the site to others."""
    here = posixpath.dirname(_page_of(source))

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return f"]({posixpath.relpath(_page_of(target), here or '.')}"

    return _LINK.sub(turned, markdown)


def _page_of(source: str) -> str:
    return PAGES.get(source, source.removeprefix("docs/"))


def configuration(toml: str) -> str:
    """configs/broker.toml as a page: a heading for each part, a table of its keys."""
    lines = ["# Configuration", "", _CONFIGURATION, ""]
    for heading, keys in _parts(toml):
        lines += [f"## {heading}", "", "| key | default | |", "|---|---|---|"]
        lines += [f"| `{key.name}` | `{key.default}` | {key.text} |" for key in keys]
        lines.append("")
    return "\n".join(lines)


_CONFIGURATION = """\
Every key that a broker has. `penstock up --config FILE` reads them from a TOML file, `--set
KEY=VALUE` goes over that, and so does the environment (`PENSTOCK_BROKER_<KEY>`). The name in
brackets is RocketMQ's key; where its default is another one, it is given with the reason.
`penstock config show --origin` says what a broker would start with, and where each value is
from."""


def _parts(toml: str) -> Iterator[tuple[str, list[Key]]]:
    """The parts of the file, with their keys."""
    for part in re.split(r"^# --- ", toml, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        found = re.findall(r"((?:^#.*\n)+)^(\w+) = (.+)$", body, re.M)
        keys = [Key(name, default, _sentence(text)) for text, name, default in found]
        yield heading.rstrip(" -"), keys


def _sentence(comment: str) -> str:
    text = " ".join(line.removeprefix("#").strip() for line in comment.splitlines())
    return text.replace("|", "\\|").replace("<", "&lt;").strip()


def api() -> str:
    """A page that has mkdocstrings describe the public names."""
    lines = ["# Python", ""]
    shown = set[str]()
    for module, heading in MODULES.items():
        lines += [f"# {heading}", "", f"`import {_dotted(module)}`", ""]
        for name, where in public_names(module):
            if (entry := f"::: {where}.{name}") not in shown:
                lines += [entry, ""]
                shown.add(entry)
    return "\n".join(lines)


def _dotted(module: str) -> str:
    return f"penstock/{module}".rstrip("/").replace("/", ".")


def public_names(module: str) -> Iterator[tuple[str, str]]:
    """Each name of the module's __all__ and the module that it is defined in, by its text alone;
    without those that it has from another module of the page."""
    path = ROOT / "src" / "penstock" / module
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            for name in ast.literal_eval(node.value):
                where = imported.get(name, _dotted(module))
                if name not in imported or where not in map(_dotted, MODULES):
                    yield name, where
