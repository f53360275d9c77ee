"""Taking a descriptor for a file when connections have just taken the last free one.

ZeroMQ's thread accepts connections up to the soft limit of open files before the actor's own thread
sees any of them. Opening a segment at that moment would fail, and the actor would end although it
may have more files: the hard limit is higher. So the code that set the soft limit raises it, once.

Whatever an actor with clients opens while it runs, directories included, is opened through this.

This file owns that one retry. It does not know connections, or which limit is right.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

Taken = TypeVar("Taken")


def _no_room() -> bool:
    return False


_make_room: Callable[[], bool] = _no_room


def on_shortage(make_room: Callable[[], bool]) -> None:
    """Have `make_room` called when no descriptor is free; it returns whether one is free then."""
    global _make_room
    _make_room = make_room


def take_descriptor(take: Callable[[], Taken]) -> Taken:
    """Call `take`, which opens or maps a file. If no descriptor is free, make room and call again.

    Raises what `take` raises, OSError with EMFILE where no room could be made.
    """
    try:
        return take()
    except OSError as error:
        if error.errno != errno.EMFILE or not _make_room():
            raise
    return take()
