"""What is mounted where a store lies, as far as that changes what a file system does.

Containers have overlays: over an image that never changes lies a layer that does. A file of the
image is copied into the layer once it is opened for writing. Whoever has mapped it before goes on
with the image's, and never sees what is written. So a file that one process writes and others map
has to be in the layer before anybody maps it.

And no file moves from one mount to another, even where both are of one file system.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.shared.files.durable import opened

_MOUNTS = Path("/proc/self/mountinfo")


def is_overlay(directory: Path) -> bool:
    """Whether a directory is of such a file system: the kernel's, or that of containers without
    root, `fuse-overlayfs`. Raises OSError."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        # before the dash stand fields of which some may be missing, after it the type
        mount, _, of_type = line.partition(" - ")
        if mount.split()[2] == number:
            return "overlay" in of_type.split()[0]
    return False


def move_up(files: Iterable[Path]) -> None:
    """Have files copied into the layer. Raises OSError."""
    for file in files:
        with opened(str(file), os.O_RDWR):
            pass


def is_apart(first: Path, second: Path) -> bool:
    """Whether a file cannot be moved from one directory to the other. Raises OSError."""
    # asked of a file that is not there: the kernel compares the mounts before it looks for it
    nothing = f"{os.getpid()}.not-there"
    try:
        os.rename(first / nothing, second / nothing)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return True
    raise FileExistsError(errno.EEXIST, "nobody makes a file of this name", str(first / nothing))


def put_aside(directory: Path, target: Path) -> None:
    """Rename a directory that nobody needs any more, for somebody to empty it. Raises OSError.

    One of the image cannot be renamed. It is removed at once, which takes longer; after a crash,
    doing it again goes on with what is left.
    """
    try:
        os.rename(directory, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        from shutil import rmtree  # slow to import, and seldom needed

        rmtree(directory)
