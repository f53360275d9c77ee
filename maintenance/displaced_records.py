"""Records that stand in damage, and what they tell a repair of where their queues ended.

Segments that changed places, a file of the log under another name, a body with a flipped bit: there
are records in such bytes all the same. None of them is served or moved. But a message that was
stored and not yet dispatched has its queue offset nowhere else, and the next one of its queue would
get it again. No checksum covers topic, queue and queue offset, and the bytes may be of an older
copy, of another store, or of a body that holds a record. So a record tells something only

    where it is whole, or names the place where it stands
    where the place that it names is damaged: what stands at a whole one knows better
    of a queue that the store knows otherwise
    of as many messages as the damage between it and the one before it in its queue has room for

A queue's end only goes up by it, so an older record changes nothing; and what a wrong one may add
is bounded by the bytes that are lost.
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
    """Where a queue ends by what records say, and where without them."""

    begin: int
    end: QueueEnd


def claims_in(raw: bytes | memoryview, position: int = -1) -> Iterator[Claim]:
    """Of the records in bytes that stand at this log offset; -1 where they are not in the log."""
    end = 0
    for hit in _MAGIC.finditer(raw, 4):
        at = hit.start() - 4  # its size comes before the magic
        if at < end:
            continue  # in the body of the one before
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
    """Of the records in damage, and in files of the log that repairs have put aside; but of no
    topic that was deleted since."""
    gone = load_deleted_topics(paths.deleted_topics).ends()
    pieces = [(each.file, each.offset, each.size, each.position) for each in damage]
    for file in sorted(paths.quarantine.glob(f"{paths.commit_log.name}--*")):
        if stat.S_ISREG(file.lstat().st_mode):  # and no link that stood in a segment's place
            pieces.append((str(file), 0, segment_bytes, -1))
    for name, offset, size, position in pieces:
        for claim in claims_in(_mapped(name, offset, size), position):
            if claim.position >= gone.get(claim.queue[0], 0):
                yield claim


def _mapped(name: str, offset: int, size: int) -> memoryview:
    """Bytes of a file, as far as it goes. Mapped: damage may be as long as a segment."""
    # damage ends where zeros begin, and a record without properties ends in their length
    size += PROPERTIES_LENGTH_BYTES
    with opened(name, os.O_RDONLY) as handle:
        length = os.fstat(handle).st_size
        if length == 0:
            return memoryview(b"")  # cannot be mapped
        mapped = mmap.mmap(handle, length, mmap.MAP_SHARED, mmap.PROT_READ)
    return memoryview(mapped)[offset : offset + size]


def claimed_ends(
    claims: Iterable[Claim],
    damage: Sequence[Damage],
    known: Sequence[Mapping[Queue, tuple[int, int]]],
) -> dict[Queue, Claimed]:
    """The queues that went on further than is known otherwise. `damage` is in log order.

    `known` has ends of queues and the log offsets of what came last, -1 where nobody knows; of
    several the highest counts.
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
            continue  # it has lost nothing there
        said = max((QueueEnd(*each[queue]) for each in known if queue in each), default=None)
        if said is None:
            continue
        begin, end = ends.get(queue, Claimed(said.end, said))
        room = damaged_before(position) - damaged_before(end.last_position)
        if 0 <= (slot - end.end) * SMALLEST_RECORD_BYTES <= room:
            ends[queue] = Claimed(begin, QueueEnd(slot + 1, position))
    return ends


def queues_of(topics: Path) -> Iterator[Queue]:
    """The queues that the file of topics has. None where it cannot be read: it is one witness of
    several, and a repair goes on without it."""
    try:
        found = load_topics(topics)
    except StoreDamaged:
        return
    for topic in found.names():
        for number in range(max(found.queues(topic), found.read_queues(topic))):
            yield topic, number
