"""The saved offsets of groups that work exactly once: what was written is read, or told of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.store.saved_offsets import SavedOffsets, load_offsets, save_offsets


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "exact-offsets.json"
    assert load_offsets(file) == SavedOffsets()
    for number in (5, 6):
        saved = SavedOffsets(number, 7, {"g": {"orders": {0: 8}}}, {"spark": 9})
        save_offsets(file, msgspec.json.encode(saved))
        assert load_offsets(file) == saved


@pytest.mark.parametrize("raw", [b"[]", b"", b"\xff", b'{"a":' + b"[" * 100_000])
def test_whatever_else_stands_there_is_told_of_and_ends_no_writer(
    tmp_path: Path, raw: bytes
) -> None:
    file = tmp_path / "exact-offsets.json"
    file.write_bytes(raw)
    with pytest.raises(StoreDamaged, match="exactly once"):
        load_offsets(file)
