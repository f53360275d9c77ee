"""Processes that check copies of stores, as many at a time as there are processors.

They live as long as the run, and die with it. This file knows neither stores nor faults.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from penstock.shared.process.actor import die_with_parent

Task = TypeVar("Task")
Result = TypeVar("Result")


def batched(items: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    """The items in order, `size` at a time, so that a task is worth sending."""
    return (items[at : at + size] for at in range(0, len(items), size))


class Workers:
    """The workers, started at the first use."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def map(self, check: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """The results in the order of the tasks. Raises what `check` raises."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                len(os.sched_getaffinity(0)),
                # if forked from here, they would keep the sockets of what runs next to them
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(os.getpid(),),
            )
        return self._pool.map(check, tasks)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _begin(parent_pid: int) -> None:
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
