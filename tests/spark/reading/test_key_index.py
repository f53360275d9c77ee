"""A filter on keys reads what the index cannot rule out, and misses nothing, whatever the index is:
old, cut, torn, with holes, or not there."""

from __future__ import annotations

import tarfile
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.index_chains import KeyBatch
from penstock.shared.formats.index_layout import HEADER, Geometry
from penstock.shared.formats.record import Record
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import Sizes
from penstock.spark.plan import plan
from penstock.spark.ranges import QueueRange
from penstock.spark.reading import key_index
from penstock.spark.reading.options import Mode, parse_options
from penstock.spark.reading.predicates import Predicate
from penstock.spark.reading.rows import How
from penstock.spark.reading.views import StoreView
from penstock.spark.scan import read_range
from tests.spark.conftest import StoreBuilder

GOLDEN = Path(__file__).parent.parent.parent / "golden"
# Python 3.11.2, as Debian 12 has it, does not know the filter; later ones warn without it
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
SMALL = Geometry(slots=3, items=12)


class Sent(NamedTuple):
    """A message, and whether the broker kept an index when it came."""

    topic: str = "flights"
    queue_id: int = 0
    keys: str = ""
    is_indexed: bool = True


def put(store: StoreBuilder, sent: Sent, number: int, index: IndexFiles) -> Record:
    own = {"KEYS": sent.keys} if sent.keys.strip(" ") else {}
    unique = f"u{number}" if number % 3 else ""
    named = own | ({"UNIQ_KEY": unique} if unique else {})
    record = store.put(sent.topic, sent.queue_id, properties=named)
    batch = KeyBatch()
    if sent.is_indexed and named:
        keys = own.get("KEYS", "").encode()
        stored_ms = record.store_timestamp_ms
        batch.add(sent.topic.encode(), unique.encode(), keys, record.physical_offset, stored_ms)
        index.put(batch.entries())
    return record


def fill(store: StoreBuilder, messages: list[Sent], geometry: Geometry = SMALL) -> None:
    store.paths.staging.mkdir(parents=True)
    sizes = Sizes(max_hash_slot_num=geometry.slots, max_index_num=geometry.items)
    store.paths.geometry.write_bytes(msgspec.json.encode(sizes))
    clock = count(1_700_000_000_000, 1000)
    index = IndexFiles(store.paths.index, store.paths.staging, geometry, lambda: next(clock))
    for number, sent in enumerate(messages):
        put(store, sent, number, index)
    index.close()


Row = tuple[str, int, int, str | None]


def rows(root: str, ranges: list[QueueRange], keys: frozenset[str] | None) -> list[Row]:
    # as a crash has left it, a golden store has half a record at its end
    how = How(predicates=tuple(filters(keys)), mode=Mode.DROPMALFORMED)
    columns = ["topic", "queue_id", "queue_offset", "keys"]
    with StoreDirectory(root) as files:
        return sorted(
            row
            for piece in ranges
            for arrays in read_range(files, piece, columns, how)
            for row in zip(*(each.to_pylist() for each in arrays), strict=True)
        )


def filters(keys: frozenset[str] | None) -> list[Predicate]:
    return [] if keys is None else [Predicate("keys", "is_in", tuple(sorted(keys)))]


def planned(root: str, keys: frozenset[str] | None) -> list[QueueRange]:
    with StoreView(root) as view:
        found = plan(view, parse_options({"path": root}), filters(keys))
    return [piece for pieces in found for piece in pieces]


def planned_count(store: StoreBuilder, *keys: str) -> int:
    return sum(piece.stop - piece.start for piece in planned(store.root, frozenset(keys)))


# Of Java's hashes that of Aa is that of BB.
KEYS = st.sampled_from(["", "Aa", "BB", "k", "Aa k", " k  BB", "k Aa", "é", "\ufffd"])
messages = st.builds(
    Sent,
    st.sampled_from(["flights", "other"]),
    st.integers(0, 1),
    KEYS,
    st.integers(0, 9).map(bool),
)
# what may have become of the index: file, byte, bytes
harm = st.sampled_from(["", "gone", "short", "zeros", "page", "header"])


@given(
    sent=st.lists(messages, min_size=1, max_size=60),
    harm=harm,
    which=st.integers(0, 9),
    at=st.integers(0, 999),
    wanted=st.frozensets(KEYS.filter(bool), min_size=1, max_size=2),
)
def test_the_rows_are_those_of_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[Sent],
    harm: str,
    which: int,
    at: int,
    wanted: frozenset[str],
) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("store") / "store")
    fill(store, sent)
    files = index_files(store.paths.index)
    if files:
        injure(files[which % len(files)], harm, at)
    scanned = rows(store.root, planned(store.root, None), wanted)
    assert rows(store.root, planned(store.root, wanted), wanted) == scanned


def injure(path: Path, harm: str, at: int) -> None:
    """As a power failure or an operator does it: a file is gone, short, or has pages of zeros."""
    raw = bytearray(path.read_bytes())
    start = HEADER.size if harm == "zeros" else 0
    at = min(start + at, len(raw))
    if harm == "gone":
        path.unlink()
    elif harm == "short":
        path.write_bytes(raw[:at])
    elif harm == "zeros":
        path.write_bytes(raw[:at] + bytes(len(raw) - at))
    elif harm == "page":
        raw[at : at + 50] = bytes(len(raw[at : at + 50]))
        path.write_bytes(raw)
    elif harm == "header":
        path.write_bytes(bytes(HEADER.size) + raw[HEADER.size :])


MANY = [Sent(queue_id=number % 2, keys=f"k{number}") for number in range(2000)]
LARGE = Geometry(slots=1000, items=10_000)


def test_one_key_of_many_is_read_and_the_ends_of_the_index(store: StoreBuilder) -> None:
    fill(store, MANY, LARGE)
    # the first and the last record of a file are always looked at
    assert planned_count(store, "k1000") <= 3
    assert planned_count(store, "k500", "k1500", "never") <= 4
    assert planned_count(store, "k1000 other") <= 3


def test_what_the_index_does_not_have_is_read(store: StoreBuilder) -> None:
    off = [each._replace(is_indexed=not 500 <= n < 700) for n, each in enumerate(MANY)]
    fill(store, off, LARGE)
    late = StoreBuilder.put(store, "flights", 1, properties={"KEYS": "k1"})
    wanted = frozenset(["k1"])
    assert 201 <= planned_count(store, "k1") < 210
    found = rows(store.root, planned(store.root, wanted), wanted)
    assert found == [("flights", 1, 0, "k1"), ("flights", 1, late.queue_offset, "k1")]


@pytest.mark.parametrize("name", ["clean-4.9", "clean-5.3", "crashed-5.3", "broker-5.3"])
def test_messages_of_rocketmqs_own_stores_are_found(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, **SAFELY)
    root = str(tmp_path / "store")
    everything = rows(root, planned(root, None), None)
    keys = sorted({row[3] for row in everything if row[3] is not None})
    left = 0
    for text in keys[::7]:
        ranges = planned(root, frozenset([text]))
        left += sum(piece.stop - piece.start for piece in ranges)
        found = rows(root, ranges, frozenset([text]))
        assert found == [row for row in everything if row[3] == text]
    assert left < len(keys[::7]) * len(everything) / 2


def test_without_an_index_everything_is_read(store: StoreBuilder) -> None:
    fill(store, MANY, LARGE)
    for path in index_files(store.paths.index):
        path.unlink()
    assert planned_count(store, "k1000") == len(MANY)


@pytest.mark.parametrize("text", [" ", "\ufffd", "k1 \ufffd"])
def test_texts_that_no_index_tells_are_looked_for_everywhere(
    store: StoreBuilder, text: str
) -> None:
    fill(store, MANY, LARGE)
    assert planned_count(store, text) == len(MANY)


def test_a_plan_has_few_pieces_though_many_messages_match(
    store: StoreBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("k" if number % 200 < 2 else "x" for number in range(2000))
    fill(store, [each._replace(keys=key) for each, key in zip(MANY, keys, strict=True)], LARGE)
    wanted = frozenset(["k"])
    scanned = rows(store.root, planned(store.root, None), wanted)
    # and the end of the index
    assert len(planned(store.root, wanted)) == 21
    monkeypatch.setattr(key_index, "MOST_PIECES", 8)
    assert len(planned(store.root, wanted)) <= 8
    assert len(scanned) == 20 and rows(store.root, planned(store.root, wanted), wanted) == scanned
