"""The documents as a site: every page has its place, and what is generated says what is there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock.shared.config import Config

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    """The hook that mkdocs imports."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "packaging" / "site" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_every_document_has_its_place_in_the_site(pages: ModuleType) -> None:
    shown = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    documents = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert len(shown) == len(set(shown))
    assert set(shown) == documents | {*pages.PAGES.values(), "api.md"}


def test_the_configurations_page_has_every_key_with_its_default(pages: ModuleType) -> None:
    text = pages.configuration((ROOT / "configs" / "broker.toml").read_text())
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.*) \|$", text, re.M)
    names = [name for name, _, _ in rows]
    assert sorted(names) == sorted(Config.__struct_fields__)
    assert all(about and default for _, default, about in rows)


def test_the_pages_of_python_name_what_can_be_imported(pages: ModuleType) -> None:
    for module in pages.MODULES:
        found = list(pages.public_names(module))
        assert found, module
        for name, where in found:
            assert hasattr(importlib.import_module(where), name), (module, name)


def test_what_programs_start_with_is_on_the_page_of_python(pages: ModuleType) -> None:
    shown = re.findall(r"^::: penstock\.(\S+)$", pages.api(), re.M)
    named = {each.rpartition(".")[2] for each in shown}
    assert set(penstock.__all__) <= named, "all that `import penstock` has"
    assert {"Store", "AppClient", "trace", "handling"} <= named
    assert len(shown) == len(set(shown)), "each once"


def test_links_of_the_checkout_lead_to_pages_of_the_site(pages: ModuleType) -> None:
    readme = "[a](docs/cli.md#x) [b](configs/broker.toml) [c](docs/zh/index.md) [d](https://e/x.md)"
    front = "[a](cli.md#x) [b](configuration.md) [c](zh/index.md) [d](https://e/x.md)"
    assert pages.as_page(readme, "README.md") == front
    chinese, page = "[a](tutorial.md) [b](../../README.md)", "[a](tutorial.md) [b](../index.md)"
    assert pages.as_page(chinese, "docs/zh/index.md") == page
    assert pages.as_page("[a](../SECURITY.md)", "docs/running.md") == "[a](security.md)"


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="make site installs mkdocs")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "Producer" in (tmp_path / "api.html").read_text()
