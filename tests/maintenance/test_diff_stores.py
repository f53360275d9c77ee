"""Two stores differ in what was made different, and in nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance.diff_stores import Compared, diff_stores
from penstock.shared.errors import TopicNotFound
from penstock.shared.formats.compression import compress
from penstock.shared.formats.properties import DELAY, UNIQ_KEY, WAIT, encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]


@pytest.fixture
def stores(store_builder: Builder, tmp_path: Path) -> Callable[..., list[Any]]:
    """What two stores of these records differ in."""

    def differ(a: Iterable[Record], b: Iterable[Record], **given: Any) -> list[Any]:
        roots = []
        for name, records in (("a", a), ("b", b)):
            made = store_builder(records)
            roots.append(made.rename(tmp_path / name))
        with StoreDirectory(roots[0]) as ours, StoreDirectory(roots[1]) as theirs:
            return [tuple(each) for each in diff_stores(ours, theirs, **given)]

    return differ


def records(*bodies: bytes, topic: str = "t", **fields: Any) -> list[Record]:
    return [
        Record(topic, body, born_timestamp_ms=5, store_timestamp_ms=number + 1, **fields)
        for number, body in enumerate(bodies)
    ]


def test_a_store_is_the_same_as_its_copy(stores: Callable[..., list[Any]]) -> None:
    both = records(b"1", b"2") + records(b"3", topic="u", queue_id=1)
    compared = Compared()
    assert stores(both, both, compared=compared) == []
    assert (compared.queues, compared.messages) == (2, 3)


def test_progress_counts_the_messages_that_were_compared(
    stores: Callable[..., list[Any]],
) -> None:
    both = records(b"1", b"2") + records(b"3", topic="u", queue_id=1)
    told: list[tuple[int, int]] = []
    assert stores(both, both, progress=lambda done, total: told.append((done, total))) == []
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_queues_and_the_first_other_message_are_told(stores: Callable[..., list[Any]]) -> None:
    a = records(b"1", b"2", b"3", b"4") + records(b"x", topic="gone")
    b = records(b"1", b"2", b"other", b"also") + records(b"5", queue_id=1)
    assert stores(a, b) == [
        ("queue", "gone", 0, -1, "messages", "1 from offset 0", "none"),
        ("message", "t", 0, 2, "body", "3", "other"),
        ("queue", "t", 1, -1, "messages", "none", "1 from offset 0"),
    ]


def test_of_chosen_topics_only_these_are_compared(stores: Callable[..., list[Any]]) -> None:
    a, b = records(b"1") + records(b"x", topic="u"), records(b"2") + records(b"y", topic="u")
    assert [each[1] for each in stores(a, b, topics=("u",))] == ["u"]


def test_a_topic_that_neither_has_is_no_equal_one(stores: Callable[..., list[Any]]) -> None:
    with pytest.raises(TopicNotFound, match="ordrs"):
        stores(records(b"1"), records(b"1"), topics=("ordrs",))


def test_content_is_what_the_sender_has_said(stores: Callable[..., list[Any]]) -> None:
    own = {"TAGS": "new", "own": "x"}
    packed, bits = compress("zlib", b"body" * 50)
    a = records(b"body" * 50, properties=encode_properties(own | {"UNIQ_KEY": "1"}))
    b = [
        Record("t", packed, encode_properties(own), sys_flag=bits, born_timestamp_ms=9),
        Record("t", b"more"),
    ]
    assert stores(a, b, content=True) == [
        ("queue", "t", 0, -1, "messages", "1 from offset 0", "2 from offset 0")
    ]


@pytest.mark.parametrize("name", [DELAY, PROP_CRC, UNIQ_KEY, WAIT])
@pytest.mark.parametrize("there", [{}, {"own": "x"}])
def test_what_producers_and_brokers_add_is_no_content(
    stores: Callable[..., list[Any]], name: str, there: dict[str, str]
) -> None:
    """RocketMQ's clients say of each message whether they wait, and a record's checksum covers
    offsets and times: no message that is stored again would be the same."""
    a, b = (
        records(b"1", properties=encode_properties(there | added)) for added in ({name: "1"}, {})
    )
    assert stores(a, b, content=True) == []


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12), st.integers(0, 11))
def test_a_changed_message_is_found_where_it_is(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], at: int
) -> None:
    from penstock.maintenance.diff_stores import _first_other

    at %= len(bodies)
    ours, changed = records(*bodies), records(*bodies)
    changed[at] = Record("t", bodies[at] + b"!", born_timestamp_ms=5, store_timestamp_ms=at + 1)
    other = [_first_other(a, b, False) is not None for a, b in zip(ours, changed, strict=True)]
    assert other == [number == at for number in range(len(bodies))]


def test_the_command_ends_as_diff_does(store_builder: Builder, tmp_path: Path) -> None:
    a = store_builder(records(b"1")).rename(tmp_path / "a")
    b = store_builder(records(b"2")).rename(tmp_path / "b")
    (tmp_path / "none").mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli.main", "store", "diff", *words]
        return subprocess.run(command, capture_output=True, text=True)

    assert run(str(a), str(a)).returncode == 0
    done = run(str(a), str(b), "-o", "json")
    assert done.returncode == 1 and "1 difference" in done.stderr
    assert json.loads(done.stdout)["offset"] == 0
    assert run(str(a), str(tmp_path / "none")).returncode == 2
