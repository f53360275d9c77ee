"""What processes hold: descriptors, children, threads, shared memory. What a round adds to that is
a leak.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from multiprocessing import resource_tracker
from pathlib import Path

from penstock.chaos.machine.processes import descriptors, processes_of, run_directories_below
from penstock.shared.memory.ring_file import ring_files

SETTLED_TIMEOUT_S = 5
# held by worker processes that check copies of stores; they live as long as the run
_OF_WORKERS = ("descriptor of pipe:", "thread", "child")


class Baseline:
    """What this process and its brokers hold before something that must leave nothing."""

    def __init__(self, place: Path) -> None:
        self._place = place
        # lives until this process ends
        resource_tracker.ensure_running()
        self._held = self._now()

    def leaked(self, *, with_workers: bool = False) -> list[str]:
        """What is held beyond the baseline and does not go away; `with_workers` if worker processes
        may have been started since."""
        deadline = time.monotonic() + SETTLED_TIMEOUT_S
        while True:
            more = self._now() - self._held
            if with_workers:
                more = Counter({k: n for k, n in more.items() if not k.startswith(_OF_WORKERS)})
            if not more or time.monotonic() > deadline:
                return [f"leaked: {count} {what}" for what, count in sorted(more.items())]
            time.sleep(0.05)

    def _now(self) -> Counter[str]:
        found = Counter({f"descriptor of {k}": n for k, n in descriptors().items()})
        found["thread"] = threading.active_count()
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        found["child"] = len(children.read_text().split())
        found["process of a broker"] = len(processes_of())
        runs = run_directories_below(self._place)
        found["run directory"] = len(runs)
        found["ring"] = sum(len(ring_files(run)) for run in runs)
        return found
