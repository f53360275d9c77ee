"""The store as a start finds it: its directories are listed once, under the lock, for every step.

A start has the store to itself, so a listing stays true until the start changes something. A step
that does says so here (`refresh`, `list_again`), and nothing else is listed twice: a store with a
thousand queues has a thousand directories. A listed queue remembers where it begins and ends, which
takes some forty reads to find.
"""

from __future__ import annotations

from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.files.segments import Problem, Segment, segment_bases
from penstock.shared.layout import StorePaths
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory


class StoreSurvey(StoreDirectory):
    """A store directory that only the caller changes. Raises OSError, StoreDamaged."""

    def __init__(self, paths: StorePaths, config: Config) -> None:
        self.config = config
        self._queues: dict[Path, QueueFiles] | None = None
        super().__init__(paths.root)

    def refresh(self) -> None:
        """Forget the listing, so that it is made again: a step has made or moved files."""
        super().refresh()
        self._queues = None

    def queues(self) -> list[QueueFiles]:
        """Every queue that has a directory, by topic and queue id, as it was listed last."""
        if self._queues is None:
            self._queues = {queue.directory: queue for queue in super().queues()}
        return list(self._queues.values())

    def list_again(self, queue: QueueFiles) -> None:
        """List one queue again, whose files a step has cut; the others stay as they are."""
        assert self._queues is not None, "it was listed before"
        self._queues[queue.directory] = self.queue_at(queue.directory)

    def log_bases(self) -> list[int]:
        """Where the log's segments begin. Raises StoreDamaged, naming the file, for a file that
        RocketMQ would refuse, or an empty last file, which a step removes before this."""
        size = self.config.mapped_file_size_commit_log_bytes
        return _bases(self.paths.commit_log, self.segments, self.problems, size)

    def queue_bases(self, queue: QueueFiles) -> list[int]:
        """The same for a queue's files, in bytes."""
        size = self.config.mapped_file_size_consume_queue_bytes
        return _bases(queue.directory, queue.segments, queue.problems, size)

    def check_names_and_sizes(self) -> None:
        """Raise StoreDamaged for the first file with which RocketMQ would refuse to start. An empty
        last file is accepted: a RocketMQ leaves one if it dies while making it."""
        size = self.config.mapped_file_size_commit_log_bytes
        _bases(self.paths.commit_log, self.segments, self.problems, size, empty_last=True)
        size = self.config.mapped_file_size_consume_queue_bytes
        for queue in self.queues():
            _bases(queue.directory, queue.segments, queue.problems, size, empty_last=True)


def _bases(
    directory: Path,
    segments: list[Segment],
    problems: list[Problem],
    size: int,
    *,
    empty_last: bool = False,
) -> list[int]:
    """The bases of listed segments, if each is as it should be.

    The listing only tells whether there is anything to refuse. For the exact error the directory is
    listed again, by the strict rule.
    """
    if problems or any(segment.size != size for segment in segments):
        return segment_bases(directory, size, empty_last=empty_last)
    return [segment.base for segment in segments]
