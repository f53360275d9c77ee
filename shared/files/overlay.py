"""Overlay file systems, which containers have: over an image that never changes, a layer that does.

A file of the image is copied into the layer once it is opened for writing. Whoever has mapped it
before goes on with the image's, and never sees what is written. So a file that one process writes
and others map has to be in the layer before anybody maps it.
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
