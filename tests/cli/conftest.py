"""The command line as a person has it: on a terminal of 24 lines and 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LINES, COLUMNS = 24, 80
END_S = 180  # only what hangs takes that long, however busy the machine


class Terminal:
    """A command whose standard streams are a terminal, or some of them.

    `text` is what the terminal has shown so far; `longest_silence_s` is how long it showed nothing
    at most, on the command's own clock: a busy machine is not its fault.
    """

    def __init__(
        self, arguments: list[str], clock: Callable[[int], float], **streams: object
    ) -> None:
        self._screen, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        given = {"stdin": inner, "stdout": inner, "stderr": inner} | streams
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(LINES)},
            start_new_session=True,
            # so that ^C is a signal
            preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0),
            **given,
        )
        os.close(inner)
        self.text = ""
        self.longest_silence_s = 0.0
        # what waits to be read here is no silence either
        self._clock = lambda pid: clock(pid) + clock() - time.monotonic()
        self._shown_s = self._clock(self.process.pid)

    def type(self, text: bytes) -> None:
        os.write(self._screen, text)

    def show(self, until: str = "", timeout_s: float = END_S) -> str:
        """Read until this is on the screen, or the command has ended."""
        deadline = time.monotonic() + timeout_s
        while not until or until not in self.text:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{until!r} is not shown:\n{self.text}"
            screen = select.poll()  # select() refuses descriptors above 1023
            screen.register(self._screen, select.POLLIN)
            if not screen.poll(left_s * 1000):
                continue
            try:
                shown = os.read(self._screen, 65536)
            except OSError:  # nobody has the other side any more
                break
            now_s = self._clock(self.process.pid)
            self.longest_silence_s = max(self.longest_silence_s, now_s - self._shown_s)
            self._shown_s = now_s
            self.text += shown.decode()
        return self.text

    def end(self) -> int:
        """Read to the end; the exit code."""
        self.show()
        return self.process.wait(END_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(END_S)
        os.close(self._screen)


@pytest.fixture
def terminal(own_clock: Callable[..., float]) -> Iterator[Callable[..., Terminal]]:
    """Run a command on a terminal; streams given by name are something else."""
    opened: list[Terminal] = []

    def run(*arguments: str | Path, **streams: object) -> Terminal:
        opened.append(Terminal([str(each) for each in arguments], own_clock, **streams))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command with pipes."""

    def run(*arguments: str | Path, **given: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | given
        return subprocess.run(words, text=True, timeout=END_S, **streams)

    return run
