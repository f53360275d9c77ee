"""Ctrl-C and SIGTERM end a consumer's work in order: once. The second one is Python's again."""

from __future__ import annotations

import functools
import signal
import sys
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
# with the handlers that they had
_taken: dict[signal.Signals, Any] = {}


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
    for number in _DEFAULTS:
        handler = signal.getsignal(number)
        if _is_nobodys(number, handler):
            signal.signal(number, _handle)
            _taken[number] = handler


def _is_nobodys(number: signal.Signals, handler: Any) -> bool:
    """Whether the program has not said what is to happen. It has not by `asyncio.run`, which takes
    Ctrl-C for itself and cancels the task at once, in the middle of a message."""
    if isinstance(handler, functools.partial):
        runner = getattr(sys.modules.get("asyncio"), "Runner", None)
        method = getattr(handler.func, "__func__", None)
        return method is not None and method is getattr(runner, "_on_sigint", None)
    return handler is _DEFAULTS[number]


def _give_back() -> None:
    while _taken:
        signal.signal(*_taken.popitem())


def _handle(number: int, frame: FrameType | None) -> None:
    _give_back()
    for stop in tuple(_stops):
        stop()
