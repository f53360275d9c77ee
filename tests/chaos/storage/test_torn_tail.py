"""A log whose last record is cut at any byte ends where that record began, and nowhere else."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.chaos.stepped.replay import in_memory
from penstock.shared.config import Config
from penstock.shared.files.durable import make_directory
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.active import put_stamped
from penstock.shared.loops.forms import Stamp
from penstock.shared.recovery.recover_log import recover_store
from penstock.shared.store.survey import StoreSurvey

RECORDS = 20
SEGMENT_BYTES = 8192
STORED_MS = 1_700_000_000_000
V4, V6 = pack_host("127.0.0.1", 10911), pack_host("::1", 10911)


@pytest.fixture
def paths() -> Iterator[StorePaths]:
    """An unclean store with nothing in it, in memory; its checkpoint knows of nothing."""
    with tempfile.TemporaryDirectory(prefix="torn-tail-of-penstock-", dir=in_memory()) as made:
        paths = StorePaths(Path(made))
        for directory in (paths.commit_log, paths.consume_queue, paths.staging):
            make_directory(directory)
        paths.abort.write_bytes(b"1")
        paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint(0)).ljust(4096, b"\0"))
        yield paths


def _records(prop_crc: bool) -> list[bytes]:
    """Records of many shapes, each stamped with its place."""
    dice = random.Random(7)
    found: list[bytes] = []
    for number in range(RECORDS):
        body = (b"", bytes(9), b"end" + bytes(9), dice.randbytes(dice.randint(1, 60)))[number % 4]
        names = {"KEYS": "k"} if number % 5 == 1 else {"UNIQ_KEY": f"u{number}", "TAGS": "t"}
        topic = "t" * (130 if number == 13 else 1 + number % 7)
        host = V6 if number % 6 == 4 else V4
        record = Record(
            "%RETRY%" + topic if number == 13 else topic,
            body,
            with_prop_crc_room(b"" if number % 5 == 2 else encode_properties(names), prop_crc),
            flag=number,
            born_host=V6 if number % 6 == 5 else V4,
            store_host=bytes(len(host)),
        )
        frame = encode_record(record)
        stamped, at = bytearray(len(frame)), sum(map(len, found))
        stamp = Stamp(STORED_MS + number, host, prop_crc)
        put_stamped(stamped, frame, [0, len(frame)], [number], at, stamp)
        found.append(bytes(stamped))
    return found


@pytest.mark.parametrize("prop_crc", [False, True])
def test_a_record_that_is_cut_at_any_byte_is_cut_off_whole(
    paths: StorePaths, prop_crc: bool
) -> None:
    config = Config(
        store_path_root_dir=str(paths.root),
        mapped_file_size_commit_log_bytes=SEGMENT_BYTES,
        force_verify_prop_crc=prop_crc,
    )
    segment, before, cuts = paths.commit_log / segment_name(0), b"", 0
    for record in _records(prop_crc):
        for cut in range(len(record) + 1):
            segment.write_bytes((before + record[:cut]).ljust(SEGMENT_BYTES, b"\0"))
            with StoreSurvey(paths, config) as survey:
                found = recover_store(survey, None)
            # bytes that are zeros are there, cut or not
            whole = before + record if not record[cut:].strip(b"\0") else before
            assert found.log_end == len(whole), f"cut at {cut} of {len(record)}"
            assert not found.quarantined
            assert segment.read_bytes() == whole.ljust(SEGMENT_BYTES, b"\0")
            cuts += 1
        before += record
    assert cuts == len(before) + RECORDS < SEGMENT_BYTES
