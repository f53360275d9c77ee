"""Parts of a long work, done by several processes of this machine side by side.

    side_by_side(work, parts, processes=2) -> the result of each part, in order, one by one
    run_side_by_side(work, parts, costs, processes=2) -> all of them, with progress

Parts and results are bytes, and `work` is a function of a module, so a worker is told only its
name, and nothing is pickled. A worker is `python -m` this module. It reads parts from one pipe and
writes results to another, each with its length in front, until its pipe ends. So it ends with the
process that has started it, even if that is killed.

This file must not know what the work is: verify, rebuild, repair and inspect bring their own.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import IO

from penstock.shared.errors import StoreUnavailable
from penstock.shared.process.malloc_tuning import keep_large_blocks

Work = Callable[[bytes], bytes]
Progress = Callable[[int, int], None]
_LENGTH_BYTES = 8


def run_side_by_side(
    work: Work,
    parts: Sequence[bytes],
    costs: Sequence[int],
    progress: Progress | None = None,
    *,
    processes: int = 1,
) -> list[bytes]:
    """The result of each part, in order. `progress` is told (done, total) in the unit of `costs`.

    Raises what `work` raises. If one process is asked for, or there is only one part, this process
    does the work.
    """
    counted = _Counted(costs, progress)
    count = min(processes, len(parts))
    return list(side_by_side(work, parts, processes=count, ended=counted.take))


def side_by_side(
    work: Work,
    parts: Iterable[bytes],
    *,
    processes: int = 1,
    alone: int = 0,
    ended: Callable[[int], None] = lambda _: None,
) -> Generator[bytes, None, None]:
    """The result of each part, in order, while the next ones are worked on.

    There may be any number of parts: at most three for each process are taken ahead. This process
    does the first `alone` parts, so that a short work starts no other. `ended` is told the number
    of each part when it is done, by any thread, in any order.

    Raises what `work` raises.
    """
    waiting = enumerate(parts)
    for number, part in waiting if processes < 2 else islice(waiting, alone):
        result = work(part)
        ended(number)
        yield result
    first = next(waiting, None)
    if first is None:
        return
    with ExitStack() as stack:
        pool = stack.enter_context(_threads(processes))
        # left first: threads that wait for a killed worker notice its end, and do not block
        workers = stack.enter_context(_Workers(work, processes))

        def do(number: int, part: bytes) -> bytes:
            result = workers.do(part)
            ended(number)
            return result

        ahead: deque[Future[bytes]] = deque()
        for numbered in chain((first,), waiting):
            ahead.append(pool.submit(do, *numbered))
            if len(ahead) == 3 * processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is left. Processes that are started in it begin with the signal
    blocked, so it cannot reach them before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Counted:
    """Adds up what is done, whichever part ends first."""

    def __init__(self, costs: Sequence[int], progress: Progress | None) -> None:
        self._costs, self._progress = costs, progress
        self._lock = threading.Lock()
        self._done, self._total = 0, sum(costs)

    def take(self, number: int) -> None:
        with self._lock:
            self._done += self._costs[number]
            if self._progress:
                self._progress(self._done, self._total)


class _Workers:
    """The processes. Leaving the block ends them, whatever they are doing."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        command = [sys.executable, "-m", __name__, work.__module__, work.__qualname__]
        with _uninterrupted():
            self._all = [
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                for _ in range(count)
            ]
        self._free: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        for each in self._all:
            self._free.put(each)
        self._ended = False

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        for each in self._all:
            each.kill()
        for each in self._all:
            each.wait()
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # a dead worker has not read its part
                    pipe.close()

    def do(self, part: bytes) -> bytes:
        """One part, by the next worker that is free."""
        worker = self._free.get()
        result = None if worker is None else _asked(worker, part)
        self._free.put(worker if result is not None else None)
        if result is None and self._ended:
            raise StoreUnavailable("the work was ended")
        # It was killed, or the work failed. Repeated here, a failure raises an error of its own
        # kind, which no text from another process is.
        return self._work(part) if result is None else result


def _asked(worker: subprocess.Popen[bytes], part: bytes) -> bytes | None:
    """A worker's result for a part; None if the worker has ended."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        _put(worker.stdin, part)
        return _next(worker.stdout)
    except (OSError, ValueError):  # ValueError: its pipe is closed
        return None


def _put(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    pipe.write(message)
    pipe.flush()


def _next(pipe: IO[bytes]) -> bytes | None:
    """The next message of a pipe; None if the pipe ends, between messages or within one."""
    length = int.from_bytes(head := pipe.read(_LENGTH_BYTES), "big")
    message = pipe.read(length)
    return message if len(head) == _LENGTH_BYTES and len(message) == length else None


def main(module: str, name: str) -> int:
    """A worker: runs until its pipe ends, or the work fails."""
    # Ctrl-C goes to all of a terminal's processes; the process that started this one ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a result that nobody reads any more is not an error to report
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # parts, and results, mostly have similar sizes
    keep_large_blocks()
    work: Work = getattr(importlib.import_module(module), name)
    while (part := _next(sys.stdin.buffer)) is not None:
        try:
            result = work(part)
        except Exception:
            return 1  # the process that asked repeats the work, and reports the failure
        _put(sys.stdout.buffer, result)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
