"""A browser for the monitor's page: Debian's Chromium without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.bench.seen.browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    found = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[str], Path]:
    """Where a screenshot goes: PENSTOCK_SCREENSHOTS, or the test's own directory."""
    place = Path(os.environ.get("PENSTOCK_SCREENSHOTS", tmp_path))
    place.mkdir(exist_ok=True)
    return lambda name: place / f"{name}.png"
