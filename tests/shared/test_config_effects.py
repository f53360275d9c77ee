"""Every key of the configuration has an effect: code beside the configuration's reads it."""

from __future__ import annotations

import ast
from pathlib import Path

from penstock.shared.config import Config

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("actors", "shared", "supervisor.py")


def _attributes(source: Path) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_no_key_of_the_configuration_is_dead() -> None:
    own = {path.name for path in (ROOT / "shared").glob("config*.py")}
    files = [path for place in PRODUCT for path in _sources(ROOT / place) if path.name not in own]
    read = set().union(*map(_attributes, files))
    # keys that the configuration itself makes something of, which is then what is read
    config = ast.parse((ROOT / "shared" / "config.py").read_text("utf-8"))
    (kind,) = [node for node in config.body if isinstance(node, ast.ClassDef)]
    made = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
    for function in reversed(made):
        if function.name in read:
            read |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    assert sorted(set(Config.__struct_fields__) - read) == []


def _sources(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))
