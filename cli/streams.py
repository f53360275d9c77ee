"""Standard input, output and error of this process, prepared before a command runs.

If the caller has closed one of these descriptors, it is filled, so that no file of a store gets its
number; using it still fails with EBADF. Standard output that cannot be written raises OutputFailed
in every command. If its reader is gone, output is discarded, so that a report still ends with its
own exit code, unless the command streams and asks to be stopped. Standard error never fails:
whoever closed it wants to hear nothing.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from penstock.shared.errors import PenstockError

# How often a command that waits for something to print checks that it is still read.
READER_LOOK_S = 1.0
# whether the command ends when its reader is gone; commands that print without end ask for this
_stops = False


class OutputFailed(PenstockError):
    """Standard output cannot be written: its disk is full, or it is closed."""

    status = "OUTPUT_FAILED"

    def __init__(self, cause: OSError) -> None:
        super().__init__(
            "standard output cannot be written",
            cause.strerror,
            "name a file on a disk with room, or a pipe that is read",
        )


class _Output(io.FileIO):
    """Descriptor 1."""

    def write(self, data: Any, /) -> int:
        try:
            while (done := super().write(data)) is None:  # another process made it non-blocking
                # imported late, because `--help` imports next to nothing
                from penstock.shared.files.readable import wait_until_writable

                wait_until_writable(self.fileno())
            return done
        except BrokenPipeError:
            if _stops:
                raise
        except OSError as error:
            raise OutputFailed(error) from None
        return len(data)


class _ErrorOutput(io.FileIO):
    """Descriptor 2."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """To be called once, before anything is opened. Leaves streams alone that a test replaced."""
    # opened in the wrong direction, so that using one still fails as if it were closed
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open for as long as the process
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_ErrorOutput(2, "w", closefd=False), sys.stderr, by_line=True)


def _text(raw: io.FileIO, old: Any, by_line: bool = False) -> io.TextIOWrapper:
    """A stream as Python makes it, but it escapes characters that the encoding lacks."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=by_line or raw.isatty(),
    )


def stop_when_unread() -> None:
    """From now on the command ends when its reader is gone, like `yes`."""
    global _stops
    _stops = True


def check_reader() -> None:
    """Raise BrokenPipeError if the reader is gone.

    For a command with nothing to print at the moment, which would not notice before its next write.
    """
    from penstock.shared.files.readable import is_abandoned

    if is_abandoned(sys.stdout.fileno()):
        raise BrokenPipeError


def finish_output() -> None:
    """Write what is still buffered, if anybody reads it. When Python does that at its own exit, it
    may fail, and the exit code would be Python's. A signal in the middle of a write leaves the data
    in the buffer, written or not."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputFailed):
        discard_output()


def discard_output() -> None:
    """Discard what is still buffered and all later output, so that nothing raises again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
