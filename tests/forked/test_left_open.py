"""What actors of tests leave open is closed with their directories, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from left_open import LeftOpen


@pytest.fixture
def files() -> Iterator[LeftOpen]:
    with LeftOpen() as made:
        yield made


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def _is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def test_what_was_opened_below_the_place_is_closed_once(files: LeftOpen, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    beside = _open(tmp_path / "store-0")
    below = [_open(tmp_path / "store" / name) for name in ("a", "b")]
    os.close(_open(tmp_path / "store" / "c"))
    assert files.close_below(tmp_path / "store") == 2
    assert not any(map(_is_open, below)) and _is_open(beside)
    assert files.close_below(tmp_path / "store") == 0
    os.close(beside)


def test_a_number_that_is_anothers_by_now_is_left_to_it(files: LeftOpen, tmp_path: Path) -> None:
    left, other = _open(tmp_path / "left"), tmp_path / "other"
    other.touch()
    os.closerange(left, left + 1)  # as a file object or a library closes it
    with other.open() as owner:
        assert owner.fileno() == left
        assert files.close_below(tmp_path) == 0
        assert _is_open(left)


@pytest.mark.parametrize("is_closed_here", [True, False])
def test_a_file_that_was_closed_is_left_to_who_opens_it_again(
    files: LeftOpen, tmp_path: Path, is_closed_here: bool
) -> None:
    """Even under the same number."""
    left = _open(tmp_path / "left")
    if is_closed_here:
        assert files.close_below(tmp_path) == 1
    else:
        os.close(left)
    with (tmp_path / "left").open() as owner:
        assert owner.fileno() == left
        assert files.close_below(tmp_path) == 0
        assert _is_open(left)


def test_a_file_that_has_no_name_any_more_is_closed_too(files: LeftOpen, tmp_path: Path) -> None:
    left = _open(tmp_path / "left")
    (tmp_path / "left").unlink()
    assert files.close_below(tmp_path) == 1 and not _is_open(left)
