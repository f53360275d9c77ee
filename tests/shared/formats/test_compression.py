"""Compressed bodies: what comes back, what Java reads, and what is refused or bounded."""

from __future__ import annotations

import sys
import time
import tracemalloc
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidArgument, UnreadableBody
from penstock.shared.formats.compression import (
    check_compression,
    compress,
    compression_of,
    decompress,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAMES = ("zlib", "lz4", "zstd")
BITS = {"legacy": 0x001, "lz4": 0x101, "zstd": 0x201, "zlib": 0x301}
names = st.sampled_from(NAMES)


@given(names, st.binary(max_size=3000), st.integers(1, 20))
def test_what_is_compressed_comes_back_and_is_never_larger(
    name: str, body: bytes, times: int
) -> None:
    stored, bits = compress(name, body * times)
    assert len(stored) <= len(body) * times
    assert bits in (0, BITS[name]) and (bits or stored == body * times)
    assert decompress(stored, bits) == body * times
    assert decompress(stored, bits | 0xC0FE & ~0x701) == body * times, "other bits do not matter"


def test_bodies_of_other_libraries_are_read() -> None:
    """Java's deflater at level 5, frames of lz4-java and of zstd-jni, which name no size."""
    body = bytes(range(256)) * 600
    assert decompress(zlib.compress(body, 5), BITS["legacy"]) == body
    assert decompress(zlib.compress(body, 5), BITS["zlib"]) == body
    blocks = lz4.frame.compress(
        body, block_linked=False, store_size=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB
    )
    assert decompress(blocks, BITS["lz4"]) == body
    stream = zstd.ZstdCompressor()
    parts = [stream.compress(body[:1000]), stream.compress(body[1000:]), stream.flush()]
    assert zstd.get_frame_info(b"".join(parts)).decompressed_size is None
    assert decompress(b"".join(parts), BITS["zstd"]) == body


def test_the_blocks_of_lz4_do_not_depend_on_each_other() -> None:
    """The Java library reads no others."""
    stored, _ = compress("lz4", bytes(1 << 20))
    info = lz4.frame.get_frame_info(stored)
    assert info["block_linked"] is False


@given(names, st.binary(min_size=50, max_size=500), st.data())
def test_a_body_that_is_cut_or_changed_is_an_error_or_some_body(
    name: str, body: bytes, data: st.DataObject
) -> None:
    stored, bits = compress(name, body * 9)
    assert bits, "nine times the same is smaller"
    cut = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(UnreadableBody):
        decompress(stored[:cut], bits)
    changed = bytearray(stored)
    changed[cut] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert isinstance(decompress(bytes(changed), bits), bytes)
    except UnreadableBody as error:
        assert name in error.what + str(error.value)


@given(st.binary(max_size=200), st.sampled_from(range(8)))
def test_any_bytes_with_any_type_are_an_error_or_some_body(raw: bytes, kind: int) -> None:
    try:
        assert isinstance(decompress(raw, 1 | kind << 8), bytes)
    except UnreadableBody as error:
        assert error.hint or kind > 3


@pytest.mark.parametrize("name", NAMES)
def test_a_few_bytes_that_stand_for_gigabytes_take_neither_memory_nor_time(name: str) -> None:
    piece = bytes(64 << 20)
    stored, bits = compress(name, piece)
    del piece
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(UnreadableBody, match="more than 1048576 bytes"):
        decompress(stored, bits, 1 << 20)
    assert time.process_time() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_itself_is_allowed(name: str) -> None:
    stored, bits = compress(name, bytes(5000))
    assert decompress(stored, bits, 5000) == bytes(5000)
    with pytest.raises(UnreadableBody):
        decompress(stored, bits, 4999)


def test_names() -> None:
    assert [check_compression(name) for name in (*NAMES, None)] == [*NAMES, None]
    with pytest.raises(InvalidArgument, match="lz4"):
        check_compression("gzip")
    assert compression_of(0x300) is None and compression_of(0x2FF & ~0xFE) == "zstd"
    with pytest.raises(UnreadableBody, match="0x401"):
        compression_of(0x401)
