"""A disk of which not all is certain: what it may be after a failure, and what it never is."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.chaos.stepped.uncertain_disk import (
    BYTES,
    NAME,
    ROOT,
    SECTOR_BYTES,
    SIZE,
    Event,
    Image,
    UncertainDisk,
)

A, B = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES
FILE, OLD, NEW = 2, -3, -4
MADE = Event("make", (((NAME, ROOT, "f"), FILE), ((SIZE, FILE, ""), 2 * SECTOR_BYTES)))


def _all(disk: UncertainDisk) -> set[Image]:
    return set(disk.images_of_youngest(1 << 20, random.Random(1)))


def _files(disk: UncertainDisk) -> set[bytes | None]:
    return {dict(image.entries).get("f") for image in _all(disk)}


def test_name_length_and_each_sector_get_to_the_disk_in_any_order() -> None:
    disk = UncertainDisk()
    disk.take(MADE)
    disk.take(Event("store", (((BYTES, FILE, 0), A), ((BYTES, FILE, 1), B))))
    zero = bytes(SECTOR_BYTES)
    assert _files(disk) == {None, b"", zero + zero, A + zero, zero + B, A + B}
    assert disk.count() == 2**4


def test_what_is_certain_is_in_every_image_and_nothing_else_is() -> None:
    disk = UncertainDisk()
    disk.take(MADE)
    disk.take(Event("store", (((BYTES, FILE, 0), A),)))
    disk.take(Event("sync file", (), ((BYTES, FILE, 0), (SIZE, FILE, ""))))
    assert _files(disk) == {None, A + bytes(SECTOR_BYTES)}
    disk.take(Event("sync names", (), ((NAME, ROOT, "f"),)))
    assert _files(disk) == {A + bytes(SECTOR_BYTES)}


def test_a_sector_may_have_any_value_since_it_was_certain() -> None:
    disk = UncertainDisk()
    disk.take(MADE._replace(certain=((NAME, ROOT, "f"), (SIZE, FILE, ""))))
    for value in (A, B):
        disk.take(Event("store", (((BYTES, FILE, 0), value),)))
    assert {found[:1] for found in _files(disk) if found} == {b"\0", b"a", b"b"}


def test_what_a_sync_has_missed_no_later_one_makes_certain_before_it_is_written_again() -> None:
    disk = UncertainDisk()
    disk.take(MADE._replace(certain=((NAME, ROOT, "f"), (SIZE, FILE, ""))))
    first, second = (BYTES, FILE, 0), (BYTES, FILE, 1)
    disk.take(Event("store", ((first, A),)))
    disk.take(Event("sync that fails", missed=(first,)))
    assert disk.newest(first) == A, "a process reads what it wrote"
    disk.take(Event("store", ((second, B),)))
    disk.take(Event("sync", certain=tuple(disk.uncertain(FILE, BYTES))))
    zero = bytes(SECTOR_BYTES)
    assert _files(disk) == {zero + B, A + B}
    disk.take(Event("write again", ((first, A),)))
    assert disk.all_uncertain() == [first]
    disk.take(Event("sync", certain=(first,)))
    assert _files(disk) == {A + B}


def test_directories_that_change_places_do_so_in_one_step() -> None:
    one, two = (NAME, ROOT, "one"), (NAME, ROOT, "two")
    inside = (NAME, OLD, "f")
    before = ((one, OLD), (two, NEW), (inside, FILE), ((SIZE, FILE, ""), 0))
    disk = UncertainDisk()
    disk.take(Event("make", before, tuple(piece for piece, _ in before)))
    disk.take(Event("exchange", ((one, NEW), (two, OLD))))
    paths = {tuple(path for path, _ in image.entries) for image in _all(disk)}
    assert paths == {("one", "one/f", "two"), ("one", "two", "two/f")}
    disk.take(Event("sync", (), (one,)))
    assert {tuple(p for p, _ in image.entries) for image in _all(disk)} == {("one", "two", "two/f")}


def test_of_many_states_those_of_the_youngest_pieces_are_all_there() -> None:
    disk = UncertainDisk()
    disk.take(Event("make", (((NAME, ROOT, "f"), FILE),), ((NAME, ROOT, "f"),)))
    disk.take(Event("size", (((SIZE, FILE, ""), 9 * SECTOR_BYTES),), ((SIZE, FILE, ""),)))
    for sector in range(9):
        disk.take(Event("store", (((BYTES, FILE, sector), A),)))
    found = list(disk.images_of_youngest(8, random.Random(1)))
    contents = [content or b"" for image in found for _, content in image.entries]
    last_three = {content[6 * SECTOR_BYTES :: SECTOR_BYTES] for content in contents}
    assert len(found) == len(last_three) == 8
    nothing, everything, *others = disk.some_images(3, random.Random(1))
    assert not any(nothing.entries[0][1] or b"")
    assert everything == disk.live() and len(others) == 3


def test_an_image_is_written_as_it_is(tmp_path: Path) -> None:
    image = Image((("d", None), ("d/f", A), ("empty", b"")))
    image.write(tmp_path)
    assert (tmp_path / "d" / "f").read_bytes() == A
    assert (tmp_path / "empty").read_bytes() == b""
    assert image.digest() != Image((("d", None), ("d/f", B), ("empty", b""))).digest()
