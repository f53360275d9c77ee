"""Queries take turns: none is worked at for longer than a turn, however many wait."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.shared.config import Config
from penstock.shared.errors import InvalidArgument, PenstockError, StoreDamaged, StoreUnavailable
from penstock.shared.formats.index_chains import Entries, key_hashes
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
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
        self.log = b""
        create_positions(page)
        self.positions = Positions(page, "supervisor")
        self.turns = QueryTurns[int](config, self.positions, self._log_at, lambda: self.now_ms)

    def _log_at(self, offset: int, stop: int) -> bytes:
        self.read.append((offset, stop))
        self.now_ms += self.step_ms
        if self.error is not None:
            raise self.error
        return self.log[offset:stop]

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


COUNT, FIRST_MS = 6, 1_700_000_000_000


@pytest.fixture
def keyed(make_store: Callable[..., Store], tmp_path: Path) -> Store:
    """Six messages with one key and one unique key, a second between them."""
    store = make_store(
        max_hash_slot_num=3, max_index_num=40, default_query_max_num=2, max_msgs_num_batch=4
    )
    words = {"KEYS": "k", "UNIQ_KEY": "u"}
    raw = encode_record(Record("orders", b"body", properties=encode_properties(words)))
    size = len(raw)
    store.log = b"".join(
        encode_record(replace(decode_record(raw), physical_offset=at * size)) for at in range(COUNT)
    )
    directory, staging = tmp_path / "store" / "index", tmp_path / "staging"
    staging.mkdir()
    directory.parent.mkdir()
    files = IndexFiles(directory, staging, Geometry(3, 40), lambda: FIRST_MS)
    for key in (b"orders#k", b"orders#u"):
        codes = [int(key_hashes([key])[0])] * COUNT
        offsets = [at * size for at in range(COUNT)]
        times = [FIRST_MS + 1000 * at for at in range(COUNT)]
        columns = codes, offsets, times
        files.put(Entries(*(np.array(column, np.int64) for column in columns)))
    files.close()
    store.reach(dispatched=len(store.log))
    return store


def _found(store: Store, query: Query) -> list[int]:
    """The log offsets of what is found, in records."""
    store.turns.add(1, query)
    while not (ended := store.turns.work()):
        pass
    ((_, _, answer),) = ended
    assert isinstance(answer, list)
    return [decode_record(raw).physical_offset * COUNT // len(store.log) for raw in answer]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (Query(1, "orders", "k", 64, 0, 1 << 60, False), [2, 3, 4, 5]),  # max_msgs_num_batch
        (Query(1, "orders", "k", 3, 0, 1 << 60, False), [3, 4, 5]),
        (Query(1, "orders", "u", 64, 0, 1 << 60, True), [4, 5]),  # default_query_max_num
        (Query(1, "orders", "u", 1, 0, 1 << 60, True), [4, 5]),
        (Query(1, "orders", "k", 64, FIRST_MS + 1000, FIRST_MS + 2000, False), [1, 2]),
        (Query(1, "orders", "other", 64, 0, 1 << 60, False), []),
    ],
)
def test_as_many_are_found_as_are_asked_for_and_set(
    keyed: Store, asked: Query, found: list[int]
) -> None:
    assert _found(keyed, asked) == found


@pytest.mark.parametrize(
    "asked",
    [
        Query(1, "../orders", "k", 64, 0, 1, False),
        Query(1, "orders", "", 64, 0, 1, False),
        Query(1, "orders", "k", 0, 0, 1, False),
        Query(1, "orders", "k", 64, 2, 1, False),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_at_once(keyed: Store, asked: Query) -> None:
    with pytest.raises(InvalidArgument):
        keyed.turns.add(1, asked)
    assert not keyed.turns.waiting


def test_the_index_was_last_updated_with_its_newest_message(keyed: Store) -> None:
    last = len(keyed.log) * (COUNT - 1) // COUNT
    assert keyed.turns.last_update() == (FIRST_MS + 1000 * (COUNT - 1), last)


def test_queries_take_turns_and_one_that_can_go_on_is_enough_to_be_busy(
    make_store: Callable[..., Store],
) -> None:
    store = make_store()
    store.reach(dispatched=100)
    store.turns.add(1, by_id(40))
    store.reach(flushed=200)
    store.turns.add(2, by_id(40))
    assert store.turns.busy, "the first can go on, though the second waits"
    assert [peer for peer, _, _ in store.turns.work()] == [1]
    store.reach(dispatched=200)
    store.step_ms = TURN_MS
    store.turns.add(3, by_id(40))
    order = []
    while store.turns.waiting:
        order += [peer for peer, _, _ in store.turns.work()]
    assert order == [2, 3]


def test_files_of_the_index_are_closed_with_the_queries(keyed: Store, tmp_path: Path) -> None:
    keyed.turns.last_update()
    (path,) = index_files(tmp_path / "store" / "index")
    assert str(path) in Path("/proc/self/maps").read_text()
    keyed.turns.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_within_a_turn_each_query_has_its_step(keyed: Store) -> None:
    older = Query(1, "orders", "k", 64, FIRST_MS, FIRST_MS + 2000, False)
    keyed.turns.add(1, older)
    keyed.turns.add(2, Query(1, "orders", "k", 64, FIRST_MS + 3000, FIRST_MS + 5000, False))
    keyed.step_ms = 1
    assert keyed.turns.work() == []
    read = [at * COUNT // len(keyed.log) for at, _ in keyed.read]
    assert [at for at, _ in itertools.groupby(read)][:2] == [2, 5]
