"""Whether a broker takes messages, as `penstock status` says it."""

from __future__ import annotations

import errno

import pytest

from penstock.shared.memory.positions import POSITIONS
from penstock.shared.process.broker_status import _taking

FLUSH, COMMIT = {"flush_error": errno.EROFS}, {"commit_error": errno.ENOSPC}
DAMAGED, FULL = {"read_only": 1}, {"disk_full": 95}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "messages are taken"),
        (FULL, "the disk is full: no message is taken"),
        (FULL | COMMIT, "the log cannot be written (No space left on device), and that is tried"),
        (FULL | COMMIT | DAMAGED, "the log is damaged: no message is taken"),
        (FULL | COMMIT | DAMAGED | FLUSH, "a flush failed (Read-only file system): no message is"),
    ],
)
def test_what_keeps_messages_out_for_longest_is_said(words: dict[str, int], said: str) -> None:
    values = {position.name: 0 for position in POSITIONS} | words
    assert _taking(values).startswith(said)
