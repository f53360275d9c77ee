"""The checkpoint page: RocketMQ's five signed 64-bit words, zeros up to 4096 bytes.

off  word                      off  word
  0  physic message time ms     24  master flushed offset
  8  logics message time ms     32  confirm physical offset
 16  index message time ms
"""

from __future__ import annotations

import struct

import msgspec

from penstock.shared.layout import PAGE_BYTES

_WORDS = struct.Struct(">5q")
# RocketMQ steps back this far, because messages of one moment are not in order of store time.
SAFETY_MS = 3000


class Checkpoint(msgspec.Struct, frozen=True):
    """Up to when the log, the consume queues and the index are known to be on disk."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def recovery_timestamp_ms(self) -> int:
        """Segments that begin at or before this time need no second look."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - SAFETY_MS)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The page, 4096 bytes: RocketMQ maps the file as one page."""
    words = _WORDS.pack(
        checkpoint.physic_timestamp_ms,
        checkpoint.logics_timestamp_ms,
        checkpoint.index_timestamp_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )
    return words.ljust(PAGE_BYTES, b"\0")


def decode_checkpoint(raw: bytes) -> Checkpoint:
    """The words of a page. A missing or short one reads as zeros, which make a start scan the log
    from its first segment: that takes longer, and loses nothing."""
    return Checkpoint(*_WORDS.unpack_from(raw)) if len(raw) >= _WORDS.size else Checkpoint()
