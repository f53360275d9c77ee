"""Disk space of segments that hold no message, not yet or no longer: it is room for messages.

If it counted as used, each segment that is made ahead would make the disk look fuller, and messages
would be deleted for it. Used by the cleaner alone; nothing is changed here.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.files.durable import expired_segments
from penstock.shared.layout import StorePaths, segment_name


def empty_bytes(paths: StorePaths, segment_bytes: int, wrote: int, allocated: int) -> int:
    """Disk space in bytes past the log's end, and in expired segments that will be used again.

    Only blocks that exist count: a file system may allocate them at the first write.
    """
    found = 0
    for base in range(wrote - wrote % segment_bytes, allocated, segment_bytes):
        with suppress(FileNotFoundError):  # it has expired, or does not exist yet at a start
            blocks = os.stat(paths.commit_log / segment_name(base)).st_blocks
            found += max(0, min(blocks * 512, segment_bytes) - max(0, wrote - base))
    for path in expired_segments(paths.staging):
        with suppress(FileNotFoundError):  # the allocator was faster
            found += path.stat().st_blocks * 512
    return found


def is_wanted_again(segment: Path, config: Config) -> bool:
    """Whether the allocator is to get this expired segment: it has few enough, and the disk has
    room for files that cannot use segments."""
    staging = StorePaths(config.store).staging
    return (
        len(expired_segments(staging)) < config.max_recycled_segments
        and stat.S_ISREG(os.stat(segment, follow_symlinks=False).st_mode)
        and not lacking_room(segment.parent, config)
    )
