"""Records to columns: the compiled loops and their twins make the same, and refuse the same."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.shared.formats.record_crc import body_crc
from penstock.shared.loops.pure import columns as pure

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

NAMES = (b"KEYS", b"TAGS")
words = st.sampled_from([b"KEYS", b"TAGS", b"k", b"\x01", b"\x02", b"\xc3\xa9", b"\xff", b"\x00"])
texts = st.lists(st.lists(words, max_size=12).map(b"".join), max_size=6)


def spans(pieces: list[bytes]) -> tuple[bytes, array[int], array[int]]:
    """The pieces one after the other, with a byte between."""
    at, sizes, raw = array("q"), array("q"), b"|"
    for piece in pieces:
        at.append(len(raw))
        sizes.append(len(piece))
        raw += piece + b"|"
    return raw, at, sizes


@given(texts)
@example([b"k\x01v\x02" * 3])
@example([b"".join(b"k%d\x01v\x02" % number for number in range(70))])
@example([b"a\x01\xc3\x02", b"\xa9\x01b\x02"])
def test_properties_are_cut_alike(pieces: list[bytes]) -> None:
    given_ = spans(pieces)
    assert native.cut_properties(*given_, NAMES) == pure.cut_properties(*given_, NAMES)


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(-1, 7))
def test_bodies_are_copied_and_compared_alike(bodies: list[bytes], bent: int) -> None:
    raw, at, sizes = spans(bodies)
    crcs = array("q", [body_crc(body) for body in bodies])
    if 0 <= bent < len(bodies):
        crcs[bent] ^= 1
    made = [bytearray(sum(sizes)), bytearray(sum(sizes))]
    found = [
        loops.copy_bodies(raw, at, sizes, crcs, into)
        for loops, into in zip((native, pure), made, strict=True)
    ]
    assert found[0] == found[1] and made[0] == made[1]
    wrong = next((n for n, body in enumerate(bodies) if body and body_crc(body) != crcs[n]), -1)
    assert found[0] == wrong
    if wrong < 0:
        assert made[0] == b"".join(bodies)


@pytest.mark.parametrize(
    ("at", "size"), [(-1, 2), (0, -1), (8, 3), (11, 0), (1 << 62, 1 << 62), (0, 1 << 62)]
)
@pytest.mark.parametrize("loops", [native, pure])
def test_a_place_outside_is_refused(loops: object, at: int, size: int) -> None:
    places, target = (array("q", [at]), array("q", [size])), bytearray(100)
    with pytest.raises(ValueError, match="not in a buffer"):
        loops.cut_properties(bytes(10), *places, NAMES)  # type: ignore[attr-defined]  # a module
    with pytest.raises(ValueError, match="not in a buffer"):
        loops.copy_bodies(bytes(10), *places, array("q", [0]), target)  # type: ignore[attr-defined]  # a module


@pytest.mark.parametrize("loops", [native, pure])
def test_a_target_that_is_too_small_is_not_written_past(loops: object) -> None:
    raw, at, sizes = spans([b"one", b"three"])
    crcs = array("q", [body_crc(b"one"), body_crc(b"three")])
    with pytest.raises(ValueError, match="do not take"):
        loops.copy_bodies(raw, at, sizes, crcs, bytearray(7))  # type: ignore[attr-defined]  # a module


@pytest.mark.parametrize("loops", [native, pure])
def test_empty_bodies_need_no_target(loops: object) -> None:
    words = array("q", [0, 0])
    # Arrow's buffers are of signed bytes
    found = loops.copy_bodies(b"", words, words, words, array("b"))  # type: ignore[attr-defined]  # a module
    assert found == -1
