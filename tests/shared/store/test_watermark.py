"""The watermark: what is written is read, nothing else is, and only changes are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.store.watermark import (
    Watermark,
    WatermarkKeeper,
    decode_watermark,
    encode_watermark,
    load_watermark,
    make_watermark,
)

RUN = "0123456789abcdef"
WORDS = Checkpoint(1, 2, 3, 4, 5)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_what_a_run_knew_is_what_the_next_start_is_told(
    tmp_path: Path, follow: bool, is_last: bool
) -> None:
    mark = Watermark(RUN, follow, 1 << 40, WORDS, is_last)
    make_watermark(tmp_path / "mark", mark)
    assert load_watermark(tmp_path / "mark") == mark


def test_anything_else_is_no_watermark(tmp_path: Path) -> None:
    raw = encode_watermark(Watermark(RUN, True, 7, WORDS))
    for at in range(len(raw)):
        assert decode_watermark(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]) is None
    for other in (raw[:-1], raw + b"\0", b"", bytes(len(raw))):
        assert decode_watermark(other) is None
    assert load_watermark(tmp_path / "none") is None
    assert load_watermark(tmp_path) is None


def test_it_is_written_and_synced_only_where_it_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "mark", list[int]()
    make_watermark(file, Watermark(RUN, True, 0))
    keeper = WatermarkKeeper(file, RUN, True)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for number, (flushed, words, is_last, is_written) in enumerate(
        [
            (0, Checkpoint(), False, True),  # a predecessor may have died before it synced it
            (0, Checkpoint(), False, False),
            (9, Checkpoint(), False, True),
            (9, WORDS, False, True),
            (9, WORDS, True, True),
            (9, WORDS, True, False),
        ]
    ):
        before = len(synced)
        assert keeper.write(flushed, words, is_last=is_last) == is_written, number
        assert len(synced) - before == is_written
        assert load_watermark(file) == Watermark(RUN, True, flushed, words, is_last)
    keeper.close()
