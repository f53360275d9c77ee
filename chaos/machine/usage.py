"""What processes use: memory and time of the processor, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


def own_memory_bytes(pid: int) -> int:
    """Anonymous memory: mapped files are in the page cache, and can be dropped at any time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of all these processes together. One that has ended counts 0: if that should
    not have happened, its restarts show it."""
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class ThreadTime(NamedTuple):
    """How long a thread ran, and how long it was ready to run while others had the processors."""

    ran_s: float
    delayed_s: float


def thread_times(pids: Iterable[int]) -> dict[int, ThreadTime]:
    """The times of all threads of these processes, by thread id."""
    found: dict[int, ThreadTime] = {}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                ran, delayed = (thread / "schedstat").read_text().split()[:2]
                found[int(thread.name)] = ThreadTime(int(ran) / 1e9, int(delayed) / 1e9)
    return found


def delayed_seconds(pids: Iterable[int]) -> float:
    """How long threads of these processes were ready and had no processor."""
    return sum(each.delayed_s for each in thread_times(pids).values())
