"""penstock/geometry.json: what is written down of a store's sizes, and what is no such file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.store.geometry import (
    KEYS,
    Sizes,
    check_lengths,
    index_sizes,
    keep_sizes,
    load_sizes,
    settled_sizes,
)
from penstock.shared.store.geometry_search import ITEMS, LOG, QUEUE, SLOTS

PAGE = 4096


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    found = StorePaths(tmp_path)
    found.own.mkdir()
    return found


@pytest.mark.parametrize("index", [True, False])
def test_all_sizes_are_written_down_but_those_of_an_index_that_becomes_another_one(
    paths: StorePaths, make_config: Callable[..., Config], index: bool
) -> None:
    config = make_config()
    assert load_sizes(paths) == Sizes()
    keep_sizes(paths, config, index=index)
    written = json.loads(paths.geometry.read_bytes())
    assert written == {key: getattr(config, key) for key in KEYS if index or key in (LOG, QUEUE)}
    assert load_sizes(paths) == Sizes(**written)
    os.utime(paths.geometry, (0, 0))
    keep_sizes(paths, config, index=index)
    assert paths.geometry.stat().st_mtime == 0, "it says so already"
    keep_sizes(paths, config, index=not index)
    assert paths.geometry.stat().st_mtime > 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"%s": 5000}' % LOG.encode(),
        b'{"%s": "a"}' % LOG.encode(),
    ],
)
def test_what_holds_no_sizes_is_named(paths: StorePaths, raw: bytes) -> None:
    paths.geometry.write_bytes(raw)
    with pytest.raises(StoreDamaged, match="does not hold the sizes"):
        load_sizes(paths)


def test_a_file_in_the_store_s_place_is_the_mistake_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="this is a file"):
        load_sizes(StorePaths(tmp_path / "file"))
    (tmp_path / "penstock").touch()
    with pytest.raises(NotADirectoryError):
        load_sizes(StorePaths(tmp_path))


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("file /etc/a.toml", f"take {LOG} out of /etc/a.toml"),
        ("PENSTOCK_SIZE", "unset PENSTOCK_SIZE"),
        ("--set", f"leave {LOG} out"),
    ],
)
def test_who_asks_for_another_size_is_told_where_to_take_it_back(
    paths: StorePaths, origin: str, hint: str
) -> None:
    paths.commit_log.mkdir()
    (paths.commit_log / segment_name(0)).write_bytes(bytes(PAGE))
    assert settled_sizes(paths.root, {}, {}) == {LOG: PAGE}
    assert settled_sizes(paths.root, {LOG: PAGE}, {}) == {LOG: PAGE}
    with pytest.raises(ConfigError, match="another mapped_file_size_commit_log_bytes") as told:
        settled_sizes(paths.root, {LOG: 2 * PAGE}, {LOG: origin})
    assert told.value.hint.startswith(hint) and "make the index anew" not in told.value.hint


def test_of_an_index_that_is_to_be_read_what_is_given_counts(paths: StorePaths) -> None:
    default = Config()
    assert index_sizes(paths) == (default.max_hash_slot_num, default.max_index_num)
    assert index_sizes(paths, 7) == (7, default.max_index_num)
    assert index_sizes(paths, items=9) == (default.max_hash_slot_num, 9)
    assert index_sizes(paths, 7, 9) == (7, 9)
    paths.geometry.write_bytes(json.dumps({SLOTS: 30, ITEMS: 40}).encode())
    assert index_sizes(paths) == (30, 40) and index_sizes(paths, 7) == (7, 40)
    paths.geometry.unlink()
    paths.index.mkdir()
    (paths.index / "20240101000000000").write_bytes(bytes(1000))
    with pytest.raises(ConfigError, match="max_hash_slot_num is not known"):
        index_sizes(paths)
    with pytest.raises(ConfigError, match="max_index_num is not known"):
        index_sizes(paths, 7)


@pytest.mark.parametrize(
    ("files", "is_wrong"),
    [
        ({}, False),
        ({0: PAGE}, False),
        ({0: PAGE, PAGE: 2 * PAGE, 3 * PAGE: 2 * PAGE}, False),
        ({0: 2 * PAGE, 2 * PAGE: 2 * PAGE}, True),
        ({0: 2 * PAGE, 2 * PAGE: 2 * PAGE, 4 * PAGE: 3 * PAGE}, True),
        # one that occurs once may have been cut or have grown, unless its name says otherwise
        ({0: 2 * PAGE}, False),
        ({PAGE: 2 * PAGE}, False),
        ({3 * PAGE: 3 * PAGE}, False),
        ({PAGE // 2: PAGE // 2}, True),
        ({PAGE // 2: PAGE}, False),
    ],
)
@pytest.mark.parametrize("remembered", [True, False])
def test_a_size_is_wrong_where_lengths_occur_again_or_names_fit_another_one(
    paths: StorePaths, files: dict[int, int], is_wrong: bool, remembered: bool
) -> None:
    paths.commit_log.mkdir()
    for base, length in files.items():
        (paths.commit_log / segment_name(base)).write_bytes(bytes(length))
    config = Config(mapped_file_size_commit_log_bytes=PAGE)
    if remembered:
        paths.geometry.write_bytes(json.dumps({LOG: PAGE}).encode())
    if not is_wrong:
        check_lengths(paths, config)
        return
    with pytest.raises(StoreDamaged if remembered else ConfigError):
        check_lengths(paths, config)
