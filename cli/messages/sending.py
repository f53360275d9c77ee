"""Sends lines and knows which were stored, even when something breaks half way.

    lines -> send -> waiting, in their order -> stored | late | failed

What ends the sending early (a signal, an input that cannot be read, a refused line, a broker that
does not answer) ends the reading. Lines in flight are waited for, and then an error says how many
lines are stored and how to send the others. Receipts that cannot be printed are dropped: a broken
output is no reason to stop sending.

The first signal ends the reading. It may come at any moment, so it raises only while this process
waits for input and nothing is half done. A second signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.printing.error_lines import Interrupted
from penstock.cli.printing.output import print_json
from penstock.cli.signals import ENDING
from penstock.cli.streams import OutputFailed, discard_output, stop_when_unread
from penstock.shared.errors import FlushTimeout, PenstockError, StoreUnavailable

if TYPE_CHECKING:
    from penstock.client.core.sending.frames import SendFuture

# How many outcomes may wait to be handled: the producer bounds only their bytes.
_MOST_WAITING = 100_000
_ENDED_BY = (signal.SIGINT, *ENDING)


class _Ended(Exception):
    """Ends the reading before the input has ended; raised only while waiting for a line."""


class Receipts:
    """Prints receipts, as long as somebody reads them."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.unread = False
        self.failure: OutputFailed | None = None
        stop_when_unread()

    def print(self, receipt: object) -> None:
        if self._wanted:
            self._try(lambda: print_json(receipt))

    def flush(self) -> None:
        if self._wanted:
            self._try(sys.stdout.flush)

    def end(self) -> None:
        """Print whether receipts are missing. Raises OutputFailed."""
        if self.unread:
            click.echo("receipts are missing: their reader has gone", err=True)
        if self.failure is not None:
            raise self.failure

    def _try(self, output: Callable[[], object]) -> None:
        try:
            output()
        except BrokenPipeError:
            self.unread = True
        except OutputFailed as error:
            self.failure = error
        else:
            return
        self._wanted = False
        discard_output()


class Sending:
    """One run over an input. All numbers count lines, from 1 on."""

    def __init__(
        self, send: Callable[[bytes], SendFuture], timeout_s: float, receipts: Receipts
    ) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._receipts = receipts
        self._waiting: deque[tuple[int, SendFuture]] = deque()
        self._signal = 0
        self._may_raise = False
        # how many lines: given to the producer; known to be stored; of those, maybe not on disk
        self.sent = self.stored = self.late = 0
        # the first line that is not known to be stored, and why; 0 if there is none
        self.first_failed = 0
        self.error: PenstockError | None = None

    def run(self, lines: Iterator[bytes]) -> None:
        """Send all lines, or as many as possible; `error` says why it ended early."""
        with self._signals():
            try:
                while self.error is None and (body := self._next(lines)) is not None:
                    self._waiting.append((self.sent + 1, self._send(body)))
                    self.sent += 1
                    if self.sent == 1:
                        # wait for the first: an error would concern the others too, and after it
                        # the broker's limit of a line is known
                        self._take()
                    self._settle()
            except _Ended:
                pass  # a signal, which is reported below, or an error that is noted already
            except PenstockError as error:
                self._failed(self.sent + 1, error)
            except OSError as error:
                cause = StoreUnavailable("the input cannot be read any further", error.strerror)
                self._failed(self.sent + 1, cause)
            while self._waiting:
                self._take()
            if self._signal:
                name = signal.Signals(self._signal).name
                interrupted = Interrupted("interrupted", name)
                interrupted.exit_code = 128 + self._signal
                self._failed(self.sent + 1, interrupted)
        self._receipts.flush()

    def _next(self, lines: Iterator[bytes]) -> bytes | None:
        """The next line; None at the end."""
        self._may_raise = True
        try:
            if self._signal:
                raise _Ended
            return next(lines, None)
        finally:
            self._may_raise = False

    def idle(self) -> bool:
        """Handle outcomes while there is nothing to read. Returns whether more are to come."""
        self._may_raise = False
        self._settle()
        self._receipts.flush()
        self._may_raise = True
        if self._signal or self.error is not None:
            raise _Ended
        return bool(self._waiting)

    def _settle(self) -> None:
        """Handle the outcomes that are there."""
        while self._waiting and (self._waiting[0][1].done() or len(self._waiting) > _MOST_WAITING):
            self._take()

    def _take(self) -> None:
        """Wait for the oldest outcome, and handle it."""
        line, future = self._waiting[0]
        receipt: object = None
        try:
            receipt = future.result(self._timeout_s + 1)
            self.stored += 1
        except FlushTimeout as error:
            # the line is stored, and must not be sent again
            receipt = error.receipt
            self.stored += 1
            self.late += 1
        except PenstockError as error:
            self._failed(line, error)
        self._waiting.popleft()
        if receipt is not None:
            self._receipts.print(receipt)

    def _failed(self, line: int, error: PenstockError) -> None:
        if not self.first_failed or line < self.first_failed:
            self.first_failed = line
            self.error = error

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _ENDED_BY}
        for number in _ENDED_BY:
            if before[number] is not signal.SIG_IGN:  # ignored under nohup, or in the background
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._signal:
            # not through sys.stderr, which may be what is stuck; a bar may have hidden the cursor
            shown = "\x1b[?25h" if sys.stderr.isatty() else ""
            unknown = self._waiting[0][0] if self._waiting else self.sent + 1
            _tell(
                f"{shown}error: [INTERRUPTED] interrupted again: {self.stored} lines are stored; "
                f"those from line {self.first_failed or unknown} on may not be\n"
            )
            os._exit(128 + number)
        self._signal = number
        if self._waiting:
            _tell("stopping: waiting for what is on its way; once more ends at once\n")
        if self._may_raise:
            raise _Ended


def _tell(line: str) -> None:
    try:
        os.write(2, line.encode())
    except OSError:
        return  # nobody can be told
