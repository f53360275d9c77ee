"""The sizes of a store's files: remembered, found, and never mistaken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance import rebuild
from penstock.maintenance.rebuild import rebuild_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import ManualClock, SystemClock
from penstock.shared.config import Config
from penstock.shared.config_sources import load_config
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.files.segments import segment_bases
from penstock.shared.formats.index_chains import (
    SLOT_DTYPE,
    Entries,
    counted,
    link_entries,
    move_slots,
)
from penstock.shared.formats.index_layout import HEADER, Geometry, IndexHeader
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.index.directory import index_files
from penstock.shared.index.slots import find_geometry
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.run_directory import remove_run_directory
from penstock.shared.recovery.check_files import check_files
from penstock.shared.recovery.open_store import open_store
from penstock.shared.store import geometry
from penstock.shared.store.geometry import (
    KEYS,
    check_lengths,
    index_sizes,
    keep_sizes,
    load_sizes,
    settled_but_index,
    settled_sizes,
    store_sizes,
)
from penstock.shared.store.geometry_search import ITEMS, LOG, QUEUE, SLOTS
from penstock.shared.store.survey import StoreSurvey

TINY = Geometry(7, 12)
Builder = Callable[..., Path]
Maker = Callable[..., Record]


class Killed(Exception):
    """In the place of a kill: nothing after it is done."""


def _index_file(path: Path, size: Geometry, hashes: list[int], gaps: list[int]) -> None:
    """What RocketMQ's puts leave, of keys with these hashes in records so far apart."""
    raw = bytearray(size.file_bytes)
    if hashes:
        offsets = np.cumsum(np.array(gaps, np.int64))
        entries = Entries(np.array(hashes, np.int64), offsets, offsets + 1_700_000_000_000)
        slots = np.zeros(size.slots, SLOT_DTYPE)
        items, empty = link_entries(slots, *entries, 1, 0)
        move_slots(slots, entries.hashes, 1)
        raw[:40] = counted(IndexHeader(), entries, empty).encode()
        raw[40 : size.table_bytes] = slots.tobytes()
        raw[size.item_at(1) : size.item_at(1) + len(items)] = items
    path.write_bytes(raw)


@given(data=st.data(), slots=st.integers(1, 400), items=st.integers(2, 300))
def test_the_slots_of_an_index_file_are_found_by_looking(
    tmp_path: Path, data: st.DataObject, slots: int, items: int
) -> None:
    size = Geometry(slots, items)
    hashes = data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=items - 1))
    gaps = [0, *data.draw(st.lists(st.sampled_from([0, 0, 91, 400]), min_size=len(hashes)))]
    path = tmp_path / "20240101000000000"
    _index_file(path, size, hashes, gaps[: len(hashes)])
    found = find_geometry([path], [])
    # with a few keys, all of one record or one slot, more than one number of slots may fit: then it
    # says so
    says_much = len(hashes) >= 16 and len({each % slots for each in hashes}) > 1
    assert found == size or found is None and not says_much
    assert find_geometry([path], [size]) == size
    if says_much and slots > 5:
        wrong = Geometry(slots - 5, items + 1)
        assert wrong.file_bytes == size.file_bytes
        assert find_geometry([path], [wrong]) == size


@pytest.mark.parametrize("used", [1, 2])
@pytest.mark.parametrize("count", [14, 15, 16])
def test_two_places_that_fit_by_chance_are_one_too_many_where_items_say_little(
    tmp_path: Path, count: int, used: int
) -> None:
    """Items of zeros only, as of one key whose hash is 0 at the log's begin: a row later they fit
    as well, with the unused row after them. Another slot in use belongs to none of them."""
    size = Geometry(40, 60)
    raw = bytearray(size.file_bytes)
    raw[:40] = HEADER.pack(0, 0, 0, 0, used, count + 1)
    raw[40:44] = count.to_bytes(4, "big")
    raw[44:48] = (used - 1).to_bytes(4, "big")
    path = tmp_path / "20240101000000000"
    path.write_bytes(raw)
    found = find_geometry([path], [])
    assert found is None if count < 16 or used == 1 else found is not None


def test_one_key_is_enough_to_see_that_a_guess_is_wrong(tmp_path: Path) -> None:
    path, size, wrong = tmp_path / "20240101000000000", Geometry(50, 40), Geometry(45, 41)
    assert wrong.file_bytes == size.file_bytes
    _index_file(path, size, [33], [0])
    assert find_geometry([path], [wrong, size]) == size


def test_the_fullest_of_the_files_tells(tmp_path: Path) -> None:
    empty, full = tmp_path / "20240101000000001", tmp_path / "20240101000000000"
    _index_file(empty, TINY, [], [])
    _index_file(full, TINY, [5, 77, 5, 1 << 30], [0, 91, 91, 91])
    assert find_geometry([full, empty], []) == TINY
    assert find_geometry([empty], []) is None
    full.write_bytes(full.read_bytes()[:40] + os.urandom(TINY.file_bytes - 40))
    assert find_geometry([full, empty], []) is None


@pytest.fixture
def store(store_builder: Builder, make_record: Maker) -> StorePaths:
    """A stopped store of 4096-byte segments, with an index, that remembers nothing."""
    keyed = encode_properties({"UNIQ_KEY": "u", "KEYS": "a b"})
    root = store_builder([make_record(body=b"x" * 300, properties=keyed) for _ in range(60)])
    paths = StorePaths(root)
    paths.staging.mkdir(parents=True)
    config = _config(paths)
    rebuild_store(paths, config, SystemClock(), queues=False, index=True)
    paths.geometry.unlink()
    assert len(index_files(paths.index)) > 2
    return paths


def _config(paths: StorePaths, **changes: Any) -> Config:
    sizes = dict(zip(KEYS, (4096, 1000, *TINY), strict=True))
    return Config(**{"store_path_root_dir": str(paths.root), **sizes, **changes})


def _values(paths: StorePaths) -> list[int]:
    return [size.value for size in store_sizes(paths).values()]


def test_files_in_a_directory_that_only_looks_like_a_queue_say_nothing(store: StorePaths) -> None:
    """`01` is not queue 1: RocketMQ would not make it, and a check does not take it for one."""
    other = store.consume_queue / "orders" / "01"
    other.mkdir()
    for number in range(20):
        (other / segment_name(number * 2000)).write_bytes(ENTRY.pack(number, 100, 7) * 100)
    assert _values(store) == [4096, 1000, *TINY]


def test_a_store_that_remembers_nothing_is_looked_at(store: StorePaths) -> None:
    assert _values(store) == [4096, 1000, *TINY]
    assert {size.origin for size in store_sizes(store).values()} == {"found in the files"}
    assert index_sizes(store) == TINY
    keep_sizes(store, _config(store))
    assert _values(store) == [4096, 1000, *TINY]
    assert {size.origin for size in store_sizes(store).values()} == {"penstock/geometry.json"}


@pytest.mark.parametrize("length", [100, 1024, 5000, 8192])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_file_that_has_grown_or_was_cut_is_outvoted_and_damage(
    store: StorePaths, length: int, which: int
) -> None:
    changed = sorted(store.commit_log.iterdir())[which]
    os.truncate(changed, length)
    assert _values(store)[0] == 4096
    said = "was cut short" if length < 4096 else "has grown"
    with (
        StoreSurvey(store, _config(store)) as survey,
        pytest.raises(StoreDamaged, match=said) as raised,
    ):
        check_files(survey)
    assert str(changed) in str(raised.value)
    assert f"penstock store repair {store.root} --apply" in raised.value.hint


def test_of_one_segment_that_queues_go_beyond_nothing_is_believed(
    store_builder: Builder, make_record: Maker
) -> None:
    paths = StorePaths(store_builder([make_record()] * 100, segment_bytes=1 << 16))
    assert _values(paths)[0] == 1 << 16
    os.truncate(paths.commit_log / segment_name(0), 8192)
    size = store_sizes(paths)[LOG]
    assert size.value == 0 and "ends before messages" in size.why
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog") as raised:
        settled_sizes(paths.root, {}, {})
    assert f"--set {LOG}=N" in raised.value.hint
    assert LOG not in settled_sizes(paths.root, {LOG: 1 << 16}, {LOG: "flag"})


def test_lengths_that_agree_on_nothing_are_no_size(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.commit_log.mkdir()
    (paths.commit_log / segment_name(0)).write_bytes(bytes(4096))
    (paths.commit_log / segment_name(1 << 20)).write_bytes(bytes(8192))
    assert store_sizes(paths)[LOG].value == 0


def test_a_default_gives_way_and_what_was_asked_for_does_not(
    store: StorePaths, tmp_path: Path
) -> None:
    root = str(store.root)
    loaded = load_config(None, {"store_path_root_dir": root}, {}, settled_sizes)
    assert [getattr(loaded.config, key) for key in KEYS] == [4096, 1000, *TINY]
    assert {loaded.origins[key] for key in KEYS} == {"store"}
    file = tmp_path / "mine.toml"
    file.write_text(f"{QUEUE} = 2000\n")
    asked: list[tuple[str, Any, Any, Any, str]] = [
        (LOG, None, {LOG: "8192"}, {}, f"leave {LOG} out"),
        (SLOTS, None, {}, {f"PENSTOCK_BROKER_{SLOTS.upper()}": "9"}, "unset PENSTOCK_BROKER_MAX"),
        (QUEUE, file, {}, {}, f"take {QUEUE} out of {file}"),
    ]
    for key, given_file, flags, environment, hint in asked:
        with pytest.raises(ConfigError) as raised:
            given = {"store_path_root_dir": root, **flags}
            load_config(given_file, given, environment, settled_sizes)
        error = raised.value
        value = dict(zip(KEYS, (4096, 1000, *TINY), strict=True))[key]
        assert key in error.what and f"has {value}, and" in str(error.value)
        assert hint in error.hint
    # the same value is no contradiction
    same = load_config(None, {"store_path_root_dir": root, LOG: 4096}, {}, settled_sizes)
    assert (same.config.mapped_file_size_commit_log_bytes, same.origins[LOG]) == (4096, "flag")


def test_rules_are_held_against_the_sizes_of_the_store(store: StorePaths) -> None:
    """The pool need not have room for what the default segment could hold."""
    given = {"store_path_root_dir": str(store.root), "transient_store_pool_bytes": 4 << 20}
    with pytest.raises(ConfigError, match="transient_store_pool_bytes"):
        load_config(None, given)
    assert load_config(None, given, {}, settled_sizes).config.max_frame_bytes == 1 << 20


def test_a_store_that_is_not_there_settles_nothing(tmp_path: Path) -> None:
    assert settled_sizes(tmp_path / "none", {}, {}) == {}


def test_a_size_binds_as_long_as_files_of_it_are_there(store: StorePaths) -> None:
    keep_sizes(store, _config(store))
    with pytest.raises(ConfigError):
        settled_sizes(store.root, {QUEUE: 2000}, {QUEUE: "flag"})
    shutil.rmtree(store.consume_queue)
    assert settled_sizes(store.root, {}, {})[QUEUE] == 1000
    assert QUEUE not in settled_sizes(store.root, {QUEUE: 2000}, {QUEUE: "flag"})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"max_index_num": "7"}', b"\xff",
                                     b'{"a":' + b"[" * 100_000,
                                     b'{"mapped_file_size_commit_log_bytes": 4097}'])  # fmt: skip
def test_a_broken_memory_is_named_and_without_it_the_files_tell(
    store: StorePaths, content: bytes
) -> None:
    keep_sizes(store, _config(store))
    store.geometry.write_bytes(content)
    with pytest.raises(StoreDamaged) as raised:
        load_sizes(store)
    assert raised.value.hint.endswith(f"rm {store.geometry}")
    (problem,) = verify_store(store.root).problems
    assert (problem.kind, problem.file) == ("geometry", str(store.geometry))
    store.geometry.unlink()
    assert _values(store) == [4096, 1000, *TINY]


def test_the_memory_of_another_store_is_told_from_damage(store: StorePaths) -> None:
    other = _config(store, **{LOG: 8192})
    keep_sizes(store, other)
    with StoreSurvey(store, other) as survey:
        for look in (partial(check_lengths, store, other), partial(check_files, survey)):
            with pytest.raises(StoreDamaged, match="not of this store") as raised:
                look()
            assert raised.value.hint.endswith(f"rm {store.geometry}")


def test_the_one_file_of_a_log_says_by_its_place_that_a_size_is_not_its_own(
    store: StorePaths,
) -> None:
    """By its length alone it might have been cut; a repair moved it away as no segment."""
    other = _config(store, **{LOG: 8192})
    keep_sizes(store, other)
    first, *_ = sorted(store.commit_log.iterdir())
    for path in store.commit_log.iterdir():
        if path != first:
            path.unlink()
    check_lengths(store, other)
    first.rename(first.with_name(segment_name(3 * 4096)))
    with pytest.raises(StoreDamaged, match="not of this store"):
        check_lengths(store, other)


@pytest.mark.parametrize("queues", [False, True])
def test_the_one_file_of_a_log_has_not_grown_where_queues_name_what_is_past_a_size(
    store_builder: Builder, make_record: Maker, queues: bool
) -> None:
    """A repair cut it at that size, and what is past it was lost."""
    records = [make_record(body=b"x" * 300) for _ in range(15)]
    paths = StorePaths(store_builder(records, segment_bytes=8192, queues=queues))
    (file,) = paths.commit_log.iterdir()
    assert 4096 < len(file.read_bytes().rstrip(bytes(1))) < 8192
    wrong, right = _config(paths), _config(paths, **{LOG: 8192})
    keep_sizes(paths, wrong)
    if queues:
        with pytest.raises(StoreDamaged, match="not of this store"):
            check_lengths(paths, wrong)
    else:
        check_lengths(paths, wrong)  # nothing tells it from one that has grown
    with file.open("ab") as grown:
        grown.write(bytes(8192))
    check_lengths(paths, right)


def _killed_at(
    monkeypatch: pytest.MonkeyPatch, module: Any, point: str, act: Callable[[], object]
) -> None:
    def die(name: str, which: str = "") -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(module, "crash_point", die)
        act()


def test_a_start_writes_sizes_down_before_the_first_file_and_a_kill_there_binds_nothing(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    paths = StorePaths(config.store)
    _killed_at(monkeypatch, geometry, "geometry.written", lambda: open_store(config, ManualClock()))
    assert load_sizes(paths).mapped_file_size_commit_log_bytes == 4096
    assert not any(paths.commit_log.iterdir())
    again = msgspec.structs.replace(config, mapped_file_size_commit_log_bytes=8192)
    opened = open_store(again, ManualClock())
    assert load_sizes(paths).mapped_file_size_commit_log_bytes == 8192
    opened.listeners.close()
    opened.positions.close()
    os.close(opened.lock)
    remove_run_directory(opened.run)


def test_a_start_with_other_sizes_changes_nothing(
    store: StorePaths, make_config: Callable[..., Config]
) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}

    before = contents()
    sizes = dict(zip(KEYS, (4096, 1000, *TINY), strict=True))
    for key in KEYS:
        other = make_config(**{**sizes, key: 2 * sizes[key]})
        with pytest.raises(ConfigError, match=key):
            open_store(other, ManualClock())
        assert contents() == before


@pytest.mark.parametrize(
    "point", ["rebuild.before_swap", "rebuild.after_swap", "rebuild.before_removal"]
)
def test_a_rebuild_may_give_the_index_another_size_and_a_kill_leaves_one_that_is_known(
    store: StorePaths, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    keep_sizes(store, _config(store))
    asked = {SLOTS: 20, ITEMS: 30}
    assert settled_but_index(store.root, asked, dict.fromkeys(asked, "flag")) == {
        LOG: 4096,
        QUEUE: 1000,
    }
    other = _config(store, **asked)

    def again() -> object:
        return rebuild_store(store, other, SystemClock(), queues=False, index=True)

    _killed_at(monkeypatch, rebuild, point, again)
    had = TINY if point == "rebuild.before_swap" else Geometry(20, 30)
    assert index_sizes(store) == had
    assert verify_store(store.root).ok
    again()
    assert _values(store) == [4096, 1000, 20, 30] and verify_store(store.root).ok


def test_an_index_without_a_key_needs_to_be_told_its_size_or_to_be_made_anew(
    store: StorePaths,
) -> None:
    shutil.rmtree(store.index)
    store.index.mkdir()
    _index_file(store.index / "20240101000000000", TINY, [], [])
    with pytest.raises(ConfigError, match="maxHashSlotNum") as raised:
        settled_sizes(store.root, {}, {})
    assert raised.value.hint.endswith(f"penstock store rebuild {store.root} --index")
    assert SLOTS not in settled_but_index(store.root, {}, {})
    assert settled_sizes(store.root, {SLOTS: TINY.slots}, {SLOTS: "flag"})[ITEMS] == TINY.items
    assert index_sizes(store, items=TINY.items) == TINY
    assert any("not checked" in note for note in verify_store(store.root).notes)


def test_a_segment_of_a_strange_name_is_none_of_the_log(store: StorePaths) -> None:
    keep_sizes(store, _config(store))
    bases = segment_bases(store.commit_log, 4096)
    shutil.copy(store.commit_log / segment_name(4096), store.commit_log / segment_name(123))
    report = verify_store(store.root)
    assert [problem.kind for problem in report.problems] == ["log-segment-name"]
    assert report.segments == len(bases) and report.messages == 60
    assert report.advice == [f"penstock store repair {store.root} --apply"]
