"""The scheduler's progress: kept by one write, whole after any, and with its delayOffset.json."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import msgspec
import pytest

from penstock.actors.scheduler.progress import SLOT_BYTES, Progress, ProgressFile, Roll
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import POINTS


class Files:
    def __init__(self, place: Path) -> None:
        self.own, self.json = (
            place / "penstock" / "scheduler",
            place / "config" / "delayOffset.json",
        )
        self.file = ProgressFile(self.own, self.json)

    def load(self) -> tuple[Progress, bool]:
        return self.file.load()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_what_was_saved_is_there_again(files: Files) -> None:
    assert files.load() == (Progress(clean=True), True), "a store that nobody knows"
    kept = Progress({1: 5, 18: 2}, 7, 6, 99, 4711, boot="b", run="r", rolls=[Roll(1, 2)])
    files.file.save(kept)
    assert files.load() == (kept, False)
    files.file.save_document(kept, 5)
    found, foreign = files.load()
    assert not foreign and found.levels == {1: 5, 18: 2}
    assert json.loads(files.json.read_text())["offsetTable"] == {"1": 5, "18": 2}


def test_saves_that_the_disk_refuses_half_way_leave_the_last_whole_one(files: Files) -> None:
    progress = Progress(indexed=1)
    files.file.save(progress)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room_bytes in (100, 50):
        progress.indexed += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                files.file.save(progress)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert files.load()[0].indexed == 1
    files.file.save(progress)
    assert files.load()[0].indexed == 3


def test_a_slot_that_is_torn_leaves_the_one_before(files: Files) -> None:
    for indexed in (1, 2):
        files.file.save(Progress(indexed=indexed, number=indexed - 1))
    raw = bytearray(files.own.read_bytes())
    at = 0 if files.load()[0].number % 2 == 0 else SLOT_BYTES
    raw[at + 20] ^= 1
    files.own.write_bytes(raw)
    assert files.load()[0].indexed == 1


def test_both_versions_of_the_json_are_its_own_and_another_is_not(files: Files) -> None:
    progress = Progress({1: 5})
    files.file.save_document(progress, 5)
    before = files.json.read_bytes()
    progress.levels = {1: 9}
    files.file.save_document(progress, 6)
    for raw in (before, files.json.read_bytes()):
        files.json.write_bytes(raw)
        found, foreign = files.load()
        assert found.levels == {1: 9} and not foreign
    files.json.write_text('{"offsetTable": {3:7}}')
    found, foreign = files.load()
    assert found.levels == {3: 7} and foreign and found.clean


def test_a_json_that_is_no_table_of_offsets_is_said_to_be_broken(files: Files) -> None:
    files.json.parent.mkdir()
    files.json.write_text('{"offsetTable": {"3": "x"}}')
    with pytest.raises(StoreDamaged):
        files.load()


def test_the_slot_has_room_for_the_most_rolls() -> None:
    many = Progress(
        {level: 1 << 50 for level in range(1, 19)},
        *([1 << 50] * 4),
        boot="b" * 36,
        run="r" * 16,
        begun="r" * 16,
        rolls=[Roll(1 << 50, 1 << 50)] * 32,
        documents=["d" * 32] * 2,
    )
    assert len(msgspec.json.encode(many)) < SLOT_BYTES - 8
    assert "schedule.saved" in POINTS
