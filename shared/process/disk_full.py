"""How full a broker's disk is, and which lack of disk space keeps it from taking messages, in the
words that `penstock up` prints."""

from __future__ import annotations

import os

from penstock.shared.config import Config
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions


def used_percent(position: int) -> int | None:
    """The percentage in `disk_used`; None where the cleaner has not looked yet, or could not."""
    return position - 1 if position else None


def why_full(positions: Positions, paths: StorePaths, config: Config) -> str:
    """Which lack of disk space keeps the broker from taking messages; "" where nothing does.

    For the supervisor, which asks again and again: it reads the page, and looks at the disk only
    where the writer's next byte has no segment. Producers get the writer's own words.
    """
    if percent := positions["disk_full"]:
        # percentages are rounded up, so "no longer above" is one more
        warning = config.disk_space_warning_level_ratio_percent
        until = warning + 1
        # then a full disk stays full until the cleaner has come below its lower threshold
        if config.clean_file_forcibly_enable:
            until = config.disk_space_clean_forcibly_ratio_percent + 1
        return (
            f"the disk of {paths.root} is {percent}% full (disk_space_warning_level_ratio_percent "
            f"is {warning}); messages are taken again below {until}%"
        )
    if positions["commit_error"]:
        return f"the log cannot be written: {os.strerror(positions['commit_error'])}"
    # The log may end exactly where its last segment does, before a writer has asked for another.
    wanted = max(positions["wrote"] + 1, positions["append_wanted"])
    # a damaged log gets no segment, however much room there is
    if wanted <= positions["allocated"] or positions["read_only"]:
        return ""
    if lacking := lacking_room(paths.commit_log, config):
        return lacking
    number = positions["allocate_error"]
    return f"the next segment of the log cannot be made: {os.strerror(number)}" if number else ""
