"""A block of outputs and offsets at the log's end whose rest is missing.

A power failure cuts the last frame anywhere. Of ordinary messages, what is left stays. But the
outputs of a block must not stand without the offsets that follow them: whoever processes its inputs
again would store them twice. The block's first record says how many records it has. Pure: a walk
over records is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import body_span, store_timestamp_ms
from penstock.shared.formats.record_outline import outline
from penstock.shared.log.scan import Step
from penstock.shared.messaging.offsets_record import decode_begin
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC

_TOPIC = OFFSETS_TOPIC.encode()


class UnfinishedBlock(NamedTuple):
    """Where it begins, how many of its records are there, and the record before it.

    Of that record: where it begins and ends, and its store time; all 0 if the walk began after it.
    """

    begin: int
    records: int
    before: int
    before_end: int
    before_ms: int


def unfinished_block(steps: Iterable[Step], end: int) -> UnfinishedBlock | None:
    """The block that is cut by the log's `end`; None where no block is.

    The walk begins at least a frame before that. Only whole records count: a damaged log is not
    cut.
    """
    found, missing, there = UnfinishedBlock(0, 0, 0, 0, 0), 0, 0
    before = before_end = before_ms = 0
    for position, kind, size, record, _ in steps:
        if position >= end:
            break
        if kind is not Kind.RECORD:
            continue
        if missing:
            missing, there = missing - 1, there + 1
        elif records := _begun(record):
            found = UnfinishedBlock(position, 0, before, before_end, before_ms)
            missing, there = records - 1, 1
        before, before_end = position, position + size
        before_ms = store_timestamp_ms(record, 0)
    return found._replace(records=there) if missing else None


def _begun(record: memoryview) -> int:
    """How many records the block has that begins with this record; 0 if none begins."""
    # a quick search first: nearly no record has the name
    if _TOPIC not in bytes(record) or outline(record).topic != _TOPIC:
        return 0
    at, length = body_span(record, 0)
    try:
        return decode_begin(record[at : at + length])
    except InvalidMessage:
        return 0  # offsets without outputs are no block
