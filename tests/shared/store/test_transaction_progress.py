"""How far half messages are looked through: the file, and its rows among those of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from penstock.shared.store.transaction_progress import (
    TransactionProgress,
    load_transaction_progress,
    save_transaction_progress,
)

# brackets without an end, on which a decoder gives up in its own way
DEEP = b'{"a":' + b"[" * 100_000


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "penstock" / "transactions"
    assert load_transaction_progress(file) is None
    progress = TransactionProgress(120, 17, 100, 12)
    save_transaction_progress(file, progress)
    assert load_transaction_progress(file) == progress


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"half": -1}', b"\xff", b"[1]", b'{"half": "x"}', DEEP]
)
def test_what_is_no_progress_counts_as_none(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "transactions"
    file.write_bytes(raw)
    assert load_transaction_progress(file) is None


def test_its_rows_replace_older_ones_and_yield_to_those_of_a_rocketmq_that_went_on() -> None:
    groups = {"shop": {"orders": {0: 3}}}
    rows = {HALF_TOPIC: {0: 120}, OP_TOPIC: {0: 17}}
    progress = TransactionProgress(120, 17)
    assert progress.merged(groups) == groups | {TRANSACTION_GROUP: rows}
    older = groups | {TRANSACTION_GROUP: {HALF_TOPIC: {0: 119}, OP_TOPIC: {0: 16}}}
    assert progress.merged(older) == groups | {TRANSACTION_GROUP: rows}
    newer = groups | {TRANSACTION_GROUP: {HALF_TOPIC: {0: 121}, OP_TOPIC: {0: 20}}}
    assert progress.merged(newer) == newer
