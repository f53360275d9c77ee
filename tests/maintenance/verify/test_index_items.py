"""The check of index files sees every kind of wrong byte, and none where nothing is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.maintenance.verify.check import Verification, verify_store
from penstock.maintenance.verify.report import VerifyReport
from penstock.maintenance.verify.walk import walk_chains
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.index.directory import index_files
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.directory import StoreDirectory

TINY = Geometry(5, 12)


@pytest.fixture
def indexed(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> Callable[..., Path]:
    """A store of 30 records, a key each, in three index files."""

    def make(**layout: object) -> Path:
        keys = [encode_properties({"UNIQ_KEY": f"u{number}"}) for number in range(30)]
        root = store_builder([make_record(properties=each) for each in keys], **layout)
        (root / "half-made").mkdir()
        with StoreDirectory(root) as store:
            rebuild_index(store, root / "index", root / "half-made", TINY, lambda: 0)
        return root

    return make


def _verify(root: Path) -> VerifyReport:
    return verify_store(root, index=TINY)


def _change(root: Path, file: int, at: int, raw: bytes) -> Path:
    path = index_files(root / "index")[file]
    whole = bytearray(path.read_bytes())
    whole[at : at + len(raw)] = raw
    path.write_bytes(whole)
    return path


def test_nothing_is_wrong_with_an_index_that_the_log_gives(indexed: Callable[..., Path]) -> None:
    report = _verify(indexed())
    assert report.ok and report.problems == [] and report.notes == []


def test_an_empty_last_file_is_as_a_crash_leaves_it_and_one_before_others_is_not(
    indexed: Callable[..., Path],
) -> None:
    root = indexed()
    (root / "index" / "29991231235959999").touch()
    assert verify_store(root).problems == _verify(root).problems == []
    (root / "index" / "00000000000000000").touch()
    found = {(each.kind, each.file) for each in _verify(root).problems}
    assert found >= {("index-size", str(root / "index" / "00000000000000000"))}


@pytest.mark.parametrize(
    ("at", "raw", "kinds"),
    [
        (TINY.item_at(3), struct.pack(">i", 7), {"index-item", "index-missing", "index-chain"}),
        (TINY.item_at(9) + 16, struct.pack(">i", 8), {"index-chain"}),
        (40 + 4 * 2, struct.pack(">i", 1), {"index-slot"}),
        (32, struct.pack(">i", 4), {"index-header"}),
    ],
)
def test_a_wrong_byte_is_named_with_its_place(
    indexed: Callable[..., Path], at: int, raw: bytes, kinds: set[str]
) -> None:
    root = indexed()
    path = _change(root, 1, at, raw)
    report = _verify(root)
    assert {problem.kind for problem in report.problems} >= kinds - {"index-chain"}
    assert {problem.kind for problem in report.problems} <= kinds | {"index-slot", "index-header"}
    assert (str(path), at) in {(problem.file, problem.offset) for problem in report.problems}


def test_a_key_without_an_item_is_missing(indexed: Callable[..., Path]) -> None:
    """A RocketMQ dropped a file after a crash and went on with the next."""
    root = indexed()
    index_files(root / "index")[1].unlink()
    report = _verify(root)
    assert [problem.kind for problem in report.problems] == ["index-missing"] * 11


def test_items_behind_the_log_are_a_problem(indexed: Callable[..., Path]) -> None:
    root = indexed()
    _change(root, 2, TINY.item_at(8) + 4, struct.pack(">q", 1 << 40))
    assert "index-item" in {problem.kind for problem in _verify(root).problems}


def test_in_an_unclean_store_deviations_are_a_note(indexed: Callable[..., Path]) -> None:
    root = indexed(unclean=True)
    _change(root, 1, 40, bytes(20))
    report = _verify(root)
    assert report.ok and any("deviations of the index" in note for note in report.notes)


@pytest.mark.parametrize("unclean", [False, True])
def test_chains_that_are_looked_at_by_themselves_give_the_same_report(
    indexed: Callable[..., Path], unclean: bool
) -> None:
    root = indexed(unclean=unclean)
    for number in range(3):
        _change(root, number, TINY.item_at(7) + 16, struct.pack(">i", 6))
    with StoreDirectory(root) as store:
        check = Verification(store, index=TINY)
        check.join(check.walk(store.log_start).run())
        assert check.index_files == 3
        for number in range(check.index_files):
            check.join_chains(walk_chains(store, check.how, number))
        parts = check.finish()
    whole = _verify(root)
    assert (parts.problems, parts.notes) == (whole.problems, whole.notes)
    assert bool(whole.problems) is not unclean and bool(whole.notes) is unclean


def test_repeated_items_are_a_note_for_rocketmq_may_leave_them(
    indexed: Callable[..., Path],
) -> None:
    root = indexed()
    (root / "again").mkdir()
    with StoreDirectory(root) as store:
        rebuild_index(store, root / "again", root / "half-made", TINY, lambda: 1 << 40)
    path = index_files(root / "again")[2]
    path.rename(root / "index" / path.name)
    report = _verify(root)
    assert report.ok and report.notes == ["8 items of the index repeat another one"]


def test_the_geometry_is_found_and_a_file_of_another_length_is_a_problem(
    indexed: Callable[..., Path],
) -> None:
    root = indexed()
    assert verify_store(root).ok and not verify_store(root).notes
    problems = verify_store(root, index=Geometry(TINY.slots + 5, TINY.items)).problems
    assert {problem.kind for problem in problems} == {"index-size"}
    path = index_files(root / "index")[2]
    path.write_bytes(path.read_bytes()[:-20])
    (problem,) = _verify(root).problems
    assert (problem.kind, problem.file) == ("index-size", str(path))
