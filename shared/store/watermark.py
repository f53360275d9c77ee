"""The log's durable watermark: how far the log is on disk, in a file that RocketMQ does not have.

    STORE/penstock/watermark

    off  field             type
      0  magic             8 bytes
      8  run id            16 hex digits   the run whose flusher wrote it
     24  flags             u64             1: consume queues follow the flush; 2: the run has
                                           ended in order, and nothing comes after
     32  flushed           i64             records that end here or before it are on disk
     40  the checkpoint's five words, as they were on disk then
     80  CRC-32 of all that

Little-endian, in one sector, so a power failure leaves the old words or the new.

The checkpoint is RocketMQ's file: it has times where an offset is needed, and looks the same
whoever wrote it. This file names the run that wrote it, so another run's words, or an older copy,
are not taken for that run's. Only the flusher of the run writes it; a start makes it, before
`abort` names the run. It lags behind `flushed` by `WATERMARK_MS` at most, so it costs ten syncs a
second, and no acknowledgement waits for one.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file, sync_file, write_at
from penstock.shared.formats.checkpoint import Checkpoint

# By at most this time, what is acknowledged may be ahead of the watermark.
WATERMARK_MS = 100
_MAGIC = b"PNSTKWM1"
_WORDS = struct.Struct("<8s16sQq5q")
_CRC = struct.Struct("<I")
_FOLLOW_FLUSH, _LAST = 1, 2

assert _WORDS.size + _CRC.size <= 512, "a disk writes it whole or not at all"


class Watermark(msgspec.Struct, frozen=True):
    """What a run knew to be on disk."""

    run_id: str
    queues_follow_flush: bool  # no queue has an entry of a record that was not flushed
    flushed: int
    checkpoint: Checkpoint = Checkpoint()
    is_last: bool = False  # the last one of its run, which has ended in order


def encode_watermark(mark: Watermark) -> bytes:
    words = (getattr(mark.checkpoint, field) for field in Checkpoint.__struct_fields__)
    flags = _FOLLOW_FLUSH * mark.queues_follow_flush + _LAST * mark.is_last
    raw = _WORDS.pack(_MAGIC, mark.run_id.encode("ascii"), flags, mark.flushed, *words)
    return raw + _CRC.pack(zlib.crc32(raw))


def decode_watermark(raw: bytes) -> Watermark | None:
    """The watermark; None for anything else."""
    if len(raw) != _WORDS.size + _CRC.size or not raw.startswith(_MAGIC):
        return None
    if _CRC.unpack_from(raw, _WORDS.size)[0] != zlib.crc32(raw[: _WORDS.size]):
        return None
    _, run_id, flags, flushed, *words = _WORDS.unpack_from(raw)
    return Watermark(
        run_id.decode("ascii", "replace"),
        bool(flags & _FOLLOW_FLUSH),
        flushed,
        Checkpoint(*words),
        bool(flags & _LAST),
    )


def load_watermark(file: Path) -> Watermark | None:
    """A store's watermark; None where there is none, or something else in its place."""
    try:
        return decode_watermark(read_file(file))
    except (FileNotFoundError, IsADirectoryError):
        return None


def make_watermark(file: Path, mark: Watermark) -> None:
    """Begin a run's watermark; durable on return. Only while no actor runs."""
    replace_file(file, encode_watermark(mark))


class WatermarkKeeper:
    """The file, for the flusher of the run that it names. A start has made the file."""

    def __init__(self, file: Path, run_id: str, queues_follow_flush: bool) -> None:
        self._run_id = run_id
        self._follow_flush = queues_follow_flush
        # a predecessor may have written without a sync, so the first mark is always written
        self._written: Watermark | None = None
        self._handle = os.open(file, os.O_RDWR)

    def write(self, flushed: int, checkpoint: Checkpoint, *, is_last: bool) -> bool:
        """Write what is on disk by now, if that has changed; durable on return. Whether it had."""
        mark = Watermark(self._run_id, self._follow_flush, flushed, checkpoint, is_last)
        if mark == self._written:
            return False
        write_at(self._handle, encode_watermark(mark), 0)
        crash_point("mark.written")
        sync_file(self._handle)
        self._written = mark
        return True

    def close(self) -> None:
        os.close(self._handle)
