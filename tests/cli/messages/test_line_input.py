"""The lines of an input: how much of one that is too long is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.messages.line_input import LineInput
from penstock.shared.errors import InvalidMessage

MOST = 1000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_of_a_file_that_is_too_long_its_length_is_told(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes(MOST + 1))
    with open(tmp_path / "long", "rb") as file, pytest.raises(InvalidMessage) as raised:
        list(LineInput(file.fileno(), lambda: MOST, lambda: False).whole())
    assert raised.value.value == MOST + 1


def test_of_an_input_that_is_too_long_and_goes_on_what_has_come_is_told_at_once(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    os.write(write, bytes(MOST + 1))
    with pytest.raises(InvalidMessage) as raised:
        list(LineInput(read, lambda: MOST, lambda: False).whole())
    assert raised.value.value == f"{MOST + 1} or more"
