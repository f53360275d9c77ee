"""SIGTERM and a closed terminal end commands that have processes of their own in the same way as
Ctrl-C, and nothing else is printed about it, even in the middle of a call to Java."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

# Windows has no SIGHUP.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

# what a signal raises
_ENDS = (KeyboardInterrupt, SystemExit)


def end_in_order(ctx: click.Context) -> None:
    """From now on these signals unwind the command, so that it stops its brokers and removes its
    files."""
    for number in ENDING:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
            ctx.call_on_close(lambda number=number, before=before: signal.signal(number, before))


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Have Ctrl-C raise only KeyboardInterrupt, and a signal of `end_in_order` only SystemExit.

    If either interrupts a call to Java, py4j would log it with a traceback, and then raise an error
    of its own, because it takes the answer to that call for the next one's. The same goes for the
    call that Spark's own signal handler makes in the middle of another. If the signal interrupts a
    finaliser of py4j's, which cannot raise, it would be lost, so it is sent again afterwards."""
    # imported here, so that commands without Spark do not wait for it
    import logging
    import threading

    unraisable = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, _ENDS):
            # from another thread, because here and now it would hit the same finaliser
            number = _signal_of(lost.exc_value)
            threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        else:
            unraisable(lost)

    def is_other(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            if isinstance(error, RuntimeError) and "reentrant call" in str(error):
                return False
            error = error.__context__
        return "KeyboardInterrupt" not in record.getMessage()

    log = logging.getLogger()  # py4j has a logger of its own, but logs this to the root
    log.addFilter(is_other)
    sys.unraisablehook = again
    try:
        yield
    except Exception as error:
        before = error.__context__
        while before is not None:
            if isinstance(before, _ENDS):
                raise before from None
            before = before.__context__
        raise
    finally:
        sys.unraisablehook = unraisable
        log.removeFilter(is_other)


def _signal_of(error: BaseException) -> int:
    """The signal that caused this error; `end_in_order` exits with 128 + its number."""
    code = getattr(error, "code", None)
    return code - 128 if isinstance(code, int) and code > 128 else signal.SIGINT
