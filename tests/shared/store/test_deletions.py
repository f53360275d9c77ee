"""The list of deletions: what is on it, what a full disk does to it, and how a row reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import StorePaths
from penstock.shared.store.deletions import (
    KEPT,
    Deletion,
    Deletions,
    Reason,
    describe,
    load_deletions,
)

ROW = Deletion(
    at_ms=5,
    why=Reason.DELETE_WHEN,
    disk_used_percent=81,
    segments=2,
    log_start=0,
    log_end=8192,
    messages=17,
    uncounted_queues=0,
    stored_before_ms=1_700_000_000_123,
)


def _row(number: int) -> Deletion:
    return msgspec.structs.replace(ROW, at_ms=number)


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    found = StorePaths(tmp_path)
    found.own.mkdir()
    return found


def test_the_last_hundred_stay_and_the_newest_may_be_corrected(paths: StorePaths) -> None:
    said: list[str] = []
    rows = Deletions(paths, said.append)
    assert (rows.last(), load_deletions(paths)) == (None, [])
    for number in range(KEPT + 3):
        rows.add(_row(number))
        assert rows.last() == _row(number)
    expected = [_row(number) for number in range(3, KEPT + 3)]
    assert load_deletions(paths) == expected
    rows.correct(_row(999))
    assert load_deletions(paths) == [*expected[:-1], _row(999)]
    rows.correct(None)
    assert load_deletions(paths) == expected[:-1]
    assert Deletions(paths, said.append).last() == expected[-2]
    assert said == []


def test_a_disk_that_refuses_is_told_of_once_and_gets_all_rows_later(paths: StorePaths) -> None:
    said: list[str] = []
    rows = Deletions(paths, said.append)
    rows.settle()
    assert not paths.deletions.exists(), "nothing is to be written"
    for _ in range(2):
        said.clear()
        shutil.rmtree(paths.own)
        for number in range(3):
            rows.add(_row(number))
            rows.settle()
        assert len(said) == 1 and "cannot be written now" in said[0]
        paths.own.mkdir()
        rows.settle()
        assert load_deletions(paths)[-3:] == [_row(number) for number in range(3)]
        assert len(said) == 1


@pytest.mark.parametrize("raw", [b"{", b"[{}]", b"\xff", b"[" * 100_000])
def test_a_broken_list_is_set_aside_and_begun_anew(paths: StorePaths, raw: bytes) -> None:
    paths.deletions.write_bytes(raw)
    with pytest.raises(StoreDamaged, match="deletions"):
        load_deletions(paths)
    said: list[str] = []
    rows = Deletions(paths, said.append)
    assert len(said) == 1 and "begins anew" in said[0]
    assert paths.deletions.with_name("deletions.json.broken").read_bytes() == raw
    rows.add(ROW)
    assert load_deletions(paths) == [ROW]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["2 segments, log offsets [0, 8192), with 17 messages stored before 2023-11-14T"]),
        ({}, ["22:13:20.123+00:00: their 72 h are over", "an hour of delete_when (04)"]),
        ({"segments": 1}, ["deleting 1 segment, "]),
        ({"uncounted_queues": 3}, ["17 messages (and those of 3 queues that cannot be read)"]),
        ({"stored_before_ms": 0}, ["stored before a time that cannot be read"]),
        ({"stored_before_ms": 1 << 62}, [f"stored before {1 << 62} ms"]),
        ({"why": Reason.DISK_USED}, ["are over, and the disk is 81% full"]),
        ({"why": Reason.DISK_USED, "disk_used_percent": 0}, ["the disk is 0% full"]),
        ({"why": Reason.DISK_USED, "disk_used_percent": -1}, ["nobody knows how full"]),
        ({"why": Reason.ASKED}, ["somebody asked for it"]),
        ({"why": Reason.FORCED}, ["before their time, as the disk is 81% full"]),
    ],
)
def test_a_row_says_what_goes_and_why(changes: dict[str, object], words: list[str]) -> None:
    line = describe(msgspec.structs.replace(ROW, **changes), Config())
    assert all(each in line for each in words), line
    assert ("over" in line) == (changes.get("why") != Reason.FORCED)
    assert ("that cannot be read)" in line) == ("uncounted_queues" in changes)
