"""The program's side of its launcher: started with the first broker, shared by all others.

It owns the launcher's process and the socket to it, one for each program. A forked child does not
use its parent's: it starts its own launcher, and closes its copies of the sockets, so that the
parent's brokers end with the parent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import msgspec

import penstock
from penstock.embedded.messages import Launch
from penstock.shared.errors import StoreUnavailable

_lock = threading.Lock()
_launcher: Launching | None = None
_channels = weakref.WeakSet[socket.socket]()


class Launching:
    """A running launcher."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            source = str(Path(penstock.__file__).parent.parent)
            path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.embedded.launcher", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a broker has its own log
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C is for the program: its brokers stop when it closes their channels
                start_new_session=True,
            )


def launch(request: Launch, log: int) -> socket.socket:
    """Have a broker started. Returns this program's end of its channel. `log` is the descriptor
    that the broker logs to; it stays the caller's.

    Raises StoreUnavailable if no process can be started.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            _ask(msgspec.json.encode(request), [theirs.fileno(), log])
        except OSError as error:
            mine.close()
            raise StoreUnavailable(
                "the process that starts brokers could not be reached",
                error,
                "free memory or processes, then try again",
            ) from error
    _channels.add(mine)
    return mine


def _ask(request: bytes, files: list[int]) -> None:
    global _launcher
    with _lock:
        if _launcher is not None and _launcher.process.poll() is not None:
            _launcher.socket.close()
            _launcher = None
        if _launcher is None:
            _launcher = Launching()
        socket.send_fds(_launcher.socket, [request], files)


def _forget_parent() -> None:
    """Runs in a forked child of the program."""
    global _launcher, _lock
    _lock = threading.Lock()
    if _launcher is not None:
        _launcher.socket.close()
        _launcher.process.returncode = 0  # the parent's child, which cannot be waited for here
        _launcher = None
    for channel in list(_channels):
        channel.close()


os.register_at_fork(after_in_child=_forget_parent)
