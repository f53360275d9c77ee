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
# Whatever works in the main thread at the moment: coroutines may be several, and an iteration that
# was broken off ends only after the next one has begun.
_stops: list[Callable[[], None]] = []
_taken: list[signal.Signals] = []


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block both call `stop`, in the main thread and where the program has not said
    otherwise: its own handlers stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _take()
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _give_back()


def _take() -> None:
    for number, usual in _DEFAULTS.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _handle)
            _taken.append(number)


def _give_back() -> None:
    while _taken:
        number = _taken.pop()
        signal.signal(number, _DEFAULTS[number])


def _handle(number: int, frame: FrameType | None) -> None:
    _give_back()
    for stop in tuple(_stops):
        stop()
