"""The checkpoint page: the golden vector, round trips, and pages that are short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint

ST = 1700000001456
GOLDEN = bytes.fromhex(
    "0000018bcfe5783c 0000018bcfe5783c 0000018bcfe577d8 0000000000000000 000000000000019a"
).ljust(4096, b"\0")
words = st.integers(-(2**63), 2**63 - 1)
checkpoints = st.builds(Checkpoint, words, words, words, words, words)


def test_the_golden_checkpoint_encodes_to_its_page_and_back() -> None:
    checkpoint = Checkpoint(ST + 2700, ST + 2700, ST + 2600, 0, 410)
    assert encode_checkpoint(checkpoint) == GOLDEN
    assert decode_checkpoint(GOLDEN) == checkpoint


@given(checkpoints)
def test_every_checkpoint_comes_back_from_a_page_of_4096_bytes(checkpoint: Checkpoint) -> None:
    page = encode_checkpoint(checkpoint)
    assert len(page) == 4096
    assert decode_checkpoint(page) == checkpoint


@given(checkpoints, st.integers(0, 39))
def test_a_page_that_is_cut_inside_the_words_reads_as_none(
    checkpoint: Checkpoint, size: int
) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)[:size]) == Checkpoint()


def test_recovery_steps_back_three_seconds_from_the_earlier_of_log_and_queues() -> None:
    assert Checkpoint(ST, ST - 500).recovery_timestamp_ms == ST - 3500
    assert Checkpoint(ST - 900, ST).recovery_timestamp_ms == ST - 3900
    assert Checkpoint(2000, 2000).recovery_timestamp_ms == 0
