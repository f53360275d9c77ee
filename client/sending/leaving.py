"""What happens to producers that are open when their process ends.

    non-daemon threads end -> what was accepted is sent -> what was given up is logged

Interpreters call `atexit` once their threads have ended, but not in processes that multiprocessing
has forked: those have hooks of their own. `os._exit` and fatal signals call neither, and nothing
can be done about that.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from typing import Protocol


class Open(Protocol):
    """An open producer, which may have messages without an outcome."""

    def finish(self) -> None:
        """Wait until all messages have one, as long as the producer's timeout allows."""

    def leave(self) -> None:
        """Close at once, and log what was given up."""

    def forked(self) -> None:
        """This process is a fork of the one that opened it."""


# strong references: a producer that its program has dropped still has messages to send
_open: set[Open] = set()
_prepared_pid = 0


def enter(opened: Open) -> None:
    """From now on this is finished and closed when the process ends."""
    global _prepared_pid
    _open.add(opened)
    if _prepared_pid != os.getpid():
        _prepared_pid = os.getpid()
        _prepare()


def discard(closed: Open) -> None:
    """Forget what is closed."""
    _open.discard(closed)


def _prepare() -> None:
    atexit.register(_leave)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        # after everything that this process has registered with a higher priority
        Finalize(None, _leave_behind_threads, exitpriority=-100)


def _leave() -> None:
    """Close everything that is open; Ctrl-C ends the waiting."""
    leaving = list(_open)
    try:
        for each in leaving:
            each.finish()
    except (KeyboardInterrupt, SystemExit):
        pass  # each logs what it gives up
    for each in leaving:
        each.leave()
    for each in leaving:
        warnings.warn(f"unclosed {each!r}", ResourceWarning, stacklevel=1, source=each)


def _leave_behind_threads() -> None:
    """A multiprocessing process ends, but its other threads may still be sending."""
    if threading.main_thread().is_alive() and threading.active_count() > 1:
        threading.Thread(target=_wait_and_leave, name="penstock-leaving").start()
    else:
        _leave()


def _wait_and_leave() -> None:
    """Runs in a thread, which the process waits for as for all others."""
    own = threading.current_thread(), threading.main_thread()
    for thread in threading.enumerate():
        if not thread.daemon and thread not in own:
            thread.join()
    _leave()


def _forked() -> None:
    for each in list(_open):
        each.forked()
    _open.clear()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_forked)
