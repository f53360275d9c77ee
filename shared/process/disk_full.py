"""Why a broker takes no messages for want of disk, in the words that `penstock up` prints."""

from __future__ import annotations

import os

from penstock.shared.config import Config
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions


def why_full(positions: Positions, paths: StorePaths, config: Config) -> str:
    """Why no message is taken for want of disk, for whoever runs the broker; "" where one is."""
    if percent := positions["disk_full"]:
        warning = config.disk_space_warning_level_ratio_percent
        until = warning + 1
        if config.clean_file_forcibly_enable:
            until = config.disk_space_clean_forcibly_ratio_percent + 1
        return (
            f"the disk of {paths.root} is {percent}% full (disk_space_warning_level_ratio_percent "
            f"is {warning}); messages are taken again below {until}%"
        )
    if positions["commit_error"]:
        return f"the log cannot be written: {os.strerror(positions['commit_error'])}"
    wanted = max(positions["wrote"] + 1, positions["append_wanted"])
    if wanted <= positions["allocated"] or positions["read_only"]:
        return ""
    if lacking := lacking_room(paths.commit_log, config):
        return lacking
    number = positions["allocate_error"]
    return f"the next segment of the log cannot be made: {os.strerror(number)}" if number else ""
