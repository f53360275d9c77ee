"""Files whose numbers decide what is served or deleted: a changed digit is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.sealed_json import NotAsWritten, sealed, unsealed
from penstock.shared.layout import StorePaths
from penstock.shared.log.archived import Archived, load_archived, save_archived
from penstock.shared.queue.deleted_topics import (
    DeletedTopics,
    load_deleted_topics,
    save_deleted_topics,
)
from penstock.shared.store.saved_offsets import SavedOffsets, load_offsets, save_offsets
from penstock.shared.store.transaction_progress import (
    TransactionProgress,
    load_transaction_progress,
    save_transaction_progress,
)

DELETED = DeletedTopics().with_rows(["gone"], 1000, 5)
OFFSETS = SavedOffsets(1000, 7, {"g": {"orders": {0: 8}}})
ARCHIVED = Archived(log_offset=1000, archive="/a")
PROGRESS = TransactionProgress(1000, 17)
# path, what saves a value there, what loads it, and the value
Files = tuple[str, Callable[[StorePaths], object], Callable[[StorePaths], object], object]
SEALED: list[Files] = [
    (
        "deleted_topics",
        lambda paths: save_deleted_topics(paths.deleted_topics, DELETED),
        lambda paths: load_deleted_topics(paths.deleted_topics),
        DELETED,
    ),
    (
        "exact_offsets",
        lambda paths: save_offsets(paths.exact_offsets, msgspec.json.encode(OFFSETS)),
        lambda paths: load_offsets(paths.exact_offsets),
        OFFSETS,
    ),
    ("archived", lambda paths: save_archived(paths, ARCHIVED), load_archived, ARCHIVED),
    (
        "transactions",
        lambda paths: save_transaction_progress(paths.transactions, PROGRESS),
        lambda paths: load_transaction_progress(paths.transactions),
        PROGRESS,
    ),
]


@pytest.mark.parametrize(("name", "save", "load", "value"), SEALED, ids=[s[0] for s in SEALED])
def test_a_changed_digit_is_seen_and_a_file_of_an_older_version_is_believed(
    tmp_path: Path,
    name: str,
    save: Callable[[StorePaths], object],
    load: Callable[[StorePaths], object],
    value: object,
) -> None:
    paths = StorePaths(tmp_path)
    paths.own.mkdir()
    save(paths)
    assert load(paths) == value
    file: Path = getattr(paths, name)
    raw = file.read_bytes()
    assert "crc" in json.loads(raw)
    assert b"1000" in raw
    file.write_bytes(raw.replace(b"1000", b"9000"))
    if name == "transactions":  # then all is read again
        assert load(paths) is None
    else:
        with pytest.raises(StoreDamaged, match="checksum"):
            load(paths)
    file.write_bytes(msgspec.json.encode(value))
    assert load(paths) == value


def test_any_other_byte_than_was_written_is_seen_but_in_the_seal_s_own_form() -> None:
    decoder = msgspec.json.Decoder(dict[str, Any])
    raw = sealed(b'{"a": 17, "b": [1, 2]}')
    assert unsealed(raw, decoder)["a"] == 17 == json.loads(raw)["a"]
    bent = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(1, raw.rindex(b","))]
    bent.append(raw[:-3] + (b"0" if raw[-3:-2] != b"0" else b"1") + raw[-2:])
    for each in bent:
        with pytest.raises(NotAsWritten, match="its checksum does not fit"):
            unsealed(each, decoder)
    assert unsealed(b'{"a": 17}', decoder) == {"a": 17}
    for nonsense in (b"", b'{"a":' * 100_000, b'{"a": "\xff"}', b"[]"):
        with pytest.raises(NotAsWritten):
            unsealed(nonsense, decoder)
