"""Queries of a store's index against a plain reading of all its records."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance.store_query import StoreQuery
from penstock.shared.errors import InvalidArgument, MessageNotFound
from penstock.shared.formats.index_layout import HEADER, ITEM, SLOT_BYTES, Geometry
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import SYS_TRANSACTION_ROLLBACK
from penstock.shared.index.directory import index_files
from penstock.shared.index.lookup import MAX_KEY_BYTES, IndexView, KeyQuery, look_up
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
    assert found(9000, 9000) == [9000]
    assert found(9001, 20_000) == [] and found(-5000, -1) == []


@pytest.mark.parametrize("seconds", [0, -1])
@pytest.mark.parametrize("previous", range(-1, 9))
def test_a_link_that_leads_to_no_older_item_ends_a_chain(
    indexed: Callable[[list[Record]], Path], make_record: Make, previous: int, seconds: int
) -> None:
    """Seven items fill the file; the fifth leads elsewhere, or says a time that none has."""
    root = indexed([_record(make_record, "a", "", ST + n) for n in range(1, 8)])
    (file,) = index_files(root / "index")
    raw = bytearray(file.read_bytes())
    at = TINY.item_at(5)
    code, offset, _, before = ITEM.unpack_from(raw, at)
    assert before == 4, "else this shows nothing"
    ITEM.pack_into(raw, at, code, offset, seconds, previous)
    file.write_bytes(raw)
    found = [r.store_timestamp_ms - ST for r in _query(root, "a")]
    older = range(1, previous + 1) if previous < 5 else ()
    assert found == ([*older, 5, 6, 7] if not seconds else [6, 7])


def test_a_key_of_many_files_is_found_in_all_of_them_and_only_there(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    root = indexed([_record(make_record, "a", "", ST + 10 * n) for n in range(60)])
    assert len(index_files(root / "index")) == 9
    assert len(_query(root, "a")) == 60
    assert [r.store_timestamp_ms for r in _query(root, "a", 3)] == [ST + 570, ST + 580, ST + 590]
    assert _query(root, "b") == []


@pytest.mark.parametrize("first", [-1, 0, 1, 4, 7, 8, 9])
def test_a_slot_that_leads_to_no_item_has_none(
    indexed: Callable[[list[Record]], Path], make_record: Make, first: int
) -> None:
    root = indexed([_record(make_record, "a", "", ST + n) for n in range(1, 8)])
    (file,) = index_files(root / "index")
    raw = bytearray(file.read_bytes())
    for slot in range(TINY.slots):
        struct.pack_into(">i", raw, HEADER.size + slot * SLOT_BYTES, first)
    file.write_bytes(raw)
    found = [r.store_timestamp_ms - ST for r in _query(root, "a")]
    assert found == [*range(1, first + 1 if first < 8 else 0)]


def test_of_too_many_bytes_the_newest_are_answered_and_one_in_any_case(
    indexed: Callable[[list[Record]], Path], make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = indexed([_record(make_record, "a", "", ST + n) for n in range(5)])
    size = _query(root, "a")[0].total_size
    for most_bytes, count in ((1, 1), (2 * size - 1, 1), (2 * size, 2), (4 * size, 4)):
        monkeypatch.setattr("penstock.shared.index.lookup.MAX_ANSWER_BYTES", most_bytes)
        assert [r.store_timestamp_ms - ST for r in _query(root, "a")] == [*range(5 - count, 5)]


@pytest.mark.parametrize(("count", "pauses"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 5)])
def test_a_walk_along_others_items_pauses_now_and_then(
    indexed: Callable[[list[Record]], Path],
    make_record: Make,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    pauses: int,
) -> None:
    """After each second one here, and after a file: seven fill one."""
    monkeypatch.setattr("penstock.shared.index.lookup._STRIDE", 2)
    monkeypatch.setattr(f"{__name__}.TINY", Geometry(1, 8))
    root = indexed([_record(make_record, "a", "", ST + n) for n in range(count)])
    view = IndexView(root / "index", Geometry(1, 8))
    query = KeyQuery("orders", "another", 64, 0, EVER, False)
    assert len(list(look_up(view.files(), query, lambda offset, size: b""))) == pauses
    view.close()


def test_files_with_the_same_times_are_all_looked_through(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    root = indexed([_record(make_record, "a", "", ST) for _ in range(20)])
    assert len(index_files(root / "index")) == 3
    assert len(_query(root, "a", 64, ST, ST)) == 20


def test_files_that_expire_as_a_query_begins_hide_no_other(
    indexed: Callable[[list[Record]], Path], make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed, and gone when they are opened, in any order."""
    root = indexed([_record(make_record, "a", "", ST + 10 * n) for n in range(60)])
    for kept in sorted(path.name for path in index_files(root / "index")):
        place = shutil.copytree(root / "index", root / f"index-{kept}")

        def list_and_expire(directory: Path, kept: str = kept) -> list[Path]:
            found = index_files(directory)
            for path in found:
                if path.name != kept:
                    path.unlink()
            return found

        view = IndexView(place, TINY)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.shared.index.lookup.index_files", list_and_expire)
            assert [each.path.name for each in view.files()] == [kept]
        view.close()


def test_files_that_are_deleted_are_closed_and_the_others_stay(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    root = indexed([_record(make_record, "a", "", ST + 10 * n) for n in range(60)])

    def opened() -> set[str]:
        links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return {Path(each).name for each in links if each.startswith(f"{root}/index/")}

    view = IndexView(root / "index", TINY)
    files = sorted(path.name for path in index_files(root / "index"))
    assert [each.path.name for each in view.files()] == files[::-1]
    for name in files[:-2]:
        (root / "index" / name).unlink()
    assert len(opened()) == len(files)
    view.release_deleted()
    assert opened() == {*files[-2:]}
    assert [each.path.name for each in view.files()] == files[:-3:-1]
    view.close()
    assert opened() == set()


def test_keys_with_the_same_hash_are_told_apart(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    pair = ("Aa", "BB")  # equal in Java
    root = indexed([_record(make_record, pair[n % 2], "", ST + n) for n in range(9)])
    assert [r.store_timestamp_ms - ST for r in _query(root, "Aa", 2)] == [6, 8]
    assert [r.store_timestamp_ms - ST for r in _query(root, "BB")] == [1, 3, 5, 7]


def test_so_are_topics_and_the_two_kinds_of_keys(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    kinds = [("k", ""), ("", "k"), ("k", "k"), ("other", "another")]
    root = indexed(
        [
            _record(make_record, *kinds[n % 4], ST + n, topic=("Aa", "BB")[n // 4])  # equal in Java
            for n in range(8)
        ]
    )

    def found(topic: str, unique: bool) -> list[int]:
        with StoreDirectory(root) as store, StoreQuery(store, *TINY) as query:
            raws = query.by_key(topic, "k", 64, 0, EVER, unique)
        return [decode_record(raw).store_timestamp_ms - ST for raw in raws]

    assert (found("Aa", False), found("BB", False)) == ([0, 1, 2], [4, 5, 6])
    assert (found("Aa", True), found("BB", True)) == ([1, 2], [5, 6])


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


@pytest.mark.parametrize(
    ("key", "max_num", "end_ms", "is_good"),
    [
        ("k", 1, 7, True),
        ("k" * MAX_KEY_BYTES, 1, 7, True),
        ("é" * (MAX_KEY_BYTES // 2), 1, 7, True),
        ("k" * (MAX_KEY_BYTES + 1), 1, 7, False),
        ("é" * MAX_KEY_BYTES, 1, 7, False),
        ("", 1, 7, False),
        ("k", 0, 7, False),
        ("k", 1, 6, False),
    ],
)
def test_a_query_names_a_key_a_number_and_a_time_that_can_be(
    key: str, max_num: int, end_ms: int, is_good: bool
) -> None:
    query = KeyQuery("orders", key, max_num, 7, end_ms, False)
    if is_good:
        assert query.check() is query
    else:
        with pytest.raises(InvalidArgument):
            query.check()


def test_a_key_is_a_whole_word_also_where_another_one_has_its_hash(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    """The words "Aa" and "BB" have one hash in Java."""
    words = ["BB xAa", "BB", "BB Aa", "xAa", "Aa"]
    records = [_record(make_record, each, "", ST + at) for at, each in enumerate(words)]
    found = [record.store_timestamp_ms - ST for record in _query(indexed(records), "Aa")]
    assert found == [2, 4]


def test_a_record_with_a_key_twice_takes_its_room_in_an_answer_once(
    indexed: Callable[[list[Record]], Path], make_record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [_record(make_record, "a", unique, ST) for unique in ("u", "a")]
    most = sum(len(encode_record(record)) for record in records)
    monkeypatch.setattr("penstock.shared.index.lookup.MAX_ANSWER_BYTES", most)
    assert len(_query(indexed(records), "a")) == 2


def test_what_expires_before_a_look_up_ends_is_left_out(
    indexed: Callable[[list[Record]], Path], make_record: Make
) -> None:
    root = indexed([_record(make_record, "a", "", ST + at) for at in range(3)])
    (segment,) = (root / "commitlog").iterdir()
    log, start = segment.read_bytes(), [0]
    view = IndexView(root / "index", TINY)

    def log_at(offset: int, size: int) -> bytes:
        return log[offset : offset + size] if offset >= start[0] else b""

    def ends(pauses: int) -> list[bytes]:
        """The answer, where the first record expires after this many pauses."""
        start[0], seen = 0, 0
        steps = look_up(view.files(), KeyQuery("orders", "a", 9, 0, EVER, False), log_at)
        while True:
            start[0] = int(seen == pauses) or start[0]
            try:
                next(steps)
            except StopIteration as end:
                return list(end.value)
            seen += 1

    found = [len(ends(pauses)) for pauses in range(9)]
    assert found[0] == 2 and found[-1] == 3
    assert found == sorted(found)
    view.close()


def test_names_of_other_lengths_or_digits_are_no_index_files(tmp_path: Path) -> None:
    """An empty file would be refused for its length."""
    names = ["2" * 17, "1" * 17, "2" * 16, "2" * 18, "2" * 16 + "x", "\u0663" * 17]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in index_files(tmp_path)] == ["1" * 17, "2" * 17]
