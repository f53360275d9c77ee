"""The list of queues that have been: what a start misses when a directory is gone."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
from penstock.shared.queue.known_queues import (
    UNKNOWN,
    WATERMARK,
    KnownQueues,
    QueueEnd,
    lacks_lines,
    load_known_flush,
    load_known_queues,
    make_known_queues,
    replace_known_queues,
    with_memory,
)

ENDS = st.lists(
    st.tuples(
        st.from_regex(r"[a-z%_-]{1,3}/(0|[1-9][0-9]?)", fullmatch=True),
        st.builds(QueueEnd, st.integers(1, 1 << 40), st.integers(0, 1 << 60)),
    ),
    max_size=20,
)


@given(ENDS, st.data())
def test_an_end_is_there_from_when_it_was_noted_whatever_the_last_write_left(
    tmp_path_factory: object, ends: list[tuple[str, QueueEnd]], data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("store") / "penstock" / "queues"
    file.parent.mkdir()
    make_known_queues(file)
    noted: dict[str, QueueEnd] = {}
    for name, end in ends:
        known = KnownQueues(file)
        assert known.note({name: end}) == (name not in noted)
        list(known.sync())
        known.close()
        noted[name] = end
        assert load_known_queues(file) == noted
    content = file.read_bytes()
    assert content.count(b"\n") == len(noted) + 1
    cut = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:cut])
    whole = load_known_queues(file)
    assert whole.items() <= noted.items() and len(whole) == max(0, content[:cut].count(b"\n") - 1)
    known = KnownQueues(file)
    known.note({"again/1": QueueEnd(7, 8)})
    known.close()
    assert load_known_queues(file) == whole | {"again/1": QueueEnd(7, 8)}


@given(st.integers(0, 200), st.integers(0, 7))
def test_a_line_in_which_a_bit_has_flipped_says_nothing_else_than_it_did(
    tmp_path_factory: object, at: int, bit: int
) -> None:
    file = tmp_path_factory.mktemp("store") / "queues"
    ends = {f"orders/{number}": QueueEnd(1000 + number, 1 << 40) for number in range(3)}
    replace_known_queues(file, ends)
    content = bytearray(file.read_bytes())
    content[at % len(content)] ^= 1 << bit
    file.write_bytes(content)
    assert load_known_queues(file).items() <= ends.items()


def test_lines_of_the_first_versions_name_queues_and_no_ends(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    file.write_bytes(b"orders/1\n%RETRY%g/0\nord")
    assert load_known_queues(file) == {"orders/1": QueueEnd(), "%RETRY%g/0": QueueEnd()}
    known = KnownQueues(file)
    assert known.note({"orders/1": QueueEnd(5, 6)})
    known.close()
    assert load_known_queues(file) == {"orders/1": QueueEnd(5, 6), "%RETRY%g/0": QueueEnd()}


def test_what_a_predecessor_wrote_and_did_not_sync_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as known, so nobody might ever write it again."""
    file = tmp_path / "queues"
    replace_known_queues(file, {"orders/1": QueueEnd(1, 2)})
    before = file.read_bytes() + b"orders/"
    file.write_bytes(before)
    os.utime(file, (0, 0))
    synced: list[str] = []
    names: list[str] = []
    for call, into in (("fdatasync", synced), ("fsync", names)):
        monkeypatch.setattr(
            os, call, lambda handle, into=into: into.append(os.readlink(f"/proc/self/fd/{handle}"))
        )
    known = KnownQueues(file)
    list(known.sync())
    assert synced == [str(file)]
    assert file.stat().st_mtime > 0, "written again: of a sync that failed the kernel tells once"
    assert file.read_bytes() == before
    list(known.sync())
    assert synced == [str(file)], "nothing is new"
    known.note({"orders/1": QueueEnd(2, 3)})
    assert synced == [str(file)], "its name is known"
    list(known.sync())
    known.close()
    assert synced == [str(file)] * 2
    assert names == [str(tmp_path)], "its own name is made durable once"


def test_a_name_for_which_there_was_no_room_is_written_whole_by_the_next_try(
    tmp_path: Path,
) -> None:
    """The first try has left a part of the line."""
    file = tmp_path / "queues"
    make_known_queues(file)
    known = KnownQueues(file)
    known.note({"orders/0": QueueEnd(1, 2)})
    length = file.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length + 4, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            known.note({"orders/1": QueueEnd(3, 4)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes()[length:] == b"orde"
    assert load_known_queues(file) == {"orders/0": QueueEnd(1, 2)}
    known.note({"orders/1": QueueEnd(3, 4)})
    known.close()
    assert load_known_queues(file) == {"orders/0": QueueEnd(1, 2), "orders/1": QueueEnd(3, 4)}


def test_the_list_can_be_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    assert load_known_queues(file) == {}
    replace_known_queues(file, {"b/1": QueueEnd(1, 2), "a/0": QueueEnd(3, 4)})
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["./0", "a/0", "b/1"]
    os.utime(file, (0, 0))
    replace_known_queues(file, {"a/0": QueueEnd(3, 4), "b/1": QueueEnd(1, 2)})
    assert file.stat().st_mtime == 0, "it says so already"
    replace_known_queues(file, {})
    assert load_known_queues(file) == {} and file.exists()


def test_a_run_s_memory_goes_before_the_list_where_it_has_entries_and_has_come_further(
    tmp_path: Path,
) -> None:
    create_queue_table(tmp_path / "table", 8)
    table = QueueTable(tmp_path / "table", writable=True)
    for slot, bounds in enumerate([(0, 5), (2, 3), (4, 4), (0, 0), (0, 6), (0, 7), (1, 8), (0, 9)]):
        table.add(slot, QueueKey("gone" if slot == 5 else "orders", slot), *bounds)
    table.mark_deleted(4)
    known = {"orders/1": QueueEnd(3, 100), "orders/0": QueueEnd(4, 200), "others/0": QueueEnd(1, 2)}
    found = with_memory(known, table, 7, {"gone"})
    new = {"orders/0": QueueEnd(5, UNKNOWN), "orders/6": QueueEnd(8, UNKNOWN)}
    assert found == known | new, "those after a deleted one, too, and not what is not counted yet"
    table.close()


@pytest.mark.parametrize("strange", [b"\n", b"\0\n", b"orders/0\n\n", b"orders/1 7 7 00000000\n"])
@pytest.mark.parametrize("place", range(4))
def test_a_list_with_anything_strange_at_any_place_has_lost_lines(
    tmp_path: Path, place: int, strange: bytes
) -> None:
    file = tmp_path / "queues"
    replace_known_queues(file, {"orders/0": QueueEnd(5, 6), "orders/2": QueueEnd(7, 8)})
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3 and not lacks_lines(file)
    file.write_bytes(b"".join([*lines[:place], strange, *lines[place:]]))
    assert lacks_lines(file)


def test_a_name_that_would_lead_out_of_its_place_is_no_queue_s(tmp_path: Path) -> None:
    """Lines of the first versions have no checksum, and a name becomes a path."""
    file = tmp_path / "queues"
    file.write_bytes(b"../3\norders/../../x/0\norders/./0\na/b/0\n/0\n./1\norders/7\n")
    assert load_known_queues(file) == {"orders/7": QueueEnd()}


def test_what_a_crash_has_cut_off_names_no_other_queue(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    replace_known_queues(file, {"orders/12": QueueEnd(5, 6)})
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(b"orders/12") + len("orders/1")])
    assert load_known_queues(file) == {}


def test_of_the_same_list_one_writes_lines_once_and_numbers_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced, sync = tmp_path / "queues", list[bytes](), os.fdatasync
    make_known_queues(file)

    def note(handle: int) -> None:
        synced.append(file.read_bytes())
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    known = KnownQueues(file)
    assert not known.note({WATERMARK: QueueEnd(7)}), "that line is there from the beginning"
    names = [f"orders/{number}" for number in range(3)]
    assert known.note({name: QueueEnd(1, 2) for name in names})
    assert synced == [file.read_bytes()], "new names are on disk at once"
    for end in (QueueEnd(3, 4), QueueEnd(5, 6)):
        assert not known.note({name: end for name in names})
        assert load_known_queues(file) == dict.fromkeys(names, end)
    assert not known.note({WATERMARK: QueueEnd(9)})
    known.close()
    assert file.read_bytes().count(b"\n") == 4 and load_known_flush(file) == 9
    assert not lacks_lines(file)
    make_known_queues(file)
    assert load_known_queues(file).keys() == set(names), "a list that is there stays"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    assert lacks_lines(file)


def test_a_directory_in_the_place_of_the_list_is_no_list(tmp_path: Path) -> None:
    assert load_known_queues(tmp_path) == {} and load_known_flush(tmp_path) == 0
    assert lacks_lines(tmp_path) and lacks_lines(tmp_path / "none")
