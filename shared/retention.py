"""When messages go: RocketMQ's rule, as a pure function of time, disk use and configuration.

A segment has had its time `file_reserved_time_h` after its file was last written. It then goes

    in an hour of `delete_when`           local time, all through that hour
    at any hour                           when the disk is fuller than disk_max_used_space_ratio,
                                          or somebody asked for it

Above disk_space_clean_forcibly_ratio the oldest goes before its time too, where
clean_file_forcibly_enable allows it: one after the other, until the disk is below that again. Above
disk_space_warning_level_ratio the store takes no messages until it is below the forcible ratio.

Which segments may go at all, whatever their age, is not decided here, and nothing is deleted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.shared.config import Config

HOUR_MS = 3_600_000


class Decision(NamedTuple):
    """What goes now: segments that have had their time, or the oldest even before it."""

    expired_go: bool
    oldest_goes: bool
    disk_full: bool


def decide(
    config: Config, hour: int, used_percent: Sequence[int], *, was_full: bool, asked: bool
) -> Decision:
    """The rule for this hour (0 to 23) and the store's disks; -1 for a disk nobody knows of.

    `was_full` is the last decision's `disk_full`; `asked` that somebody wants old segments gone.
    """
    force = config.disk_space_clean_forcibly_ratio_percent
    warn = config.disk_space_warning_level_ratio_percent
    tight = any(used > force for used in used_percent)
    wanted = any(
        used < 0 or used > config.disk_max_used_space_ratio_percent for used in used_percent
    )
    hours = {int(each) for each in config.delete_when.split(";")}
    return Decision(
        expired_go=hour in hours or wanted or tight or asked,
        oldest_goes=tight and config.clean_file_forcibly_enable,
        disk_full=any(used > warn for used in used_percent) or was_full and tight,
    )


def count_to_delete(
    config: Config, now_ms: int, written_ms: Sequence[int], decision: Decision
) -> int:
    """How many of the oldest segments go; `written_ms` has when each was last written, in order.

    The first that has its time before it keeps those behind it.
    """
    if not decision.expired_go:
        return 0
    reserved_ms = config.file_reserved_time_h * HOUR_MS
    count = 0
    while count < len(written_ms) and now_ms >= written_ms[count] + reserved_ms:
        count += 1
    if not count and written_ms and decision.oldest_goes:
        return 1
    return count
