"""Property tests try the same examples each time, whatever else has run in their process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples() -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []

    @settings(max_examples=200)
    @given(st.integers(0, 1 << 40), st.binary(max_size=20))
    def note(number: int, raw: bytes) -> None:
        found.append((number, raw))

    note()
    return found


def test_modules_that_other_tests_have_loaded_change_no_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = examples()
    file = tmp_path / "constants.py"
    file.write_text("".join(f"A{n} = {n * 7919}, b'constant {n}'\n" for n in range(200, 400)))
    spec = importlib.util.spec_from_file_location("constants_of_an_example", file)
    assert spec is not None
    monkeypatch.setitem(sys.modules, spec.name, importlib.util.module_from_spec(spec))
    assert examples() == before
