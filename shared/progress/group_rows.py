"""How far groups have come, from a store's files, offsets and journal, while no broker has them.

The journal has what is newer than config/consumerOffset.json, if it belongs to that file. If
another broker has written the file since, only the file counts. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from penstock.shared.files.bad_sectors import read_file
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import SYSTEM_GROUP_PREFIX
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.progress.group_journal import (
    Entry,
    Gone,
    Head,
    Row,
    Saving,
    TopicGone,
    decode_journal,
)
from penstock.shared.store.rocketmq_json import load_document

# (group, topic, queue) -> offset
Rows = Mapping[tuple[str, str, int], int]


def load_group_rows(paths: StorePaths) -> Rows:
    """Each group's offsets, without the broker's own groups. Raises StoreDamaged, OSError."""
    saved = load_document(paths.consumer_offsets, ConsumerOffsets)
    raw = b""
    with suppress(FileNotFoundError):
        raw = read_file(paths.group_journal)
    entries, _ = decode_journal(raw)
    digests = {each.digest for each in entries if isinstance(each, Saving)}
    for head in entries[:1]:
        digests.update(head.digests if isinstance(head, Head) else ())
    rows = {(g, t, q): offset for g, t, q, offset in saved.rows()}
    if saved.digest in digests:
        rows = with_journal(rows, entries)
    return {key: at for key, at in rows.items() if not key[0].startswith(SYSTEM_GROUP_PREFIX)}


def with_journal(rows: Rows, entries: Iterable[Entry]) -> dict[tuple[str, str, int], int]:
    """The offsets after what a journal's entries change."""
    found = dict(rows)
    for entry in entries:
        if isinstance(entry, Row) and entry.offset >= 0:
            found[entry.group, entry.topic, entry.queue_id] = entry.offset
        elif isinstance(entry, Gone) and not entry.client_id:
            found = {key: at for key, at in found.items() if key[0] != entry.group}
        elif isinstance(entry, TopicGone):
            found = {key: at for key, at in found.items() if key[1] != entry.topic}
    return found
