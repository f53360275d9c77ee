"""config/timercheck: where RocketMQ starts to read the wheel topic's queue, in its own form.

off  word                              off  word
  0  read up to this time, ms           32  version: state
  8  timer log flushed up to there      40  version: ms since 1970
 16  next queue offset                  48  version: counter
 24  the master's next queue offset

Signed 64-bit words, big-endian, and zeros up to 4096 bytes. RocketMQ begins at the lesser of the
two queue offsets, or, if it has a timer log of its own, after the last message in that. A time of 0
does no harm: then its wheel has nothing that could have been due before.
"""

from __future__ import annotations

import struct

from penstock.shared.layout import PAGE_BYTES

_WORDS = struct.Struct(">7q")


def encode_timer_checkpoint(queue_offset: int, counter: int, now_ms: int) -> bytes:
    """The page of a store without a timer log: everything is read again from this queue offset."""
    words = _WORDS.pack(0, 0, queue_offset, queue_offset, 0, now_ms, counter)
    return words.ljust(PAGE_BYTES, b"\0")


def timer_queue_offset(raw: bytes) -> tuple[int, int]:
    """(the queue offset, the version's counter) of a page; (0, 0) if it is missing or short."""
    if len(raw) < _WORDS.size:
        return 0, 0
    _, _, own, master, _, _, counter = _WORDS.unpack_from(raw)
    return min(own, master), counter
