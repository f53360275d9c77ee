"""Runs pytest as forks of one process that has imported what is not the tree's: its start takes two
seconds of a processor, and a fork a quarter of that.

It is run in the tree and reads lines of JSON, [seconds, whether brokers may be started, words for
pytest], and answers each with [exit code, what was printed]; the code is null where time was up.
What the tree has is imported by each fork for itself, for it may have a bug by then.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

# To know what tests import, these are collected once.
_COLLECTED = ("tests/actors/writer/test_actor.py", "tests/client/core/test_blocks.py")
_BROKERS = {"broker", "broker_in", "start_broker"}
# what is imported before pytest begins is not rewritten, and is not meant to be
_OPTIONS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


class QuickFirst:
    """Has tests begin in the order of what they took before; most bugs are found by a quick one.

    Those that have not run yet come between, and what starts no broker before the others, or
    instead of them.
    """

    def __init__(self, taken: dict[str, float], brokers: bool, tell: int) -> None:
        self._taken, self._brokers, self._tell = taken, brokers, tell
        self._seen: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def starts_broker(item: pytest.Item) -> bool:
            return not _BROKERS.isdisjoint(getattr(item, "fixturenames", ()))

        if not self._brokers:
            items[:] = [item for item in items if not starts_broker(item)]
        items.sort(key=lambda item: self._taken.get(item.nodeid, 5 if starts_broker(item) else 1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seen[report.nodeid] = self._seen.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        os.write(self._tell, json.dumps(self._seen).encode())


def run(words: list[str], printed: int, first: QuickFirst) -> None:
    """Be the process that runs pytest."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, each in enumerate((nothing, printed, printed)):
        os.dup2(each, number)
    sys.exit(pytest.main([*_OPTIONS, *words], plugins=[first]))


def wait(pid: int, limit_s: float) -> int | None:
    """The exit code, or None where time was up, and the process and its group are killed."""
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        is_late = not selector.select(limit_s)
    os.close(ended)
    if is_late:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return None if is_late else os.waitstatus_to_exitcode(status)


def import_others() -> None:
    """Import what a collection imports and the tree does not have."""
    with tempfile.TemporaryFile() as told:
        pid = os.fork()
        if pid == 0:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
            pytest.main([*_OPTIONS, "--collect-only", "-q", "-p", "no:cacheprovider", *_COLLECTED])
            names = [name for name, module in sys.modules.items() if not _is_of_tree(name, module)]
            told.write("\n".join(names).encode())
            told.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        told.seek(0)
        for name in told.read().decode().splitlines():
            with suppress(Exception):
                importlib.import_module(name)


def _is_of_tree(name: str, module: object) -> bool:
    file = getattr(module, "__file__", None) or ""
    is_own = name.partition(".")[0] in ("penstock", "tests", "conftest", "__main__")
    return is_own or Path(file).is_relative_to(Path.cwd())


def main() -> None:
    sys.path[0] = os.getcwd()
    import_others()
    taken: dict[str, float] = {}
    for line in sys.stdin:
        limit_s, brokers, words = json.loads(line)
        with _file() as printed, _file() as told:
            pid = os.fork()
            if pid == 0:
                run(words, printed.fileno(), QuickFirst(taken, brokers, told.fileno()))
            code = wait(pid, limit_s)
            for each in printed, told:
                each.seek(0)
            said = printed.read().decode(errors="replace")
            taken |= json.loads(told.read() or "{}")
        print(json.dumps([code, said]), flush=True)


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile(dir="/tmp")


if __name__ == "__main__":
    main()
