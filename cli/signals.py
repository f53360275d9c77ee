"""SIGTERM and a closed terminal end commands that have processes of their own as Ctrl-C does."""

from __future__ import annotations

import signal
import sys

import click

# Windows has no SIGHUP.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def end_in_order(ctx: click.Context) -> None:
    """From now on these unwind the command, so that it stops its brokers and removes its files."""
    for number in ENDING:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
            ctx.call_on_close(lambda number=number, before=before: signal.signal(number, before))
