"""Whether a start in this boot has changed files and not come to its end: STORE/penstock/starting.

A sync that fails is reported once, and the kernel may hold for written what it could not write. So
a start that is tried again sees zeros where the first one cut, and a name gone that it removed, and
cannot tell whether the disk has it so. Where this file says so, it does all of that once more.

The file names the boot, and is not synced: after the next boot, what is read is what the disk has.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.files.durable import opened
from penstock.shared.memory.run_directory import boot_id


def is_unfinished(file: Path) -> bool:
    """Whether a start of this boot may have left something that is not on the disk."""
    return file.exists() and file.read_bytes() == boot_id().encode()


def note_start(file: Path) -> None:
    """From here on files are changed."""
    if not is_unfinished(file):
        with opened(str(file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            os.write(handle, boot_id().encode())


def note_end(file: Path) -> None:
    """All of it is on the disk."""
    file.unlink(missing_ok=True)
