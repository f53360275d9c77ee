"""A store directory as files, read-only: Penstock's or Java RocketMQ's, running or stopped.

It needs no broker and takes no lock. It opens files for reading only, maps nothing, and believes no
length that it has not bounded. It needs no configuration: the store says what sizes its files were
made with (`sizes`), or the files do.
What is wrong with names and lengths is in `problems`; `verify` checks whether the contents agree. A
running store grows meanwhile: call `refresh` to see more. For one thread.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from penstock.shared.errors import ConfigError, OffsetOutOfRange, StoreDamaged
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import Problem, Segment, list_segments, shown
from penstock.shared.formats.checkpoint import Checkpoint, decode_checkpoint
from penstock.shared.formats.record import Record, decode_examined
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import BLANK
from penstock.shared.layout import PAGE_BYTES, StorePaths, is_queue_name
from penstock.shared.log.scan import Run, Step, scan, scan_runs
from penstock.shared.names import is_stored_topic
from penstock.shared.next_steps import quoted, verify
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.geometry import Sizes, load_sizes

Raw = TypeVar("Raw", bytes, memoryview)


class StoreDirectory:
    """Reads the store under `root`. Close it, or use it as a context manager.

    `segments` and `problems` are as of the last listing. Methods also raise OSError, where the disk
    refuses.
    """

    def __init__(self, root: Path | str) -> None:
        """Raises ConfigError where this is not a store, OSError."""
        self.paths = StorePaths(root)
        # One of the two is enough: a log without queues is a whole store, which can make them.
        if not (self.paths.commit_log.is_dir() or self.paths.consume_queue.is_dir()):
            raise ConfigError(
                "this is no store: it holds neither commitlog/ nor consumequeue/",
                self.paths.root,
                "name the directory that holds them, or make a store: penstock up --store "
                f"{quoted(self.paths.root)}",
            )
        self.sizes = Sizes()
        self.segments: list[Segment] = []
        self.problems: list[Problem] = []
        self._bases: list[int] = []
        self._files = FileCache()
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._files.close()

    def refresh(self) -> None:
        """List the log's segments again: a running store adds some and deletes others."""
        # a descriptor that stays open would still read a file that was deleted or replaced
        self._files.close()
        problems = []
        try:
            self.sizes = load_sizes(self.paths)
        # A problem and not an error: tools must be able to look at a damaged store. Without that
        # file the segments themselves tell their size.
        except StoreDamaged as error:
            file = shown(self.paths.geometry)
            problems.append(Problem("geometry", file, 0, None, f"{error.value}. {error.hint}"))
        self.segments, self.problems = list_segments(
            self.paths.commit_log, "log", size=self.sizes.mapped_file_size_commit_log_bytes
        )
        self.problems += problems
        self._bases = [segment.base for segment in self.segments]

    @property
    def files_read(self) -> int:
        """The number of files that were read since this was made."""
        return self._files.files_read

    @property
    def bytes_read(self) -> int:
        """The bytes that were read; bytes that were read twice count twice."""
        return self._files.bytes_read

    @property
    def log_start(self) -> int:
        """The first log offset that the files hold."""
        return self.segments[0].base if self.segments else 0

    @property
    def files_end(self) -> int:
        """Where the log's files end, written or not; 0 where there is no file."""
        return self.segments[-1].end if self.segments else 0

    @property
    def is_unclean(self) -> bool:
        """Whether the store is running, or was not stopped in order.

        By RocketMQ's rule only the file's existence counts, not its content. So this alone cannot
        tell a broker that runs from one that died.
        """
        return self.paths.abort.exists()

    def checkpoint(self) -> Checkpoint:
        """The checkpoint's words; all zero where there is none."""
        # through the cache, so that it counts among what a start has read
        path = self.paths.checkpoint
        return decode_checkpoint(self._files.read(path, 0, PAGE_BYTES) if path.exists() else b"")

    def segment_of(self, position: int) -> Segment:
        """The segment that contains a log offset. Raises OffsetOutOfRange: before the first one,
        past the last one, and where a segment between others is missing.
        """
        index = bisect_right(self._bases, position) - 1
        if index < 0 or position >= self.segments[index].end:
            raise OffsetOutOfRange(
                "the log's files do not hold this offset",
                position,
                f"they hold those from {self.log_start} to {self.files_end}; older ones have "
                "expired, newer ones are seen after a refresh",
            )
        return self.segments[index]

    def read_log(self, position: int, size: int) -> bytes:
        """`size` bytes of the log, which lie in one segment, as records do.

        Raises OffsetOutOfRange for bytes that no listed segment has, or whose file has expired
        since; StoreDamaged for a file that has become shorter.
        """
        return self._read(position, size, lambda path, at: self._files.read(path, at, size))

    def read_log_into(self, position: int, target: memoryview) -> None:
        """The same: fills the target, without another copy."""
        self._read(
            position,
            len(target),
            lambda path, at: target[: self._files.read_into(path, at, target)],
        )

    def _read(self, position: int, size: int, read: Callable[[Path, int], Raw]) -> Raw:
        segment = self.segment_of(position)
        if not 0 < size <= segment.end - position:
            raise OffsetOutOfRange(
                f"a read goes beyond its segment, which ends at {segment.end}",
                f"{size} bytes at {position}",
            )
        try:
            raw = read(segment.path, position - segment.base)
        # a running store's cleaner deleted it after the listing, which is not damage
        except FileNotFoundError as error:
            raise OffsetOutOfRange(
                "the segment has expired", segment.path, "refresh, or run the command again"
            ) from error
        if len(raw) != size:
            raise StoreDamaged(
                "a segment has become shorter", segment.path, verify(self.paths.root)
            )
        return raw

    def expect_log(self, position: int, size: int) -> bool:
        """Have the disk begin with a part of one segment that is read next. Returns whether it was
        not in the page cache; then `forget_log` may drop it again. Raises OffsetOutOfRange."""
        segment = self.segment_of(position)
        try:
            return self._files.expect(segment.path, position - segment.base, size)
        except FileNotFoundError:  # it has expired, and the read reports that
            return False

    def forget_log(self, position: int, size: int) -> None:
        """Drop this part of the log, of one segment, from the page cache."""
        segment = self.segment_of(position)
        self._files.forget(segment.path, position - segment.base, size)

    def record_at(self, position: int) -> Record:
        """The record that begins at a log offset; its checksum is compared. Raises StoreDamaged
        where no whole record begins there; OffsetOutOfRange.
        """
        segment = self.segment_of(position)
        left = segment.end - position
        size, _ = BLANK.unpack(self.read_log(position, BLANK.size)) if left >= 8 else (0, 0)
        # An impossible length is not used: then only size and magic are read, and the error says
        # what is wrong with them.
        raw = self.read_log(position, size if 8 <= size <= left else min(8, left))
        found, size, reason = examine(raw, 0, len(raw), position=position)
        if found is not Kind.RECORD:
            raise StoreDamaged(
                "no whole record begins here",
                f"{reason or found.name.lower()} at {position} "
                f"({segment.path}, byte {position - segment.base})",
                verify(self.paths.root),
            )
        return decode_examined(raw, 0, size)

    def scan_log(
        self, start: int | None = None, *, checksum: Checksum = Checksum.BODY
    ) -> Iterator[Step]:
        """Every record from `start` (the first by default), the damage, and the log's end.

        log/scan.py describes the steps. `start` is where a record begins. It walks the segments
        that are listed now; the rest of one that expires during the walk is skipped.
        """
        first = self.log_start if start is None else start
        return scan(self._files, self.segments, first, checksum=checksum)

    def scan_runs(self, start: int, window_bytes: int) -> Iterator[Run]:
        """The same, but consecutive records come as one step, as far as a window reaches."""
        return scan_runs(self._files, self.segments, start, window_bytes=window_bytes)

    def queues(self) -> list[QueueFiles]:
        """Every queue that has a directory, as it is now, by topic and queue id.

        Each call lists the directory of each queue; StoreSurvey spares a start that.
        """
        found = []
        for topic_path in _directories(self.paths.consume_queue):
            if not is_stored_topic(topic_path.name):
                continue  # RocketMQ makes no such topic, so this is not a queue
            for path in _directories(topic_path):
                if is_queue_name(path.name):
                    found.append(self.queue_at(path))
        # by number: in order of the directories' names, queue 10 would come before queue 2
        return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))

    def queue_at(self, directory: Path) -> QueueFiles:
        """The queue with this directory, whose name is its queue id. Lists its files now; the log's
        start is that of the last listing of the log.
        """
        return QueueFiles(
            self._files,
            directory,
            directory.parent.name,
            int(directory.name),
            self.log_start,
            self.sizes.mapped_file_size_consume_queue_bytes,
        )


def _directories(path: Path) -> list[Path]:
    """The directories in a directory, unordered; none where it does not exist (any more)."""
    try:
        with take_descriptor(lambda: os.scandir(path)) as found:
            return [Path(entry) for entry in found if entry.is_dir()]
    except FileNotFoundError:
        return []
