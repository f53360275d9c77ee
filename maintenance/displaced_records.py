"""Records in damaged bytes, and what they tell a repair about where their queues ended.

Segments that were exchanged, a log file under another name, a body with a flipped bit: such bytes
still contain records. None of these is served or moved. But the queue offset of a message that was
stored and not yet dispatched stands nowhere else, and the next message of its queue would get it
again. No checksum covers topic, queue and queue offset, and the bytes may be from an older copy,
from another store, or from a body that contains a record. So a record is believed only

    if it is whole, or names the place where it stands
    if the place that it names is damaged: what stands at a whole one knows better
    if the store also knows its queue from elsewhere
    if the damage between it and the record before it in its queue has room for the messages between

It can only raise a queue's end, so an older record changes nothing. And what a wrong record may add
is limited by the bytes that are lost.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.durable import opened
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import (
    AT_PHYSICAL_OFFSET,
    AT_SYS_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
)
from penstock.shared.formats.record_outline import outline
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import Damage
from penstock.shared.loops.active import PageWatch
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.known_queues import QueueEnd
from penstock.shared.store.topics import load_topics

Queue = tuple[str, int]  # topic and queue id

_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
for magic in (MAGIC_V1, MAGIC_V2):
    assert _MAGIC.fullmatch(magic.to_bytes(4, "big")), "the search finds every record"


class Claim(NamedTuple):
    """What a record says of itself."""

    position: int  # where it belongs
    queue: Queue
    slot: int


class Claimed(NamedTuple):
    """Where a queue ends according to records, and where without them."""

    begin: int
    end: QueueEnd


def claims_in(raw: bytes | memoryview, position: int = -1) -> Iterator[Claim]:
    """The claims of records in bytes that stand at this log offset; -1: they are not in the log."""
    end = 0
    for hit in _MAGIC.finditer(raw, 4):
        at = hit.start() - 4  # its size comes before the magic
        if at < end:
            continue  # inside the body of the previous record
        named = int.from_bytes(raw[at + AT_PHYSICAL_OFFSET : at + AT_SYS_FLAG], "big")
        checksum = Checksum.NONE if position >= 0 and named == position + at else Checksum.BODY
        kind, size, _ = examine(raw, at, len(raw), checksum=checksum)
        if kind is not Kind.RECORD:
            continue
        end = at + size
        fields = outline(memoryview(raw)[at:end])
        if fields.is_queued:
            queue = fields.topic.decode("utf-8", "replace"), fields.queue_id
            yield Claim(named, queue, fields.queue_offset)


def claims_of(paths: StorePaths, damage: Iterable[Damage], segment_bytes: int) -> Iterator[Claim]:
    """The claims of records in damage, and in log files that repairs have put aside; without
    topics that were deleted since."""
    gone = load_deleted_topics(paths.deleted_topics).ends()
    pieces = [(each.file, each.offset, each.size, each.position) for each in damage]
    for file in sorted(paths.quarantine.glob(f"{paths.commit_log.name}--*")):
        if stat.S_ISREG(file.lstat().st_mode):  # not a link that stood in a segment's place
            pieces.append((str(file), 0, segment_bytes, -1))
    for name, offset, size, position in pieces:
        # the watch is held until all has been looked at
        view, _watched = _mapped(name, offset, size)
        for claim in claims_in(view, position):
            if claim.position >= gone.get(claim.queue[0], 0):
                yield claim


def _mapped(name: str, offset: int, size: int) -> tuple[memoryview, PageWatch | None]:
    """Bytes of a file, as far as it goes, and the watch on its pages. Mapped, as damage may be as
    long as a segment."""
    # damage ends where zeros begin, and a record without properties ends in zeros: their length
    size += PROPERTIES_LENGTH_BYTES
    with opened(name, os.O_RDONLY) as handle:
        length = os.fstat(handle).st_size
        if length == 0:
            return memoryview(b""), None  # an empty range cannot be mapped
        mapped = mmap.mmap(handle, length, mmap.MAP_SHARED, mmap.PROT_READ)
    return memoryview(mapped)[offset : offset + size], PageWatch(mapped)


def claimed_ends(
    claims: Iterable[Claim],
    damage: Sequence[Damage],
    known: Sequence[Mapping[Queue, tuple[int, int]]],
) -> dict[Queue, Claimed]:
    """The queues that went on further than is known otherwise. `damage` is in log order.

    `known` has ends of queues, and the log offset of each last record, -1 if unknown; if several
    know a queue the highest end counts.
    """
    starts = [each.position for each in damage]
    before = [0, *accumulate(each.size for each in damage)]

    def damaged_before(position: int) -> int:
        """Bytes of damage before a log offset."""
        index = bisect_right(starts, position) - 1
        if index < 0:
            return 0
        return before[index] + min(position - starts[index], damage[index].size)

    ends: dict[Queue, Claimed] = {}
    for position, queue, slot in sorted(claims):
        if damaged_before(position) == damaged_before(position + 1):
            continue  # nothing is lost at that place
        said = max((QueueEnd(*each[queue]) for each in known if queue in each), default=None)
        if said is None:
            continue
        begin, end = ends.get(queue, Claimed(said.end, said))
        room = damaged_before(position) - damaged_before(end.last_position)
        if 0 <= (slot - end.end) * SMALLEST_RECORD_BYTES <= room:
            ends[queue] = Claimed(begin, QueueEnd(slot + 1, position))
    return ends


def queues_of(topics: Path) -> Iterator[Queue]:
    """The queues in the file of topics. None if it cannot be read: it is one witness of several,
    and a repair goes on without it."""
    try:
        found = load_topics(topics)
    except StoreDamaged:
        return
    for topic in found.names():
        for number in range(max(found.queues(topic), found.read_queues(topic))):
            yield topic, number
