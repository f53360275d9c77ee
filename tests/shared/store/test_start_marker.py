"""A start that has not come to its end is known to the next one, in the same boot only."""

from __future__ import annotations

from pathlib import Path

from penstock.shared.store.start_marker import is_unfinished, note_end, note_start


def test_a_start_is_unfinished_until_its_end_however_often_it_is_begun(tmp_path: Path) -> None:
    file = tmp_path / "starting"
    assert not is_unfinished(file)
    note_end(file)
    for _ in range(2):
        note_start(file)
        assert is_unfinished(file)
    note_end(file)
    assert not is_unfinished(file) and not file.exists()


def test_what_another_boot_began_or_a_power_failure_tore_is_over(tmp_path: Path) -> None:
    file = tmp_path / "starting"
    for content in (b"", bytes(36), b"0" * 36):
        file.write_bytes(content)
        assert not is_unfinished(file)
        note_start(file)
        assert is_unfinished(file)
