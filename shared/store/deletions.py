"""penstock/deletions.json: what the cleaner has deleted of the log, and why, newest last.

A row is durable before its files are deleted, so nothing is deleted that is not on the list. If a
crash of the broker prevents some of it, the next cleaner corrects the row: it knows from
`log_start` how far its predecessor came. A disk without room for the list does not prevent a
deletion, which makes room: the row is kept in memory, and written as soon as that works.

A row does not say which of its messages were read: groups differ, and some readers have no group.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away

# Rows to keep; older ones are dropped. Each row rewrites the whole list, so it has to stay short.
KEPT = 100


class Reason(StrEnum):
    """Why something is deleted. Only FORCED deletes what has not expired.

    The texts stand in the file, which a later version has to read.
    """

    DELETE_WHEN = "delete_when"
    DISK_USED = "disk_used"
    ASKED = "asked"
    FORCED = "forced"


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that were deleted together: the log offsets [log_start, log_end).

    Times are ms since 1970. `disk_used_percent` is that of the fullest disk, -1 if it is unknown.

    `messages` counts their entries in the consume queues. `uncounted_queues` could not be read, so
    the count is exact where that is 0. `stored_before_ms` is the store time of the first message
    that stayed; 0 where it could not be read.
    """

    at_ms: int
    why: Reason
    disk_used_percent: int
    segments: int
    log_start: int
    log_end: int
    messages: int
    uncounted_queues: int
    stored_before_ms: int


_decoder: msgspec.json.Decoder[list[Deletion]] = msgspec.json.Decoder(list[Deletion])


def load_deletions(paths: StorePaths) -> list[Deletion]:
    """The last hundred, oldest first; empty where nothing was deleted. Raises StoreDamaged,
    OSError. Any process may call it: the file is replaced as a whole.
    """
    try:
        return _decoder.decode(read_file(paths.deletions))
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise StoreDamaged(
            "the list of deletions cannot be read",
            f"{paths.deletions}: {error}",
            f"only history is lost with it: {move_away(paths.deletions)}",
        ) from error


class Deletions:
    """The list as the cleaner keeps it. No method raises OSError: `say` gets what went wrong."""

    def __init__(self, paths: StorePaths, say: Callable[[str], None]) -> None:
        self._paths = paths
        self._report = say
        self._unwritten = False
        self._rows: list[Deletion] = []
        try:
            self._rows = load_deletions(paths)
        except (StoreDamaged, OSError) as error:  # a lost history must not make the cleaner fail
            say(f"{error}; the list begins anew")
            # Set aside, because the next row replaces the file. If that fails, it is replaced.
            with suppress(OSError):
                paths.deletions.replace(paths.deletions.with_name("deletions.json.broken"))

    def last(self) -> Deletion | None:
        """The newest row, or None. A crash may have prevented the end of what it says."""
        return self._rows[-1] if self._rows else None

    def add(self, row: Deletion) -> None:
        """Add a row; durable on return, unless the disk refuses it, which is reported."""
        # each write has all rows, so one that a full disk refused gets to the disk with a later one
        self._rows = [*self._rows, row][-KEPT:]
        self._write()

    def correct(self, row: Deletion | None) -> None:
        """Replace the last row by what was really done; None removes it.

        If the list was full, the row that this one had pushed out does not come back.
        """
        self._rows = [*self._rows[:-1], *([row] if row else [])]
        self._write()

    def settle(self) -> None:
        """Try again to write what could not be written."""
        if self._unwritten:
            self._write()

    def _write(self) -> None:
        """Replace the file. A refusal is reported once, not at each further try."""
        was = self._unwritten
        try:
            replace_file(
                self._paths.deletions, msgspec.json.format(msgspec.json.encode(self._rows))
            )
            self._unwritten = False
        except OSError as error:
            self._unwritten = True
            if not was:
                self._report(f"{self._paths.deletions} cannot be written now: {error}")


def describe(row: Deletion, config: Config) -> str:
    """One line for people: what is deleted, why, how many messages, and how old they are.

    `config` is that of the broker that deletes: the line names the settings it obeys.
    """
    many = "segment" if row.segments == 1 else "segments"
    least = f" (and those of {row.uncounted_queues} queues that cannot be read)"
    return (
        f"deleting {row.segments} {many}, log offsets [{row.log_start}, {row.log_end}), with "
        f"{row.messages} messages{least if row.uncounted_queues else ''} stored before "
        f"{_time(row.stored_before_ms)}: {_why(row, config)}"
    )


def _why(row: Deletion, config: Config) -> str:
    used = f"the disk is {row.disk_used_percent}% full"
    if row.disk_used_percent < 0:
        used = "nobody knows how full the disk is"
    # the only reason for deleting messages early, so it must not read like the others
    if row.why == Reason.FORCED:
        return f"before their time, as {used} and clean_file_forcibly_enable is on"
    return (
        f"their {config.file_reserved_time_h} h are over, and "
        + {
            Reason.DELETE_WHEN: f"it is an hour of delete_when ({config.delete_when})",
            Reason.DISK_USED: used,
            Reason.ASKED: "somebody asked for it (penstock clean)",
        }[row.why]
    )


def _time(at_ms: int) -> str:
    if not at_ms:
        return "a time that cannot be read"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    # the time is read from a record, which may be damaged: not every 64-bit number is a date
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
