"""A program that runs Spark, to be killed and started again: Python, Java and their workers, with
their own process group and directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from penstock.shared.errors import StoreUnavailable

_LOOK_S = 0.05


class SparkProgram:
    """`python -m MODULE ARGUMENTS`; its output goes to the file `said` in its directory."""

    def __init__(self, module: str, arguments: Sequence[str], place: Path) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._place = place
        place.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, for the first time or after `kill`."""
        # what Java and Spark leave when they are killed is removed with the directory
        own = {"TMPDIR": str(self._place), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._place}"}
        with (self._place / "said").open("ab") as said:
            self._process = subprocess.Popen(
                self._command,
                stdout=said,
                stderr=said,
                env=os.environ | own | dict(environment or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has finished by itself, without an error."""
        return self._process.poll() == 0

    def wait(self, is_so: Callable[[], bool], patience_s: float, what: str) -> None:
        """Wait until a condition holds. Raises StoreUnavailable if the program fails before that,
        or takes too long."""
        until = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > until or self._process.poll():
                said = (self._place / "said").read_text(errors="replace")
                raise StoreUnavailable(what, said[-2000:])
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """kill -9 of Python and Java at once, and of what they have started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Spark's daemon of workers leads a group of its own, and ends when its Java process is gone
        for each in self.others():
            with suppress(psutil.NoSuchProcess):  # it has just done so
                each.kill()

    def others(self) -> list[psutil.Process]:
        """Its processes except the first; on a cluster also the executors'."""
        found = []
        for each in psutil.process_iter(["environ", "cmdline"]):
            environment = each.info["environ"] or {}
            if environment.get("TMPDIR") == str(self._place) and each.pid != self._process.pid:
                found.append(each)
        return found
