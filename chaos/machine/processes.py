"""What can be seen of processes from outside: whose they are, their open files, their memory.

This file starts nothing.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from pathlib import Path

# In the environment of every process that this one's brokers have started, whoever its parent is.
MARK = f"{uuid.uuid4().hex}-"
_NUMBER = re.compile(r"\d+")


def descriptors(pid: int | str = "self") -> Counter[str]:
    """The number of a process's open files of each kind, without the numbers of sockets."""
    found: Counter[str] = Counter()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[_NUMBER.sub("", os.readlink(f"/proc/{pid}/fd/{entry}"))] += 1
        except FileNotFoundError:
            continue  # the one that lists the directory, or it was closed meanwhile
    return found


def processes_of(mark: str = MARK) -> list[int]:
    """Living processes with this mark; by default those of all brokers that this process
    started."""
    found, sought = [], mark.encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb", 0) as environment:
                if sought in environment.read():
                    found.append(int(name))
        except OSError:
            continue  # it has gone, or is another user's
    return found


def run_directories_below(place: Path) -> list[Path]:
    """Run directories in shared memory whose store is `place`, or lies in it."""
    found, above = [], place.resolve()
    for path in Path("/dev/shm").glob("penstock-*/store"):
        try:
            if Path(path.read_text()).is_relative_to(above):
                found.append(path.parent)
        except FileNotFoundError:
            continue  # another broker of this machine has just ended
        except IsADirectoryError:
            continue  # somebody has put a store there
    return found
