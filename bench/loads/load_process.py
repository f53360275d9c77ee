"""Load processes, Penstock's and the peers': started, released together, and heard to the end.

Their protocol is in `load.py`. A process that fails ends the measurement, and the error has its
stderr. This file does not know what is sent.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.bench.loads.load import Receive, Seen, Send
from penstock.shared.errors import StoreUnavailable

READY_TIMEOUT_S = 120
# beyond the ordered seconds
ANSWER_TIMEOUT_S = 90
LOOK_S = 0.1

Moved = Callable[[int, int], None]


def load_command(order: Send | Receive) -> list[str]:
    """The command that starts a load process."""
    return [sys.executable, "-m", "penstock.bench.loads.load", msgspec.json.encode(order).decode()]


class LoadProcess:
    """One process: it gets ready, is told to go, and answers."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )

    def go(self) -> None:
        self.tell("go\n")

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()

    def hear(self, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Its next line. Raises StoreUnavailable with its stderr if there is none."""
        assert self.process.stdout is not None
        until = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not selector.select(LOOK_S) and time.monotonic() < until:
                waiting()
            ready = selector.select(0)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.end()
            self._said.seek(0)
            said = self._said.read()[-3000:].decode(errors="replace").strip()
            code = self.process.returncode
            raise StoreUnavailable(
                f"the load gave no answer within {timeout_s:.0f} s",
                f"it ended with code {code}",
                said,
            )
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.end()
        for pipe in (self.process.stdin, self.process.stdout, self._said):
            assert pipe is not None
            pipe.close()


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[LoadProcess]]:
    """The processes, warm and ready. All have ended when the block ends."""
    processes: list[LoadProcess] = []
    try:
        for command in commands:
            processes.append(LoadProcess(command))
        for process in processes:
            process.hear(READY_TIMEOUT_S)
        yield processes
    finally:
        for process in processes:
            process.close()


def measured(processes: Sequence[LoadProcess], seconds: float, moved: Moved) -> list[Seen]:
    """Let all go at once; returns what each saw. `moved` gets the elapsed time, in ms."""
    began = time.monotonic()
    total_ms = round(seconds * 1000)
    for process in processes:
        process.go()

    def waiting() -> None:
        moved(min(total_ms, round((time.monotonic() - began) * 1000)), total_ms)

    timeout_s = seconds + ANSWER_TIMEOUT_S
    return [msgspec.convert(each.hear(timeout_s, waiting), Seen) for each in processes]
