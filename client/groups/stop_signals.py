"""The first Ctrl-C or SIGTERM ends a consumer's work in order. The second is Python's again.

Python runs a handler only in its main thread. If a signal arrives just before that thread waits, or
in another thread, Python notes it, but nothing ends the wait. Python's C-level handler also writes
to the file descriptor of `signal.set_wakeup_fd`. A thread here reads that, and calls `stop`.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
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
# The `stop` of everything that works in the main thread now. There may be several: coroutines run
# side by side, and an iteration that was broken off may end only after the next one has begun.
_stops: list[Callable[[], None]] = []
# signals that are handled here, and the handlers that they had before
_taken: dict[signal.Signals, Any] = {}


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block both signals call `stop`. This holds only in the main thread; handlers that
    the program has set stay. `stop` may be called more than once, and from another thread."""
    global _listener
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _take()
    _stops.append(stop)
    try:
        yield
    finally:
        if stop in _stops:  # a fork has none of its parent's
            _stops.remove(stop)
        if not _stops:
            _give_back()
            if _listener is not None:
                _listener.close()
                _listener = None


def _take() -> None:
    global _listener
    for number in _DEFAULTS:
        handler = signal.getsignal(number)
        if _is_nobodys(number, handler):
            signal.signal(number, _handle)
            _taken[number] = handler
    if _taken:
        _listener = _Listener(frozenset(_taken))


def _is_nobodys(number: signal.Signals, handler: Any) -> bool:
    """Whether the program has set no handler of its own. That of `asyncio.run` does not count: it
    would cancel the task at once, in the middle of a message."""
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
    _stop_all()


def _stop_all() -> None:
    for stop in tuple(_stops):
        stop()


class _Listener:
    """The thread that hears of signals, whatever the main thread does.

    If an event loop has set a wakeup descriptor, it stays: the loop hears of signals itself, and is
    what the main thread waits in.
    """

    def __init__(self, numbers: frozenset[int]) -> None:
        self._numbers = numbers
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        others = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        if others >= 0:
            signal.set_wakeup_fd(others)
        self._thread = threading.Thread(target=self._listen, name="penstock-signals", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while told := self._heard.recv(64):
            if not self._numbers.isdisjoint(told):
                _stop_all()

    def close(self) -> None:
        self.leave()
        # a child of a fork may have this end open as well
        self._told.shutdown(socket.SHUT_WR)
        self._thread.join()
        self.forget()

    def leave(self) -> None:
        """Have the C-level signal handler no longer write here."""
        chosen = signal.set_wakeup_fd(-1)
        if chosen != self._told.fileno():  # that of an event loop which started later
            signal.set_wakeup_fd(chosen)

    def forget(self) -> None:
        self._told.close()
        self._heard.close()


_listener: _Listener | None = None


def _forked() -> None:
    """Signals to a forked child must end the child, and must not end its parent's work."""
    global _listener
    _stops.clear()
    _give_back()
    if _listener is not None:
        _listener.leave()
        _listener.forget()
        _listener = None


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_forked)
