"""Beats for an actor while it waits for the disk, however long that takes.

A process that waits in a system call cannot beat its heart itself, and one that does not is taken
for frozen and killed. But a successor would wait for the same disk. So a thread beats meanwhile,
and only then: an actor that hangs in Penstock's own code still falls silent, and so does one that
is stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Pulse:
    """Use it around calls that may wait for the disk: `with pulse: os.fdatasync(handle)`.

    The call has to let go of Python's lock, or the thread cannot beat. Not to be nested: the inner
    end would end the outer one's beats.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._waiting = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
            self._thread.start()
        self._waiting = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A beat that has begun comes after this. It does no harm: the process does live.
        self._waiting = False

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            if self._waiting:
                self._beat()

    def end(self) -> None:
        """No beat comes after this returns, so the page that it stores into may be unmapped."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
