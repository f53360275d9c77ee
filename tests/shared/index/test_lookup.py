"""Queries of a store's index against a plain reading of all its records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance.store_query import StoreQuery
from penstock.shared.errors import InvalidArgument, MessageNotFound
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SYS_TRANSACTION_ROLLBACK
from penstock.shared.index.directory import index_files
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.directory import StoreDirectory

ST = 1700000001456
EVER = 1 << 60
TINY = Geometry(3, 8)

Make = Callable[..., Record]


@pytest.fixture
def indexed(store_builder: Callable[..., Path]) -> Callable[[list[Record]], Path]:
    """A store with these records, and an index of few slots and short files."""

    def make(records: list[Record]) -> Path:
        root = store_builder(records, queues=False)
        (root / "half-made").mkdir()
        with StoreDirectory(root) as store:
            rebuild_index(store, root / "index", root / "half-made", TINY, lambda: ST)
        return root

    return make


def _query(root: Path, key: str, most: int = 64, begin: int = 0, end: int = EVER) -> list[Record]:
    with StoreDirectory(root) as store, StoreQuery(store, *TINY) as query:
        found = query.by_key("orders", key, most, begin, end, False)
    return [decode_record(raw) for raw in found]


def _record(make: Make, words: str, unique: str, at_ms: int, **changes: object) -> Record:
    named = {"KEYS": words, "UNIQ_KEY": unique}
    raw = encode_properties({key: text for key, text in named.items() if text})
    return make(body=b"x", properties=raw, store_timestamp_ms=at_ms, **changes)


names = st.sampled_from(["a", "b", "Engnocb", "ключ", "🚀"])
drawn = st.lists(
    st.tuples(
        st.lists(names, max_size=3),  # KEYS
        st.sampled_from(["", "u1", "u2", "a"]),
        st.integers(0, 3000),  # ms since the one before
        st.sampled_from(["orders", "others"]),
        st.sampled_from([0, 0, 0, SYS_TRANSACTION_ROLLBACK]),
    ),
    min_size=1,
    max_size=30,
)


@given(
    drawn,
    st.sampled_from(["a", "b", "Engnocb", "ключ", "🚀", "u1", "u2", "absent"]),
    st.integers(1, 9),
)
def test_the_newest_records_with_a_key_are_found_each_once_in_log_order(
    indexed: Callable[[list[Record]], Path],
    make_record: Make,
    tmp_path: Path,
    rows: list[tuple[list[str], str, int, str, int]],
    key: str,
    most: int,
) -> None:
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    at_ms, records = ST, []
    for words, unique, passed, topic, flag in rows:
        at_ms += passed
        record = _record(make_record, " ".join(words), unique, at_ms, topic=topic, sys_flag=flag)
        records.append(record)
    found = _query(indexed(records), key, most)
    model = []
    for record in records:
        held = decode_properties(record.properties)
        keys = {held.get("UNIQ_KEY", ""), *held.get("KEYS", "").split(" ")}
        if record.topic == "orders" and key in keys and not record.sys_flag:
            model.append(record)
    assert [(r.properties, r.store_timestamp_ms) for r in found] == [
        (r.properties, r.store_timestamp_ms) for r in model[-most:]
    ]


def test_times_count_to_the_second_from_the_files_beginning(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    """An item says how many whole seconds after the file's first record it came."""
    steps = [0, 999, 1000, 2500, 9000]
    root = indexed([_record(make_record, "a", "", ST + step) for step in steps])

    def found(begin: int, end: int) -> list[int]:
        return [r.store_timestamp_ms - ST for r in _query(root, "a", 64, ST + begin, ST + end)]

    assert found(0, 9000) == steps
    assert found(0, 0) == [0, 999]
    assert found(1, 999) == []
    assert found(1, 2000) == [1000, 2500]
    assert found(2001, 8999) == []
    assert found(9001, 20_000) == [] and found(-5000, -1) == []


def test_a_key_of_many_files_is_found_in_all_of_them_and_only_there(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    root = indexed([_record(make_record, "a", "", ST + 10 * n) for n in range(60)])
    assert len(index_files(root / "index")) == 9
    assert len(_query(root, "a")) == 60
    assert [r.store_timestamp_ms for r in _query(root, "a", 3)] == [ST + 570, ST + 580, ST + 590]
    assert _query(root, "b") == []


def test_keys_with_the_same_hash_are_told_apart(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    pair = ("Aa", "BB")  # equal in Java
    root = indexed([_record(make_record, pair[n % 2], "", ST + n) for n in range(9)])
    assert [r.store_timestamp_ms - ST for r in _query(root, "Aa", 2)] == [6, 8]
    assert [r.store_timestamp_ms - ST for r in _query(root, "BB")] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("key", "most", "begin", "end"), [("", 1, 0, 1), ("a", 0, 0, 1), ("a", 1, 2, 1)]
)
def test_nonsense_is_refused(
    indexed: Callable[[list[Record]], Path],
    make_record: Make,
    key: str,
    most: int,
    begin: int,
    end: int,
) -> None:
    with pytest.raises(InvalidArgument):
        _query(indexed([make_record()]), key, most, begin, end)


def test_an_id_names_one_record_or_none(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    inner = b"\xda\xa3\x20\xa7" * 30  # looks like the beginning of a record, here and there
    root = indexed([make_record(body=inner) for _ in range(3)])
    with StoreDirectory(root) as store, StoreQuery(store, *TINY) as query:
        starts = [step[0] for step in store.scan_log() if step[1] is Kind.RECORD]
        host = make_record().store_host
        for offset in range(starts[-1] + 400):
            name = offset_message_id(host, offset)
            if offset in starts:
                assert decode_record(query.by_id(name)).physical_offset == offset
                assert query.by_id(name.lower()) == query.by_id(name)
            else:
                with pytest.raises(MessageNotFound, match=name):
                    query.by_id(name)
        for wrong in (offset_message_id(bytes(8), 0), "ff" * 16, "7f" * 28, "00" * 8 + "f" * 16):
            with pytest.raises(MessageNotFound):
                query.by_id(wrong)
        with pytest.raises(InvalidArgument):
            query.by_id("no id")
