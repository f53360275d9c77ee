"""Where entries are put: a window of each queue's file is mapped, at the end that grows.

Whoever writes entries uses it: the reput, and a rebuild while no reput runs. Entry k of a queue has
a fixed place, byte 20 x k, so putting it twice changes nothing. A queue goes through these states:

    no window     its next entry opens one; if the file is not there, it is made with that entry
    a window      entries are stored into it, by one loop for all queues
    moved on      an entry past the window, or before it, opens another one instead
    crowded out   there are as many windows as may be: a few entries are written without one

A new file gets its name together with its first entry, because RocketMQ does not start on an empty
one. By then the file is whole on disk, and so are the names of those before it: there is never a
gap. Its own name is left to the flusher. Files are sparse, so a window is allocated before it is
mapped: a full disk is then an OSError, and no SIGBUS.

A window is in the last file of its queue, or in one before it while there are entries to repeat.
Both are files that do not expire, so nobody has to unmap them for that.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import (
    FlushFailed,
    NewFile,
    make_files,
    opened,
    sync_directory,
    write_at,
)
from penstock.shared.files.mapped_area import MappedArea, most_pieces
from penstock.shared.formats.queue_entry import BLANK_ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths, segment_name
from penstock.shared.loops.active import QueueNumbers, by_queue, put_entries
from penstock.shared.loops.forms import ROW, WINDOW_WORDS, rows_of
from penstock.shared.next_steps import rebuild

# The smallest size of whole entries and whole pages: 1024 entries where a page has 4096 bytes.
WINDOW_BYTES = 5 * mmap.PAGESIZE
# This many new files are made together, all of them open at once.
FILES_AT_ONCE = 64
# When all places are taken, this many entries of a queue, put together, are worth taking another
# queue's window.
# Writing fewer of them by a call takes a third of the time, and the other queues keep their
# windows. Otherwise, with more queues than a process may map, each with a message now and then, no
# entry would find its window.
WORTH_A_WINDOW = 8

assert WINDOW_BYTES % CQ_ENTRY_BYTES == 0, "no entry lies across a window's end"


class DirectorySyncFailed(OSError):
    """A sync of a queue directory has failed: nobody knows which of its names are on disk.

    The kernel says so once; whoever syncs it later may be told nothing. After other errors one can
    try again: bytes that did not reach the disk are written again with the next file. Names are
    not.
    """


class QueueWindows:
    """The windows of the queues that `queues` has numbered: the most recently opened ones.

    `most` limits how many there are; 0 stands for max_queues, or fewer if the process may not map
    that many. After an OSError that is no DirectorySyncFailed, the same rows can be put again, even
    those that are there already.
    """

    def __init__(
        self, paths: StorePaths, config: Config, queues: QueueNumbers, most: int = 0
    ) -> None:
        self._paths = paths
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        self._queues = queues
        self._most = most or min(config.max_queues, most_pieces())
        self._area = MappedArea(self._most, WINDOW_BYTES)
        # three words for each queue, as loops.forms describes them; zeros where it has no window
        self._words: array[int] = array("q")
        # queue -> its place in the area, the one that was opened first in front
        self._places: dict[int, int] = {}
        # free places, the next one last
        self._free = list(range(self._most - 1, -1, -1))
        self._topics: dict[bytes, str] = {}

    def put(self, rows: bytes) -> None:
        """Write entries to their places, making files as needed. `rows` are packed: loops.forms.

        Raises OSError, DirectorySyncFailed or StoreDamaged; then some entries may be there and some
        not.
        """
        self._words.extend([0] * (WINDOW_WORDS * len(self._queues.names) - len(self._words)))
        missed = put_entries(rows, self._words, self._area.view)
        # Every turn opens a window for at least the first missed row, or writes some rows. So this
        # ends, however few windows there may be.
        while missed:
            crash_point("reput.mid_cq")
            rest = missed if self._free else self._write_few(missed)
            if len(rest) == len(missed):
                self._open_for(missed)
            missed = put_entries(rest, self._words, self._area.view)

    def _write_few(self, rows: bytes) -> bytes:
        """Write the entries of each queue that has a file, no window, and only a few rows here.
        Returns the other rows."""
        rest = b""
        for name, runs in by_queue(rows, self._queues).items():
            queue = self._queues.number(*name)
            first, raw = runs[0]
            few = len(runs) == 1 and len(raw) < WORTH_A_WINDOW * CQ_ENTRY_BYTES
            if not (few and queue not in self._places and self._try_write(queue, first, raw)):
                rest += b"".join([rows_of(queue, each, bytes(entries)) for each, entries in runs])
        return rest

    def _try_write(self, queue: int, queue_offset: int, raw: bytearray) -> bool:
        """Write entries that lie in one file, if it is there. Returns whether they were written.
        Raises OSError or StoreDamaged."""
        directory, name, at = self._file_of(queue, queue_offset)
        if at + len(raw) > self._segment_bytes:
            return False
        path = f"{directory}/{name}"
        try:
            with opened(path, os.O_RDWR) as handle:
                self._check_length(path, handle)
                write_at(handle, raw, at)
        except FileNotFoundError:
            return False
        return True

    def _open_for(self, rows: bytes) -> None:
        """Open a window for the first row of each queue, of as many queues as may have one."""
        first: dict[int, tuple[int, bytes]] = {}
        for queue, queue_offset, entry in ROW.iter_unpack(rows):
            if queue not in first:
                first[queue] = queue_offset, entry
        # No more queues than there are places: else the last one would take the first one's place
        # before the first one's entry is put.
        chosen = dict(islice(first.items(), self._most))
        missing = []
        for queue, (queue_offset, _) in chosen.items():
            try:
                self._open(queue, queue_offset)
            except FileNotFoundError:
                missing.append(queue)
        for at in range(0, len(missing), FILES_AT_ONCE):
            group = missing[at : at + FILES_AT_ONCE]
            self._make([(queue, *chosen[queue]) for queue in group])
            # where places are scarce, no window is opened yet: the new file has the entry already
            for queue in group if self._free else ():
                self._open(queue, chosen[queue][0])

    def _open(self, queue: int, queue_offset: int) -> None:
        """Map the window that has this entry. Raises FileNotFoundError where there is no file."""
        directory, name, at = self._file_of(queue, queue_offset)
        start = at - at % WINDOW_BYTES
        size = min(WINDOW_BYTES, self._segment_bytes - start)
        path = f"{directory}/{name}"
        with opened(path, os.O_RDWR) as handle:
            self._check_length(path, handle)
            os.posix_fallocate(handle, start, size)
            place = self._free_place(queue)
            try:
                self._area.map(place, handle, start)
            except OSError:
                # at this point no queue's words lead there, and nothing is mapped there
                self._free.append(place)
                raise
        # The last window of a file may be shorter than its place. What is mapped past the file's
        # end is never touched, because the words end where the file does.
        first = queue_offset - (at - start) // CQ_ENTRY_BYTES
        self._places[queue] = place
        self._describe(queue, first, first + size // CQ_ENTRY_BYTES, place * WINDOW_BYTES)

    def _check_length(self, path: str, handle: int) -> None:
        """Raises StoreDamaged for a file of another length. Called before a file is mapped, because
        a store past the end of a shorter one is a SIGBUS."""
        # not fstat: the rest of what it returns costs a microsecond, for entries written by a call
        found = os.lseek(handle, 0, os.SEEK_END)
        if found != self._segment_bytes:
            raise StoreDamaged(
                f"a segment is not {self._segment_bytes} bytes long",
                f"{path} has {found}",
                rebuild(Path(path).parent),
            )

    def _file_of(self, queue: int, queue_offset: int) -> tuple[str, str, int]:
        """Directory and name of an entry's file, and its place there."""
        topic, queue_id = self._queues.names[queue]
        directory = self._topics.get(topic)
        if directory is None:
            directory = self._topics[topic] = str(self._paths.queue(topic.decode(), 0).parent)
        at = queue_offset * CQ_ENTRY_BYTES
        in_file = at % self._segment_bytes
        return f"{directory}/{queue_id}", segment_name(at - in_file), in_file

    def _free_place(self, queue: int) -> int:
        """A place for a queue's window: its own, if it has one; else a free one; else that of the
        window that was opened first."""
        if queue not in self._places and not self._free:
            queue = next(iter(self._places))
        if queue in self._places:
            self._describe(queue, 0, 0, 0)
            return self._places.pop(queue)
        return self._free.pop()

    def _describe(self, queue: int, *words: int) -> None:
        self._words[WINDOW_WORDS * queue : WINDOW_WORDS * (queue + 1)] = array("q", words)

    def _make(self, wanted: Sequence[tuple[int, int, bytes]]) -> None:
        """Make files of queues, each with the entry that needs it."""
        files = []
        for queue, queue_offset, entry in wanted:
            crash_point("reput.new_cq_file")
            directory, name, at = self._file_of(queue, queue_offset)
            if not _make_directory(directory):
                # a power failure must not leave this file without those before it
                _sync_names(Path(directory))
            # a queue that begins mid-way has blanks before its first entry
            head = BLANK_ENTRY * (at // CQ_ENTRY_BYTES) + entry
            files.append(NewFile(f"{directory}/{name}", head))
        make_files(self._paths.staging, files, self._segment_bytes, sparse=True)

    def release_pages(self) -> None:
        """Give back the memory of all windows; the next entries bring it back."""
        self._area.release_pages()

    def close(self) -> None:
        self._area.close()


def _make_directory(directory: str) -> bool:
    """Make a queue's directory, its topic's and the one of all topics. Returns whether the queue's
    is new.

    The store's own is not made: a store that was moved away must not begin a second time in its
    old place, so that is a FileNotFoundError. The flusher syncs the names of new directories.
    """
    topic = os.path.dirname(directory)
    is_new = False
    for each in (os.path.dirname(topic), topic, directory):
        try:
            os.mkdir(each)
            is_new = True
        except FileExistsError:
            is_new = False
    return is_new


def _sync_names(directory: Path) -> None:
    try:
        sync_directory(directory)
    except FlushFailed as error:
        raise DirectorySyncFailed(error.errno, error.strerror, error.filename) from error
