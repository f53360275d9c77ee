"""A terminal's alternate screen: keys come without Enter, a new size and Ctrl-Z are seen at once,
and however the block ends, the terminal is restored."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.shared.files.readable import is_readable

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Bytes that come later than this belong to another key: Esc alone also begins other keys.
_SEQUENCE_S = 0.03


def draw(text: str) -> None:
    """Write to the terminal unbuffered: a buffer whose flush Ctrl-C interrupts is written twice."""
    raw = text.encode(sys.stdout.encoding, "replace")
    while raw:
        raw = raw[os.write(sys.stdout.fileno(), raw) :]


class Keys:
    """The pressed keys, from a terminal or from nowhere."""

    def __init__(self, descriptor: int | None, resized: int) -> None:
        self._descriptor = descriptor
        self._resized = resized
        self._waiting = select.poll()
        for each in (descriptor, resized):
            if each is not None:
                self._waiting.register(each, select.POLLIN)

    def wait(self, seconds: float) -> str | None:
        """What was pressed within this time; "" if nothing, or at once if the terminal's size has
        changed; None if the terminal is gone."""
        ready = dict(self._waiting.poll(max(0, seconds) * 1000))
        if self._resized in ready:
            os.read(self._resized, 4096)
        if self._descriptor is None or self._descriptor not in ready:
            return ""
        pressed = os.read(self._descriptor, 4096)
        if not pressed:
            return None
        if pressed.endswith(b"\x1b") and is_readable(self._descriptor, _SEQUENCE_S):
            pressed += os.read(self._descriptor, 4096)
        return pressed.decode("utf-8", "ignore")


@contextmanager
def screen() -> Iterator[Keys]:
    """Use the alternate screen. While Ctrl-Z stops the command, the shell has its own back."""
    descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if descriptor is None else termios.tcgetattr(descriptor)

    def enter() -> None:
        if descriptor is not None:
            # first, because in the background this stops the command again, before it has drawn
            tty.setcbreak(descriptor)
        draw(_ENTER)

    def leave() -> None:
        draw(_LEAVE)
        if descriptor is not None and before is not None:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def stop(number: int, frame: object) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
        enter()

    suspend = signal.getsignal(signal.SIGTSTP)
    resize = signal.getsignal(signal.SIGWINCH)
    resized, noted = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup = signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
    enter()
    try:
        if suspend is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, stop)
        signal.signal(signal.SIGWINCH, lambda number, frame: None)  # the wakeup pipe reports it
        yield Keys(descriptor, resized)
    finally:
        signal.signal(signal.SIGWINCH, resize)
        signal.signal(signal.SIGTSTP, suspend)
        signal.set_wakeup_fd(wakeup)
        os.close(resized)
        os.close(noted)
        leave()
