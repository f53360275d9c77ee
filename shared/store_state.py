"""Whether the store takes messages, by the words of the positions page, and the errors if not."""

from __future__ import annotations

from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.positions import Positions
from penstock.shared.quarantine import read_only_error


def check_writable(positions: Positions, paths: StorePaths) -> None:
    """Raise StoreUnavailable where nothing may be written any more in this run."""
    if positions["flush_error"]:
        raise flush_failed(positions)
    if positions["read_only"]:
        raise read_only_error(paths)


def flush_failed(positions: Positions) -> StoreUnavailable:
    return StoreUnavailable(
        "the store takes messages",
        f"flushing failed with errno {positions['flush_error']}; the store is read-only",
        "look at the disk, then restart the broker",
    )


def check_disk(positions: Positions) -> None:
    """Raise StoreUnavailable while the disk is too full for anything new."""
    if percent := positions["disk_full"]:
        raise StoreUnavailable(
            "the store takes messages",
            f"disk full: {percent}% of it are used",
            "nothing is stored; send again once there is room, which old messages may make by "
            "going (penstock clean)",
        )
