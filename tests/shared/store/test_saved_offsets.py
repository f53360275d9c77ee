"""The saved offsets of groups that work exactly once: what was written is read, or told of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.store.saved_offsets import SavedOffsets, load_offsets, save_offsets


def test_what_was_saved_is_loaded_and_anything_else_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "exact-offsets.json"
    assert load_offsets(file) == SavedOffsets()
    for number in (5, 6):
        saved = SavedOffsets(number, 7, {"g": {"orders": {0: 8}}}, {"spark": 9})
        save_offsets(file, msgspec.json.encode(saved))
        assert load_offsets(file) == saved
    file.write_bytes(b"[]")
    with pytest.raises(StoreDamaged, match="exactly once"):
        load_offsets(file)
