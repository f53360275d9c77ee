"""SIGTERM and a closed terminal end commands that have processes of their own as Ctrl-C does; and
whatever ends them, amid a call to Java too, is all that is heard of it."""

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
    """From now on these unwind the command, so that it stops its brokers and removes its files."""
    for number in ENDING:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
            ctx.call_on_close(lambda number=number, before=before: signal.signal(number, before))


@contextmanager
def interrupted_once() -> Iterator[None]:
    """KeyboardInterrupt is what comes of Ctrl-C, and SystemExit of a signal that ends in order.

    One that meets a call to Java is logged by py4j with its traceback, and followed by an error of
    py4j's own: the answer to that call is taken for that to the next one. So is the call that
    Spark's own handler of the signal makes in the middle of another one. One that meets a finaliser
    of py4j's is lost, for those cannot raise: it comes again when that is over."""
    # imported here: commands without Spark do not wait for it
    import logging
    import threading

    unraisable = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, _ENDS):
            # by another thread: here and now it would meet the same finaliser
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

    log = logging.getLogger()  # py4j has one of its own, and logs this to the root
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
    """By which this came: `end_in_order` ends with 128 and its number, as a shell tells it."""
    code = getattr(error, "code", None)
    return code - 128 if isinstance(code, int) and code > 128 else signal.SIGINT
