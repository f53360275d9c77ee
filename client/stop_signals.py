"""Ctrl-C and SIGTERM end a consumer's work in order: once. The second one is Python's again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block both call `stop`, in the main thread and where the program has not said
    otherwise: its own handlers stay."""
    taken: list[signal.Signals] = []

    def give_back() -> None:
        while taken:
            number = taken.pop()
            signal.signal(number, _DEFAULTS[number])

    def handle(number: int, frame: FrameType | None) -> None:
        give_back()
        stop()

    if threading.current_thread() is threading.main_thread():
        for number, usual in _DEFAULTS.items():
            if signal.getsignal(number) is usual:
                signal.signal(number, handle)
                taken.append(number)
    try:
        yield
    finally:
        give_back()
