"""The list of queues that have been: what a start misses when a directory is gone."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.known_queues import (
    KnownQueues,
    load_known_queues,
    make_known_queues,
    replace_known_queues,
)

NAMES = st.lists(st.from_regex(r"[a-z%_-]{1,9}/[0-9]{1,3}", fullmatch=True), max_size=20)


@given(NAMES, st.data())
def test_a_name_is_there_from_when_it_was_added_whatever_the_last_write_left(
    tmp_path_factory: object, names: list[str], data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("store") / "penstock" / "queues"  # type: ignore[attr-defined]
    file.parent.mkdir()
    make_known_queues(file)
    added: set[str] = set()
    for name in names:
        known = KnownQueues(file)
        known.add([name])
        known.close()
        added.add(name)
        assert load_known_queues(file) == added
    content = file.read_bytes() if names else b""
    cut = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:cut])
    whole = {line.decode() for line in content[:cut].split(b"\n")[:-1]}
    assert load_known_queues(file) == whole
    known = KnownQueues(file)
    known.add(["again/1"])
    known.close()
    assert load_known_queues(file) == whole | {"again/1"}


def test_what_a_predecessor_wrote_and_did_not_sync_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as known, so nobody would ever write it again."""
    file = tmp_path / "queues"
    file.write_bytes(b"orders/1\norders/")
    os.utime(file, (0, 0))
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    known = KnownQueues(file)
    list(known.sync())
    assert synced == [str(file)]
    assert file.stat().st_mtime > 0, "written again: of a sync that failed the kernel tells once"
    assert file.read_bytes() == b"orders/1\norders/"
    known.add(["orders/1"])
    list(known.sync())
    known.close()
    assert synced == [str(file)]


def test_a_name_for_which_there_was_no_room_is_written_whole_by_the_next_try(
    tmp_path: Path,
) -> None:
    """The first try has left a part of the line."""
    file = tmp_path / "queues"
    make_known_queues(file)
    known = KnownQueues(file)
    known.add(["orders/0"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            known.add(["orders/1"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == b"orders/0\nord" and load_known_queues(file) == {"orders/0"}
    known.add(["orders/1"])
    known.close()
    assert load_known_queues(file) == {"orders/0", "orders/1"}


def test_the_list_can_be_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "queues"
    assert load_known_queues(file) == set()
    replace_known_queues(file, ["b/1", "a/0"])
    assert file.read_text() == "a/0\nb/1\n"
    replace_known_queues(file, ())
    assert load_known_queues(file) == set() and file.exists()
