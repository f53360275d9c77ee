"""Rows of a table to records: the compiled loops and their twins make the same, and refuse the
same."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.shared.errors import PropertiesTooLarge
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import Rows
from penstock.shared.loops.pure import encode as pure

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

ORIGIN = KeyOrigin("0A" * 10, 1_698_796_800_000)
NAMES = [b"\x01a", b"\x06orders"]
messages = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 7),
        st.binary(max_size=100),
        st.sampled_from([b"", b"TAGS\x01t\x02"]),
    ),
    min_size=1,
    max_size=8,
)
pieces = st.sampled_from([b"", b"", b"x", b"k1 k2", b"\x01", b"\x02", "ü".encode()])


def cut(pieces: list[bytes]) -> tuple[array[int], bytes]:
    """The pieces as a column, with a byte in front that belongs to none."""
    ends = array("i", [1])
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return ends, b"|" + b"".join(pieces)


def table(messages: list[tuple[int, int, bytes, bytes]]) -> Rows:
    topics, queues, bodies, own = (list(each) for each in zip(*messages, strict=True))
    keys = array("q", [number << 16 | 7 for number in range(len(messages))])
    return Rows(NAMES, array("i", topics), array("i", queues), keys, *cut(bodies), *cut(own))


def makers(shape: Shape) -> list[Any]:
    return [loops.RecordMaker(pack_host("10.1.2.3", 5), ORIGIN, shape) for loops in (native, pure)]


@given(messages, st.randoms(), st.sampled_from([Shape(), Shape(20, True)]))
def test_rows_become_the_records_that_drafts_become(
    messages: list[tuple[int, int, bytes, bytes]], dice: Any, shape: Shape
) -> None:
    rows = table(messages)
    order = array("q", dice.sample(range(len(messages)), dice.randrange(len(messages) + 1)))
    compiled, twin = makers(shape)
    runs = []
    for row in order:
        topic, queue, body, own = messages[row]
        runs.append((NAMES[topic], queue, [(body, own, 0, 0)], rows.keys[row : row + 1]))
    wanted = bytearray(9999)
    end = twin.pack(wanted, runs)[-1]
    for maker in (compiled, twin):
        # as an earlier frame leaves it
        into = bytearray(b"\xff" * 9999)
        assert maker.pack_rows(into, rows, order) == end
        assert into == wanted[:end] + b"\xff" * (9999 - end)
        with pytest.raises(ValueError, match="a record of"):
            maker.pack_rows(bytearray(max(end - 1, 0)), rows, order) if end else maker.pack_rows(
                bytearray(), rows, array("q", [0])
            )


@pytest.mark.parametrize(
    "bent",
    [
        {"topics": array("i", [0, 2])},
        {"topics": array("i", [0, -1])},
        {"topics": array("i", [0])},
        {"queues": array("i", [0, 1, 2])},
        {"keys": array("q", [1])},
        {"body_ends": array("i", [0, 1])},
        {"body_ends": array("i", [0, 1, 1 << 30])},
        {"body_ends": array("i", [0, 2, 1])},
        {"own_ends": array("i", [-1, 0, 0])},
        {"order": array("q", [2])},
        {"order": array("q", [-1])},
        {"order": array("q", [1 << 62])},
    ],
)
def test_a_table_that_is_not_whole_is_refused(bent: dict[str, array[int]]) -> None:
    order = bent.pop("order", array("q", [0, 1]))
    rows = table([(0, 1, b"one", b""), (1, 2, b"two", b"")])._replace(**bent)
    for maker in makers(Shape()):
        with pytest.raises(ValueError, match=r"no row|not in a buffer|different lengths"):
            maker.pack_rows(bytearray(9999), rows, order)


def test_properties_that_do_not_fit_are_refused() -> None:
    rows = table([(0, 1, b"one", b"k\x01" + b"v" * 32_760 + b"\x02")])
    for maker in makers(Shape()):
        with pytest.raises(PropertiesTooLarge):
            maker.pack_rows(bytearray(99_999), rows, array("q", [0]))


@given(st.lists(st.tuples(pieces, pieces, pieces), min_size=1, max_size=6))
@example([(b"t", b"k", b"own\x01v\x02"), (b"", b"", b"")])
def test_properties_are_joined_alike(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    tags, keys, own = (list(each) for each in zip(*rows, strict=True))
    columns = [(b"TAGS", *cut(tags)), (b"KEYS", *cut(keys)), (b"", *cut(own))]
    made = pure.join_properties(columns)
    assert native.join_properties(columns) == made
    bad = [n for n, row in enumerate(rows) if any(b"\x01" in v or b"\x02" in v for v in row[:2])]
    if bad:
        assert made == bad[0]
        return
    ends, joined = made  # type: ignore[misc]  # it is no index
    words = array("i", ends)
    for number, (tag, key, more) in enumerate(rows):
        wanted = b"TAGS\x01%s\x02" % tag if tag else b""
        wanted += b"KEYS\x01%s\x02" % key if key else b""
        assert joined[words[number] : words[number + 1]] == wanted + more


@pytest.mark.parametrize("loops", [native, pure])
@pytest.mark.parametrize("ends", [[-1, 0], [0, 9], [2, 1]])
def test_a_text_outside_its_column_is_refused(loops: Any, ends: list[int]) -> None:
    with pytest.raises(ValueError, match="not in a buffer"):
        loops.join_properties([(b"TAGS", array("i", ends), b"abc")])


@pytest.mark.parametrize("loops", [native, pure])
def test_columns_of_different_lengths_are_refused(loops: Any) -> None:
    columns = [(b"TAGS", array("i", [0]), b""), (b"KEYS", array("i", [0, 0]), b"")]
    with pytest.raises(ValueError, match="argument"):
        loops.join_properties(columns)


@pytest.mark.parametrize("loops", [native, pure])
@pytest.mark.parametrize("before", [[], [(b"TAGS", array("i", [0, 1]), b"x")]])
def test_a_columns_words_are_whole_ones(loops: Any, before: list[Any]) -> None:
    with pytest.raises(ValueError, match="multiple"):
        loops.join_properties([*before, (b"KEYS", array("i", [0, 1]).tobytes() + b"x", b"x")])


def test_a_column_without_words_has_no_rows() -> None:
    columns = [(b"TAGS", array("i"), b"")]
    assert native.join_properties(columns) == pure.join_properties(columns) == (bytes(4), b"")
