"""Checks what a store says of consumer groups, and of delays: offsets, settings, the journal.

A file that cannot be read is a problem. An offset past its queue's end is a note: a power failure
may take messages that a group had read, and the group then goes on at the end that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.maintenance.verify.report import Findings, QueueSummary
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.segments import shown
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import DELETIONS_GROUP
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.progress.delay_offsets import delay_offsets
from penstock.shared.progress.group_journal import decode_journal
from penstock.shared.progress.group_rows import with_journal
from penstock.shared.progress.subscription_groups import SubscriptionGroups
from penstock.shared.store.rocketmq_json import load_document

# This many offsets past the end of a queue are named.
MOST_NAMED = 20
_Document = TypeVar("_Document")


def check_groups(paths: StorePaths, queues: Iterable[QueueSummary], found: Findings) -> None:
    """Check those of the four files that exist. Raises OSError for one that may not be read."""
    _load(paths.delay_offsets, delay_offsets, found, "delay-file")
    _load(paths.subscription_groups, SubscriptionGroups, found)
    offsets = _load(paths.consumer_offsets, ConsumerOffsets, found)
    known = {(g, t, q): offset for g, t, q, offset in offsets.rows()} if offsets else {}
    known |= _journal(paths.group_journal, found)
    known = {row: offset for row, offset in known.items() if row[0] != DELETIONS_GROUP}
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    past = [
        f"group {group} is at {offset} of topic {topic}, queue {queue_id}, which ends at {end}"
        for (group, topic, queue_id), offset in sorted(known.items())
        if offset > (end := ends.get((topic, queue_id), 0))
    ]
    for text in past[:MOST_NAMED]:
        found.note(text)
    if len(past) > MOST_NAMED:
        found.note(f"{len(past) - MOST_NAMED} more queues end before a group's offset")


def _load(
    file: Path,
    build: Callable[[dict[str, Any]], _Document],
    found: Findings,
    kind: str = "group-file",
) -> _Document | None:
    try:
        return load_document(file, build)
    except StoreDamaged as error:
        found.report(kind, (shown(file), 0), None, f"{error.what}: {error.value}")
        return None


def _journal(file: Path, found: Findings) -> Mapping[tuple[str, str, int], int]:
    """The offsets that are newer than the file of offsets."""
    raw = b""
    with suppress(FileNotFoundError):
        raw = read_file(file)
    entries, good = decode_journal(raw)
    if raw and not good:
        found.report("group-journal", (shown(file), 0), None, "it is no journal of groups")
    elif good < len(raw):
        found.note(
            f"{shown(file)}: {len(raw) - good} bytes at its end are of a crash, and not read"
        )
    return with_journal({}, entries)
