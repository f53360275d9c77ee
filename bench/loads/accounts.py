"""What processes cost: CPU seconds of each by its name, and memory. Reads /proc through psutil.

A process counts with all its descendants, except those that have a name of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class Ran(NamedTuple):
    """How long the threads of a process have run, in ns, and how often they went to sleep by
    themselves. The kernel counts both exactly; CPU seconds come in hundredths."""

    ns: int
    wakes: int


def ran(pid: int) -> Ran:
    """Counts only threads that exist now."""
    ns = wakes = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            ns += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
            wakes += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return Ran(ns, wakes)


class Memory(NamedTuple):
    """In MiB. PSS divides a page that several processes share among them.

    `own_mib` is the PSS without pages of files on a disk: those are the kernel's cache, which it
    reclaims whenever somebody needs memory.
    """

    rss_mib: float
    pss_mib: float
    own_mib: float


class Accounts:
    """The named processes of one measurement."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._named = {name: psutil.Process(pid) for name, pid in pids.items() if pid}

    def _families(self) -> dict[str, list[psutil.Process]]:
        own = {process.pid for process in self._named.values()}
        found = {}
        for name, process in self._named.items():
            found[name] = [process]
            with suppress(psutil.NoSuchProcess):
                for child in process.children(recursive=True):
                    if child.pid not in own:
                        found[name].append(child)
        return found

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each has used since it began, in user and kernel mode.

        A child that has ended is in its parent's account, so the figure never decreases.
        """
        used = dict.fromkeys(self._named, 0.0)
        for name, family in self._families().items():
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    used[name] += times.user + times.system
                    used[name] += times.children_user + times.children_system
        return used

    def memory(self) -> dict[str, Memory]:
        found = {}
        for name, family in self._families().items():
            rss = pss = own = 0
            for process in family:
                # it has ended meanwhile, or is a zombie
                with suppress(FileNotFoundError, ProcessLookupError):
                    kib = _rollup_kib(process.pid)
                    rss, pss = rss + kib["Rss"], pss + kib["Pss"]
                    own += kib["Pss_Anon"] + kib["Pss_Shmem"]
            found[name] = Memory(*(round(each / 1024, 1) for each in (rss, pss, own)))
        return found


def _rollup_kib(pid: int) -> dict[str, int]:
    """The kernel's sums over all mappings of a process; psutil does not tell kinds apart."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def cpu_s_per_million(
    before: Mapping[str, float], after: Mapping[str, float], client_s: float, messages: int
) -> dict[str, float]:
    """CPU seconds per million messages: of each process, of the clients, and of all."""
    used = {name: after[name] - before[name] for name in after} | {"client": client_s}
    used["total"] = sum(used.values())
    return {name: round(seconds / messages * 1e6, 3) for name, seconds in used.items()}
