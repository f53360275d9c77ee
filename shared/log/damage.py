"""Damaged ranges of the log that a start has found: where they are kept, and how to skip them.

    STORE/penstock/quarantine.json   [{"position", "size", "file", "offset", "reason", "found_ms"}]

Whole records follow such a range, or the last run is known to have written there: so it is not a
torn tail, which may be cut. While there is one the store is read-only: readers skip the range and
say so, nobody writes. The next start also relies on the file: what it names counts as damage until
whole records stand there again (after `penstock store repair`, or in a restored file). The
supervisor writes it at a start, and a repair does, while no actor runs.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from penstock.shared.errors import StoreDamaged, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file, sync_directory
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.next_steps import move_away, repair, verify

# The value of the position `read_only`: why the store takes no messages.
QUARANTINE = 1


class Damage(msgspec.Struct, frozen=True):
    """Bytes of the log that are not a record; a range lies in one segment.

    It is also a row of quarantine.json, so the names of the fields are that file's format.
    """

    position: int  # log offset
    size: int
    file: str
    offset: int  # of `position`, in the file
    reason: str
    found_ms: int = 0  # wall clock, when it was first saved; 0 before that

    @property
    def end(self) -> int:
        """The first log offset after the range, where a walk goes on."""
        return self.position + self.size

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.offset} to {self.offset + self.size - 1}: {self.reason}"


def damage_between(
    paths: StorePaths, segment_bytes: int, start: int, end: int, reason: str
) -> list[Damage]:
    """[start, end) of the log as damaged ranges, one for each segment. Looks at no file.

    Records do not cross a segment's end, so each part is separate damage: it is named by file and
    offset, and a repair fills it separately.
    """
    found = []
    while start < end:
        base = start - start % segment_bytes
        stop = min(end, base + segment_bytes)
        file = str(paths.commit_log / segment_name(base))
        found.append(Damage(start, stop - start, file, start - base, reason))
        start = stop
    return found


def joined(ranges: Sequence[Damage]) -> list[Damage]:
    """The same bytes, with adjoining ranges of a file joined: a record cut in two is one damage.

    `ranges` are in log order. A joined range keeps the reason and time of its first part.
    """
    found: list[Damage] = []
    for each in ranges:
        if found and found[-1].end == each.position and found[-1].file == each.file:
            grown = found[-1].size + each.size
            found[-1] = msgspec.structs.replace(found[-1], size=grown)
        else:
            found.append(each)
    return found


_decoder: msgspec.json.Decoder[list[Damage]] = msgspec.json.Decoder(list[Damage])


def load_quarantine(paths: StorePaths) -> list[Damage]:
    """What the last start found, in log order; nothing where there is no file.

    Raises StoreDamaged for a file that cannot be decoded.
    """
    try:
        return _decoder.decode(read_file(paths.quarantined))
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        # RecursionError: JSON of unlimited depth. A file that cannot be read must not count as
        # empty: a log that lost its end would then pass for one that is merely shorter.
        raise StoreDamaged(
            "penstock/quarantine.json cannot be read",
            f"{paths.quarantined}: {error}",
            f"{move_away(paths.quarantined)}; then {verify(paths.root)}",
        ) from error


def save_quarantine(paths: StorePaths, damage: Sequence[Damage], now_ms: int) -> None:
    """Keep these ranges, with the time when each was first found; durable on return.

    Only while no actor runs, since a LogReader loads them once, when it is made. Raises OSError.
    """
    if not damage:
        if paths.quarantined.exists():
            paths.quarantined.unlink()
            sync_directory(paths.own)
        return
    # every start finds the same damage again; a range keeps the time of the start that found it
    since = {each.position: each.found_ms for each in load_quarantine(paths)}
    rows = [
        msgspec.structs.replace(each, found_ms=since.get(each.position) or now_ms)
        for each in damage
    ]
    make_directory(paths.own)
    replace_file(paths.quarantined, msgspec.json.format(msgspec.json.encode(rows)))


def read_only_error(paths: StorePaths) -> StoreUnavailable:
    """The error for producers while the store is read-only."""
    found = load_quarantine(paths)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return StoreUnavailable(
        "the store is read-only",
        f"its log is damaged: {found[0]}{more}" if found else "its log is damaged",
        f"stop the broker and run: {repair(paths.root)}",
    )


def set_aside(paths: StorePaths, file: Path) -> Path:
    """Move a file that does not belong where it is to STORE/penstock/quarantine/. Returns where
    it is now.

    Durable on return. Nothing there is ever overwritten or read again. A process that is killed
    here has either moved the file or not; its successor moves what is left.
    """
    make_directory(paths.quarantine)
    target = place_aside(paths, name_aside(paths, file))
    os.rename(file, target)
    crash_point("repair.set_aside")
    sync_directory(paths.quarantine)
    sync_directory(file.parent)
    return target


def name_aside(paths: StorePaths, file: Path) -> str:
    """A store file's name there: made of its whole path, because the files of two queues have the
    same names."""
    return str(file.relative_to(paths.root)).replace("/", "--")


def place_aside(
    paths: StorePaths, name: str, is_same: Callable[[Path], bool] = lambda path: False
) -> Path:
    """Where to put a file of this name in STORE/penstock/quarantine/: at a name that is free, or
    that has a file for which `is_same`. Nothing there is ever overwritten."""
    number = 0
    # lexists, because a rename would also replace a link that leads nowhere
    while os.path.lexists(target := paths.quarantine / (f"{name}.{number}" if number else name)):
        if is_same(target):
            break
        number += 1
    return target


class DamagedRanges:
    """The ranges, for whatever walks the log. Empty, and false, in a healthy store.

    They do not overlap. So only the last one that begins at or before an offset can contain it,
    and one bisection answers every question.
    """

    def __init__(self, ranges: Iterable[Damage] = ()) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.position)
        self._starts = [each.position for each in self._ranges]

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self._ranges)

    def before(self, position: int) -> Damage | None:
        """The last range that begins at or before this log offset."""
        index = bisect_right(self._starts, position) - 1
        return self._ranges[index] if index >= 0 else None

    def at(self, position: int) -> Damage | None:
        """The range that contains this log offset."""
        found = self.before(position)
        return found if found is not None and position < found.end else None

    def next_start(self, position: int, limit: int) -> int:
        """Where damage begins at or after `position`, or `limit` if that comes first."""
        # what begins after `position - 1` begins at or after `position`, as offsets are integers
        index = bisect_right(self._starts, position - 1)
        return min(limit, self._starts[index]) if index < len(self._starts) else limit

    def touches(self, position: int, size: int) -> bool:
        """Whether one of these bytes is damaged.

        A record that only reaches into a range is as lost as one that begins in it.
        """
        return self.at(position) is not None or self.next_start(position, position + size) < (
            position + size
        )
