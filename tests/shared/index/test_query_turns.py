"""Queries take turns: none is worked at for longer than a turn, however many wait."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.shared.config import Config
from penstock.shared.errors import PenstockError, StoreDamaged, StoreUnavailable
from penstock.shared.formats.index_chains import Entries, key_hashes
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index import query_turns
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFiles
from penstock.shared.index.query_turns import CATCH_UP_MS, TURN_MS, QueryTurns
from penstock.shared.memory.positions import Positions, create_positions
from penstock.shared.wire.messages import Query, QueryById


def by_id(offset: int) -> QueryById:
    """A query for the message at this offset of the log."""
    return QueryById(1, f"7F000001{10911:08X}{offset:016X}")


class Store:
    """What queries see of a store: its positions, a clock, and a log that a test may break."""

    def __init__(self, page: Path, config: Config) -> None:
        self.now_ms = 1000
        # how long a read takes
        self.step_ms = 0
        self.read: list[tuple[int, int]] = []
        self.error: OSError | None = None
        create_positions(page)
        self.positions = Positions(page, "supervisor")
        self.turns = QueryTurns[int](config, self.positions, self._log_at, lambda: self.now_ms)

    def _log_at(self, offset: int, size: int) -> bytes:
        self.read.append((offset, size))
        self.now_ms += self.step_ms
        if self.error is not None:
            raise self.error
        return b""

    def reach(self, **positions: int) -> None:
        for name, value in positions.items():
            self.positions.initialise(name, value)


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    made: list[Store] = []

    def make(**keys: Any) -> Store:
        config = Config(store_path_root_dir=str(tmp_path / "store"), **keys)
        made.append(Store(tmp_path / f"positions-{len(made)}", config))
        return made[-1]

    yield make
    for each in made:
        each.turns.close()
        each.positions.close()


def test_a_turn_ends_when_its_time_is_over_and_the_next_one_goes_on(tmp_path: Path) -> None:
    create_positions(tmp_path / "positions")
    positions = Positions(tmp_path / "positions")
    times = itertools.count(0, TURN_MS)
    config = Config(store_path_root_dir=str(tmp_path))
    turns = QueryTurns[int](config, positions, lambda offset, size: b"", lambda: next(times))
    for peer in (1, 2):
        turns.add(peer, QueryById(peer, "no id"))
    # each step takes as long as a turn may
    ended = [turns.work() for _ in range(4)]
    assert [[peer for peer, _, _ in each] for each in ended] == [[], [], [1], [2]]
    assert all(isinstance(answer, PenstockError) for each in ended for _, _, answer in each)
    assert not turns.waiting
    turns.close()
    positions.close()


@pytest.mark.parametrize(("flush", "word"), [("async", "wrote"), ("sync", "flushed")])
def test_a_query_waits_for_what_was_acknowledged_before_it_and_only_for_a_while(
    make_store: Callable[..., Store], flush: str, word: str
) -> None:
    store = make_store(flush_disk_type=flush)
    turns = store.turns
    assert (turns.busy, turns.waiting) == (False, False)
    store.reach(**{"wrote": 90, "flushed": 80, "dispatched": 0, word: 100})
    turns.add(1, by_id(40))
    store.reach(dispatched=99)
    assert (turns.busy, turns.waiting, turns.work()) == (False, True, [])
    store.reach(dispatched=100)
    assert (turns.busy, turns.waiting) == (True, True)
    ((peer, request, answer),) = turns.work()
    assert (peer, request) == (1, by_id(40)) and isinstance(answer, PenstockError)
    assert (turns.busy, turns.waiting) == (False, False)

    store.reach(**{word: 200})
    turns.add(2, by_id(40))
    store.now_ms += CATCH_UP_MS - 1
    assert turns.work() == [] and not turns.busy
    store.now_ms += 1
    assert [peer for peer, _, _ in turns.work()] == [2]


def test_a_query_that_is_asked_again_goes_on_and_another_one_takes_its_place(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    store.reach(dispatched=100)
    store.turns.add(1, by_id(40))
    store.reach(flushed=200)
    store.turns.add(1, by_id(40))  # else it would wait for what was flushed since
    assert store.turns.busy
    store.turns.add(1, by_id(50))
    assert not store.turns.busy
    store.reach(dispatched=200)
    assert [request for _, request, _ in store.turns.work()] == [by_id(50)]


def test_one_query_too_many_is_refused_but_not_one_of_an_asker_that_waits_already(
    make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_turns, "MAX_QUERIES", 2)
    turns = make_store().turns
    for peer in (1, 2):
        turns.add(peer, by_id(peer))
    with pytest.raises(StoreUnavailable):
        turns.add(3, by_id(3))
    turns.add(2, by_id(4))
    assert [(peer, request) for peer, request, _ in turns.work()] == [(1, by_id(1)), (2, by_id(4))]


@pytest.mark.parametrize(
    ("offset", "is_read"), [(19, False), (20, True), (99, True), (100, False), (101, False)]
)
def test_the_log_is_read_only_where_it_is_dispatched_and_has_not_expired(
    make_store: Callable[..., Store], offset: int, is_read: bool
) -> None:
    store = make_store()
    store.reach(log_start=20, dispatched=100)
    store.turns.add(1, by_id(offset))
    ((_, _, answer),) = store.turns.work()
    assert isinstance(answer, PenstockError)
    assert bool(store.read) == is_read
    assert all(stop <= 100 for _, stop in store.read)


def test_a_file_that_cannot_be_read_is_damage_but_a_shortage_is_the_actors_own_affair(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    store.reach(dispatched=100)
    store.error = OSError(errno.EIO, "the disk", "/store/commitlog/00")
    store.turns.add(1, by_id(40))
    ((_, _, answer),) = store.turns.work()
    assert isinstance(answer, StoreDamaged) and "the disk" in str(answer)
    assert "/store" in answer.hint
    store.error = OSError(errno.EMFILE, "no descriptor")
    store.turns.add(1, by_id(40))
    with pytest.raises(OSError, match="no descriptor"):
        store.turns.work()


def test_an_index_file_that_is_deleted_while_a_query_reads_it_is_closed_after_that(
    make_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = make_store(max_hash_slot_num=3, max_index_num=8)
    directory, staging = tmp_path / "store" / "index", tmp_path / "staging"
    staging.mkdir()
    directory.parent.mkdir()
    files = IndexFiles(directory, staging, Geometry(3, 8), lambda: 1_700_000_000_000)
    code = int(key_hashes([b"orders#k"])[0])
    columns = [code] * 3, [100, 200, 300], [1_700_000_000_000] * 3
    files.put(Entries(*(np.array(column, np.int64) for column in columns)))
    files.close()
    store.reach(dispatched=1000)
    store.turns.add(1, Query(1, "orders", "k", 64, 0, 1 << 60, False))
    store.step_ms = TURN_MS  # each record that is read takes as long as a turn may
    assert store.turns.work() == []
    (path,) = index_files(directory)
    path.unlink()
    for is_read in (True, False):
        store.turns.release_deleted()
        assert (str(path) in Path("/proc/self/maps").read_text()) is is_read
        while store.turns.waiting:
            store.turns.work()
    assert [at for at, _ in store.read] == [300, 200, 100]
