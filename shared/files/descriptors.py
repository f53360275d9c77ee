"""Taking a descriptor for a file when connections have just taken the last free one.

ZeroMQ's thread takes connections up to the soft limit of open files before the actor's own thread
sees any of them. A segment that is opened at that moment would fail, and the actor would end over
files it has room for: the hard limit is higher. So the limit is lifted there, once, by what set it.

Whatever an actor with clients opens while it runs, a directory too, is opened by this.

Owned here: that one retry. Not known here: connections, and which limit is right.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Taken = TypeVar("Taken")


def _no_room() -> bool:
    return False


_make_room: Callable[[], bool] = _no_room


def on_shortage(make_room: Callable[[], bool]) -> None:
    """Have `make_room` called in this process when no descriptor is free; whether one is then."""
    global _make_room
    _make_room = make_room


def take_descriptor(take: Callable[[], Taken]) -> Taken:
    """Call `take`, which opens or maps a file, and once more where there is room only now.

    Raises what `take` raises, OSError with EMFILE where no room could be made.
    """
    try:
        return take()
    except OSError as error:
        if error.errno != errno.EMFILE or not _make_room():
            raise
    return take()


def read_file(file: Path) -> bytes:
    """All bytes of a file that an actor with clients reads while it runs. Raises OSError."""
    return take_descriptor(file.read_bytes)
