"""A check in parts that are walked side by side, each in a process of its own.

    python -m penstock.maintenance.verify_parts TASK     a Task as JSON; prints JSON, a line each

    log, cut at its segments -> a walk for each part     \\
    index files              -> their chains, one by one  >  joined in log order -> a report
    queues, checkpoint, groups -> here                   /

The last line that a process prints is what it found, and each before says how far it is. Spark's
audit cuts a log elsewhere and starts its workers itself; what one of them does is here, too.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from penstock.maintenance.verify_walk import (
    How,
    IndexPart,
    LogPart,
    Progress,
    Walk,
    checked_queues,
    walk_chains,
)
from penstock.shared.errors import StoreUnavailable
from penstock.shared.files.segments import Segment
from penstock.shared.formats.record_layout import BLANK
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.store.directory import StoreDirectory

# Of log, for one worker: a process takes half a second to begin.
PART_BYTES = 256 << 20
_Walk = Callable[[int, int | None], LogPart]


class Task(msgspec.Struct, frozen=True):
    """A stretch of the log, up to its end where `stop` is None; or an index file, by its number."""

    store: str
    how: How
    start: int = 0
    stop: int | None = None
    index_file: int | None = None


class _Line(msgspec.Struct, omit_defaults=True):
    done: int = 0
    log: LogPart | None = None
    chains: IndexPart | None = None


def work(task: Task, progress: Progress | None = None) -> LogPart | IndexPart:
    """One task, in a worker."""
    with StoreDirectory(task.store) as store:
        if task.index_file is not None:
            return walk_chains(store, task.how, task.index_file)
        gone = load_deleted_topics(store.paths.deleted_topics).ends()
        queues = checked_queues(store, gone)
        return Walk(store, task.how, queues, gone, task.start, task.stop).run(progress)


def mended(walk: _Walk, tasks: Sequence[Task], parts: Iterable[LogPart]) -> Iterator[LogPart]:
    """The parts, without those that began inside a record: its body holds a copy of a record.

    What was cut there is walked again as one part.
    """
    begun: int | None = None
    for task, part in zip(tasks, parts, strict=True):
        joined = part if begun is None else walk(begun, task.stop)
        begun = joined.start if joined.overran else None
        if begun is None:
            yield joined


def tasks_of(
    store: StoreDirectory, root: str, how: How, index_files: int, part_bytes: int
) -> list[Task]:
    """The log, cut where segments begin that are `part_bytes` apart, each with a record; then the
    index files. None where the log is too short to be cut."""
    cuts = [store.log_start]
    for segment in store.segments:
        if segment.base - cuts[-1] >= part_bytes and _is_written(segment):
            cuts.append(segment.base)
    if len(cuts) < 2:
        return []
    tasks = [
        Task(root, how, start, stop) for start, stop in zip(cuts, [*cuts[1:], None], strict=True)
    ]
    return tasks + [Task(root, how, index_file=each) for each in range(index_files)]


def _is_written(segment: Segment) -> bool:
    """One that was only made ahead is all zeros."""
    with suppress(FileNotFoundError), segment.path.open("rb") as file:
        return any(file.read(BLANK.size))
    return False


class SideBySide:
    """The workers of one check. Leaving the block ends those that still work."""

    def __init__(self, processes: int, progress: Progress | None, total: int) -> None:
        self._pool = ThreadPoolExecutor(processes)
        self._progress, self._total = progress, total
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._ended = True
            for worker in self._workers:
                worker.kill()
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Task]) -> list[LogPart | IndexPart]:
        """What came of each, in their order. Raises StoreUnavailable where a worker fails."""
        return list(self._pool.map(self._work, range(len(tasks)), tasks))

    def _work(self, number: int, task: Task) -> LogPart | IndexPart:
        command = [sys.executable, "-m", __name__, msgspec.json.encode(task).decode()]
        pipe = subprocess.PIPE
        with self._lock:
            if self._ended:
                raise StoreUnavailable("the check was ended")
            worker = subprocess.Popen(command, stdout=pipe, stderr=pipe)
            self._workers.add(worker)
        assert worker.stdout is not None and worker.stderr is not None
        found: LogPart | IndexPart | None = None
        with worker:
            for raw in worker.stdout:
                line = msgspec.json.decode(raw, type=_Line)
                found = line.log or line.chains
                if task.index_file is None:
                    self._moved(number, line.done)
            said = worker.stderr.read().decode(errors="replace").strip()
        with self._lock:
            self._workers.discard(worker)
        if found is None:
            what = f"a part of the check ended with code {worker.returncode}"
            raise StoreUnavailable(what, said.rpartition("\n")[2] or task.start)
        return found

    def _moved(self, number: int, done: int) -> None:
        with self._lock:
            self._done[number] = max(done, self._done.get(number, 0))
            if self._progress:
                self._progress(min(sum(self._done.values()), self._total), self._total)


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)

    def say(line: _Line) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.flush()

    found = work(task, lambda done, total: say(_Line(done)))
    say(_Line(log=found) if isinstance(found, LogPart) else _Line(chains=found))


if __name__ == "__main__":
    main()
