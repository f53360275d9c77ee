"""Beats for an actor while it waits for the disk, however long that takes.

A process that waits in a system call cannot beat, and the supervisor takes a process that does not
beat for frozen and kills it. But a successor would wait for the same disk. So a thread beats during
such calls, and only then: an actor that hangs in Penstock's own code still falls silent, and so
does one that is stopped by a signal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

# After this many intervals without a wait the thread sleeps until the next one.
_RESTS_AFTER = 4


class Pulse:
    """Use it around calls that may wait for the disk: `with pulse: os.fdatasync(handle)`.

    The call has to release Python's lock, or the thread cannot beat. Do not nest it: the inner end
    would stop the outer one's beats.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._waiting = False
        # Whether the thread sleeps until `_wanted`. It is all that a wait has to look at.
        self._resting = False
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
            self._thread.start()
        self._waiting = True
        if self._resting:
            self._wanted.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A beat that has begun may still come after this. It does no harm: the process is alive.
        self._waiting = False

    def _run(self) -> None:
        looks = 0
        while not self._ended.wait(self._interval_s):
            if self._waiting:
                self._beat()
                looks = 0
            elif (looks := looks + 1) >= _RESTS_AFTER:
                self._rest()
                looks = 0

    def _rest(self) -> None:
        """Sleep until the next wait begins. A wait sets `_waiting` and then reads `_resting`; this
        sets `_resting` and then reads `_waiting`: so at least one of them sees the other."""
        self._wanted.clear()
        self._resting = True
        if not (self._waiting or self._ended.is_set()):
            self._wanted.wait()
        self._resting = False

    def end(self) -> None:
        """After this returns no beat comes, so the page that takes the beats may be unmapped."""
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
