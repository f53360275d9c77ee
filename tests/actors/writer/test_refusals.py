"""Why no message is taken for want of disk: what `penstock up` says in place of ready."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.files import disk_space
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.process.disk_full import why_full

SEGMENT_BYTES = 4096


@pytest.fixture
def state(make_config: Callable[..., Config], make_run: Callable[..., Any]) -> Any:
    """Set positions, and hear why no message is taken."""
    config = make_config(message_index_enable=False)
    config.store.mkdir()
    StorePaths(config.store).commit_log.mkdir()
    positions = Positions(make_run(config).positions, owner="supervisor")

    def why(changes: dict[str, object] | None = None, **words: int) -> str:
        for name, value in words.items():
            positions.initialise(name, value)
        changed = msgspec.structs.replace(config, **(changes or {}))
        return why_full(positions, StorePaths(config.store), changed)

    yield why
    positions.close()


def test_messages_are_taken_before_the_first_segment_is_there(state: Any) -> None:
    assert state() == ""
    assert state(allocated=SEGMENT_BYTES, wrote=100) == ""


def test_a_full_disk_says_how_full_and_from_where_on_messages_are_taken_again(state: Any) -> None:
    said = state(disk_full=93)
    assert "93% full" in said and "is 90)" in said and "again below 91%" in said
    assert "again below 86%" in state({"clean_file_forcibly_enable": True})
    assert state(disk_full=0) == ""


def test_a_segment_that_is_missing_counts_only_where_it_is_needed(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "_used_and_size", lambda path: (100, 100 + SEGMENT_BYTES))
    assert state(allocated=SEGMENT_BYTES, wrote=100, allocate_error=errno.ENOSPC) == ""
    assert state(append_wanted=SEGMENT_BYTES) == ""
    said = state(append_wanted=SEGMENT_BYTES + 1)
    assert f"{SEGMENT_BYTES * 9 // 8} bytes" in said and f"{SEGMENT_BYTES} are free" in said
    assert state(append_wanted=0) == "" and state(wrote=SEGMENT_BYTES) == said


def test_any_other_refusal_of_the_disk_is_named(state: Any) -> None:
    assert "File too large" in state(wrote=0, allocate_error=errno.EFBIG)
    assert "No space left" in state(allocate_error=0, commit_error=errno.ENOSPC)
