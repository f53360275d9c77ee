"""What past starts have found: kept for people, and no reason for a start to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.log.damage import Damage
from penstock.shared.recovery.history import (
    KEPT,
    MOST_TOLD,
    keep_recovery,
    load_recoveries,
    recovery_lines,
)


@pytest.fixture
def unclean(wreckable: Callable[[Path], Any], tmp_path: Path) -> Any:
    """A store that a crash has left, and what a start finds in it."""
    store = wreckable(tmp_path / "once")
    return store.paths, store.recover()


def test_starts_are_kept_newest_last_unless_they_were_clean(unclean: Any) -> None:
    paths, found = unclean
    clean = msgspec.structs.replace(found, mode="clean", torn_bytes=0, quarantined=())
    assert load_recoveries(paths) == []
    for at_ms in range(KEPT + 3):
        assert keep_recovery(paths, found, at_ms) == ""
        assert keep_recovery(paths, clean, at_ms) == ""
    kept = load_recoveries(paths)
    assert [each.at_ms for each in kept] == list(range(3, KEPT + 3))
    assert kept[-1].found == found


def test_a_history_that_is_none_is_begun_anew(unclean: Any) -> None:
    paths, found = unclean
    paths.recoveries.write_bytes(b"\xff[]")
    with pytest.raises(StoreDamaged, match="recovery.json"):
        load_recoveries(paths)
    assert keep_recovery(paths, found, 7) == ""
    assert [each.at_ms for each in load_recoveries(paths)] == [7]


def test_a_history_that_the_disk_does_not_give_is_a_remark(unclean: Any) -> None:
    """A directory in its place stands for that. The start has served already, and goes on."""
    paths, found = unclean
    paths.recoveries.mkdir()
    assert "directory" in keep_recovery(paths, found, 7)


@pytest.mark.parametrize(("count", "more"), [(MOST_TOLD, []), (MOST_TOLD + 2, ["and 2 more"])])
def test_of_very_much_damage_a_start_tells_the_first_and_how_much_more_there_is(
    unclean: Any, count: int, more: list[str]
) -> None:
    paths, found = unclean
    damage = tuple(Damage(at, 1, "00000000000000000000", at, "bad") for at in range(count))
    lines = [*recovery_lines(msgspec.structs.replace(found, quarantined=damage), paths)]
    assert sum(line.startswith("damaged: ") for line in lines) == MOST_TOLD
    assert [line for line in lines if line.startswith("and ")] == more
