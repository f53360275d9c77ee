"""Whether a start in this boot changed files and did not finish: STORE/penstock/starting.

A failed sync is reported once, and the kernel may then take for written what it could not write. So
a repeated start sees zeros where the first one cut, and misses names that it removed, but cannot
tell whether the disk agrees. If this file says so, it does all of that once more.

The file names the boot, and is not synced: after the next boot, what is read is what the disk has.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import opened
from penstock.shared.memory.run_directory import boot_id


def is_unfinished(file: Path) -> bool:
    """Whether a start of this boot may have left changes that are not on disk."""
    return file.exists() and read_file(file) == boot_id().encode()


def note_start(file: Path) -> None:
    """Note that files are changed from here on."""
    if not is_unfinished(file):
        with opened(str(file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            os.write(handle, boot_id().encode())


def note_end(file: Path) -> None:
    """Note that all changes are on disk."""
    file.unlink(missing_ok=True)
