"""Damaged ranges of the log: what they are, where they are kept, and how they are passed over."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import (
    Damage,
    DamagedRanges,
    damage_between,
    joined,
    load_quarantine,
    name_aside,
    place_aside,
    read_only_error,
    save_quarantine,
    set_aside,
)


def test_ranges_that_are_whole_again_do_not_come_back_with_the_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would take as damage what producers have been told is stored."""
    paths = StorePaths(tmp_path)
    save_quarantine(paths, damage_between(paths, 4096, 0, 100, "bad"), 77)
    synced, sync = [], os.fsync

    def note(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), paths.quarantined.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    save_quarantine(paths, [], 99)
    assert load_quarantine(paths) == []
    assert synced == [(paths.own, False)]


SIZE = 4096


@given(st.integers(0, 5 * SIZE), st.integers(0, 3 * SIZE))
def test_damage_has_a_range_in_each_file_that_it_touches(start: int, size: int) -> None:
    paths = StorePaths("/store")
    found = damage_between(paths, SIZE, start, start + size, "bad")
    bytes_of = [(at // SIZE * SIZE, at % SIZE) for at in range(start, start + size)]
    assert [
        (int(Path(each.file).name), at)
        for each in found
        for at in range(each.offset, each.offset + each.size)
    ] == bytes_of
    assert all(each.position == int(Path(each.file).name) + each.offset for each in found)
    assert len(found) == len({base for base, _ in bytes_of})
    assert {(each.reason, each.found_ms) for each in found} <= {("bad", 0)}


def test_neighbours_in_one_file_are_one_damage_with_the_first_one_s_words() -> None:
    paths = StorePaths("/store")
    first = damage_between(paths, SIZE, 100, 200, "first")[0]
    second = damage_between(paths, SIZE, 200, 300, "second")[0]
    apart = damage_between(paths, SIZE, 301, SIZE, "apart")[0]
    other = damage_between(paths, SIZE, SIZE, SIZE + 5, "another file")[0]
    known = msgspec.structs.replace(first, found_ms=7)
    whole = msgspec.structs.replace(known, size=200)
    assert joined([known, second, apart, other]) == [whole, apart, other]
    assert joined([]) == []


def test_what_is_found_again_keeps_the_time_when_it_was_found_first(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    assert load_quarantine(paths) == []
    first, second = damage_between(paths, SIZE, 100, SIZE + 5, "bad")
    save_quarantine(paths, [first], 77)
    save_quarantine(paths, [first, second], 99)
    assert [each.found_ms for each in load_quarantine(paths)] == [77, 99]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[" * 100_000,
        b'[{"x":' * 100_000,
        b'[{"position":1,"size":1,"file":"\xff","offset":1,"reason":"bad"}]',
    ],
    ids=["empty", "lists", "nested", "not UTF-8"],
)
def test_a_list_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, broken: bytes
) -> None:
    paths = StorePaths(tmp_path)
    paths.own.mkdir()
    paths.quarantined.write_bytes(broken)
    ways_out = f"mv {paths.quarantined} {paths.quarantined}.broken; .*penstock store verify"
    with pytest.raises(StoreDamaged, match=ways_out):
        load_quarantine(paths)


@pytest.mark.parametrize("count", range(4))
def test_a_producer_is_told_of_the_first_damage_and_how_much_more_there_is(
    tmp_path: Path, count: int
) -> None:
    paths = StorePaths(tmp_path)
    ranges = [damage_between(paths, SIZE, 10 * n, 10 * n + 5, f"bad {n}")[0] for n in range(count)]
    save_quarantine(paths, ranges, 5)
    told = str(read_only_error(paths))
    assert ("bytes 0 to 4: bad 0" in told) == (count > 0)
    assert (f", and {count - 1} more" in told) == (count > 1)
    assert f"penstock store repair {tmp_path}" in told


def test_what_is_set_aside_is_durable_and_in_nobody_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, synced, sync = StorePaths(tmp_path), list[tuple[str, list[str]]](), os.fsync

    def note(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((place.name, sorted(each.name for each in place.iterdir())))
        sync(handle)

    (directory := paths.queue("orders", 3)).mkdir(parents=True)
    name = "consumequeue--orders--3--7"
    for number, aside in enumerate([name, f"{name}.1", f"{name}.2"]):
        file = directory / "7"
        file.write_bytes(bytes([number]))
        assert name_aside(paths, file) == name
        monkeypatch.setattr(os, "fsync", note)
        assert set_aside(paths, file) == paths.quarantine / aside
        monkeypatch.setattr(os, "fsync", sync)
        assert (paths.quarantine / aside).read_bytes() == bytes([number])
    names = [name, f"{name}.1", f"{name}.2"]
    assert synced[-2:] == [(paths.quarantine.name, names), ("3", [])]
    os.symlink("nowhere", paths.quarantine / f"{name}.3")
    assert place_aside(paths, name) == paths.quarantine / f"{name}.4"
    second = paths.quarantine / f"{name}.1"
    assert place_aside(paths, name, lambda path: path == second) == second


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=6), st.randoms())
def test_ranges_answer_as_a_look_at_each_byte_does(
    gaps: list[tuple[int, int]], rng: random.Random
) -> None:
    ranges, at = list[Damage](), 0
    for gap, size in gaps:
        at += gap
        ranges.append(Damage(at, size, "file", at, "bad"))
        at += size
    shuffled = ranges[:]
    rng.shuffle(shuffled)
    found = DamagedRanges(shuffled)
    assert bool(found) == bool(ranges) and found.size_bytes == sum(e.size for e in ranges)
    holder = {byte: each for each in ranges for byte in range(each.position, each.end)}
    for position in range(at + 3):
        assert found.at(position) == holder.get(position)
        begun = [each for each in ranges if each.position <= position]
        assert found.before(position) == (begun[-1] if begun else None)
        for limit in (position, position + 1, position + 4, at + 9):
            later = [each.position for each in ranges if position <= each.position < limit]
            assert found.next_start(position, limit) == min([limit, *later])
            inside = range(position, limit)
            assert found.touches(position, limit - position) == (
                any(byte in holder for byte in inside) or position in holder
            )
