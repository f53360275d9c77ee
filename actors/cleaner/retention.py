"""When messages go: RocketMQ's rule, as a pure function of time, disk use and configuration.

A segment has had its time `file_reserved_time_h` after its file was last written. It then goes

    in an hour of `delete_when`           local time, all through that hour
    at any hour                           when the disk is fuller than disk_max_used_space_ratio,
                                          or somebody asked for it

Above disk_space_warning_level_ratio the store takes no messages. A segment that has not had its
time stays, however full the disk is: a full disk refuses new messages before it costs stored ones.

An exception is RocketMQ's way, clean_file_forcibly_enable: above disk_space_clean_forcibly_ratio
the oldest segments go before their time, one after the other, until the disk is below that again.
In that case a store that was full takes messages once the disk is below that ratio. Otherwise it
takes them once the disk is below the warning level: nothing that Penstock deletes would bring it
further down.

This file deletes nothing, and does not decide which segments may go at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.store.deletions import Reason

HOUR_MS = 3_600_000


class Decision(NamedTuple):
    """What goes now: segments that have had their time, and why; or the oldest even before it."""

    expired: Reason | None
    oldest_goes: bool
    disk_full: bool


def decide(
    config: Config, hour: int, used_percent: Sequence[int], *, was_full: bool, asked: bool
) -> Decision:
    """The rule for this hour (0 to 23) and the store's disks; -1 for a disk of unknown use.

    `was_full` is the last decision's `disk_full`; `asked` says that an operator wants a clean-up.
    """
    tight = any(used > config.disk_space_clean_forcibly_ratio_percent for used in used_percent)
    wanted = any(
        used < 0 or used > config.disk_max_used_space_ratio_percent for used in used_percent
    )
    expired = None
    if asked:
        expired = Reason.ASKED
    elif hour in {int(each) for each in config.delete_when.split(";")}:
        expired = Reason.DELETE_WHEN
    elif wanted:
        expired = Reason.DISK_USED
    forced = tight and config.clean_file_forcibly_enable
    over = any(used > config.disk_space_warning_level_ratio_percent for used in used_percent)
    return Decision(expired, oldest_goes=forced, disk_full=over or was_full and forced)


def choose(
    config: Config, now_ms: int, written_ms: Sequence[int], decision: Decision
) -> tuple[int, Reason | None]:
    """How many of the oldest segments go, and why; `written_ms` says when each was last written.

    The first segment that still has time left also keeps all later ones: a log has no holes.
    """
    reserved_ms = config.file_reserved_time_h * HOUR_MS
    count = 0
    while count < len(written_ms) and now_ms >= written_ms[count] + reserved_ms:
        count += 1
    if count and decision.expired:
        return count, decision.expired
    if written_ms and decision.oldest_goes:
        return 1, Reason.FORCED
    return 0, None
