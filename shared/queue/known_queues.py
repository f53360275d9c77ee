"""The queues that a store has had, and how far each is on disk: STORE/penstock/queues, a line each.

    <topic>/<queue> <end> <log offset of the last entry> <CRC-32>

    end      one more than the queue offset of the last entry that is on disk, 20 digits
    offset   what that entry says: another queue's file, or an older one, says something else

A checkpoint vouches for the entries of all queues. If a queue or its end were gone, nobody would
miss it, and what it held would never be dispatched again. So the flusher writes lines before a
checkpoint may count on them, and a start compares. New lines are appended, and their numbers are
overwritten in place. A crash may leave a line that does not fit its checksum; such a line is
ignored.
The line of "./0", which is no queue, has as its first number what the watermark said by then: a
watermark that says less is an older copy. Its second number is how many queues had lines: a list
with fewer was cut, perhaps between two lines.
Lines of the first versions of this file have names alone.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Generator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_at, read_file
from penstock.shared.files.durable import (
    replace_file,
    sync_directory,
    sync_file,
    write_again,
    write_at,
)
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.names import is_stored_topic

_LINE = re.compile(rb"([!-~]+/(?:0|[1-9]\d{0,9}))(?: (\d{20}) (\d{20}) ([0-9a-f]{8}))?")


# Nobody knows what the last entry names: a run's memory has the ends of queues and not their
# entries.
UNKNOWN = -1


# the name of the line that is no queue's
WATERMARK = "./0"


class QueueEnd(NamedTuple):
    """How far a queue is on disk; (0, 0) where only its name is known."""

    end: int = 0
    last_position: int = 0  # the log offset that its last entry names


def _encode(name: str, end: QueueEnd) -> bytes:
    raw = f"{name} {end.end:020d} {end.last_position:020d}".encode()
    return raw + f" {zlib.crc32(raw):08x}\n".encode()


def _decode(line: bytes) -> tuple[str, QueueEnd] | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    name, end, last_position, crc = found.groups()
    # The name becomes a path, and a line of the first versions has no checksum to vouch for it. All
    # before the last slash is the topic, as for whoever makes the path.
    if name.decode() != WATERMARK and not is_stored_topic(name.decode().rpartition("/")[0]):
        return None
    if crc is None:
        return name.decode(), QueueEnd()
    if int(crc, 16) != zlib.crc32(line[: found.start(4) - 1]):
        return None
    return name.decode(), QueueEnd(int(end), int(last_position))


def _lines(content: bytes) -> Generator[tuple[int, str, QueueEnd], None, None]:
    """Where each whole line begins, and what it says; of two lines of a queue the later counts."""
    at = 0
    # what follows the last newline is a line that a crash has cut off
    for line in content.split(b"\n")[:-1]:
        found = _decode(line)
        if found is not None:
            yield at, *found
        at += len(line) + 1


def load_known_queues(file: Path) -> dict[str, QueueEnd]:
    """By name; empty where there is no file. A line that does not fit its checksum is left out."""
    return {name: end for name, end in _load(file).items() if name != WATERMARK}


def lacks_lines(file: Path) -> bool:
    """Whether the list has lost lines: it is gone, or has other bytes between its lines or after
    them, or lacks the line that every list has, or has fewer lines than that one says."""
    try:
        content = read_file(file)
    except (FileNotFoundError, IsADirectoryError):
        return True
    lines = [(name, end) for _, name, end in _lines(content)]
    has_others = len(lines) <= content.count(b"\n", 0, -1)
    ends = dict(lines)
    return has_others or WATERMARK not in ends or len(ends) <= ends[WATERMARK].last_position


def load_known_flush(file: Path) -> int:
    """The log was on disk at least up to here, as the watermark said; 0 where nobody knows."""
    return _load(file).get(WATERMARK, QueueEnd()).end


def _load(file: Path) -> dict[str, QueueEnd]:
    try:
        return {name: end for _, name, end in _lines(read_file(file))}
    except (FileNotFoundError, IsADirectoryError):
        return {}


def with_memory(
    known: Mapping[str, QueueEnd], table: QueueTable, count: int, deleted: Set[str] = frozenset()
) -> dict[str, QueueEnd]:
    """The list's ends, replaced where the run's memory knows of later ones.

    Memory says nothing of queues that are marked as deleted, nor of those of `deleted` topics. Only
    for a run whose memory counts: it is of this boot, and `abort` names it.
    """
    found = dict(known)
    for slot, (topic, queue_id) in table.keys(0, count):
        if table.is_deleted(slot) or topic in deleted:
            continue
        name, end = f"{topic}/{queue_id}", table.max_offset(slot)
        # a slot without entries says nothing, and a queue's end never goes back
        if table.min_offset(slot) < end > found.get(name, QueueEnd()).end:
            found[name] = QueueEnd(end, UNKNOWN)
    return found


def replace_known_queues(file: Path, ends: Mapping[str, QueueEnd]) -> None:
    """Write the list from scratch, if it says something else; durable on return. No actor may run.

    What is not in `ends` is dropped, even what the watermark's line says: a caller that must keep
    it puts it into `ends`. The line itself stays: it shows when a list was emptied or cut.
    """
    queues = len(ends.keys() - {WATERMARK})
    ends = {**ends, WATERMARK: QueueEnd(ends.get(WATERMARK, QueueEnd()).end, queues)}
    content = b"".join([_encode(name, ends[name]) for name in sorted(ends)])
    if not file.exists() or read_file(file) != content:
        replace_file(file, content)


def make_known_queues(file: Path) -> None:
    """Make a list without a queue where there is none. No actor may run."""
    if not file.exists():
        replace_known_queues(file, {})


class KnownQueues:
    """The list, for the flusher, which alone writes it while actors run. A start has made it.

    A line keeps its place and its length, so numbers are overwritten where they are. A new queue's
    line goes after the last whole one, over what a crash may have left of another line there.
    """

    def __init__(self, file: Path) -> None:
        self._directory = file.parent
        self._handle = os.open(file, os.O_RDWR)
        content = read_at(self._handle, os.fstat(self._handle).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        # Where a queue's line begins. One without numbers has no room for them: its queue gets a
        # second line.
        self._places = {
            name: at for at, name, end in _lines(content) if end != QueueEnd() or name == WATERMARK
        }
        self._synced = False
        self._is_new = True

    def sync(self) -> Generator[None, None, None]:
        """Make durable what `note` or a predecessor has written. A predecessor may have died before
        it synced, or before it reported a failed sync."""
        if self._synced:
            return
        if self._is_new:
            # After a failed sync the kernel takes the pages for clean, and only a write makes the
            # next sync write them out.
            write_again(self._handle, 0, self._end)
        sync_file(self._handle)
        yield
        if self._is_new:
            sync_directory(self._directory)
            self._is_new = False
            yield
        self._synced = True

    def note(self, ends: Mapping[str, QueueEnd]) -> bool:
        """Note how far queues are on disk. Returns whether one was not known before.

        Names that were not known are durable on return; the rest is durable after `sync`. Raises
        OSError; then no new name is known, and the next try writes them to the same place.
        """
        known = {name: end for name, end in ends.items() if name in self._places}
        for name, end in known.items():
            self._synced = False
            # How many queues have lines. After a crash there may be more lines than it says, which
            # does no harm.
            said = end if name != WATERMARK else QueueEnd(end.end, len(self._places) - 1)
            write_at(self._handle, _encode(name, said), self._places[name])
        lines, places = b"", {}
        for name, end in ends.items():
            if name not in known:
                places[name] = self._end + len(lines)
                lines += _encode(name, end)
        if not lines:
            return False
        write_at(self._handle, lines, self._end)
        crash_point("known.written")
        sync_file(self._handle)
        # Only now: after an error, the next try has to begin at the same place, over what this one
        # left.
        self._end += len(lines)
        self._places.update(places)
        return True

    def close(self) -> None:
        os.close(self._handle)
