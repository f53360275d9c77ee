"""The segment files of one directory: which there are, and what is wrong with them. Read-only.

RocketMQ keeps the log and every queue as files of one length, named by the offset they begin with.
Neither the length nor the count is stored anywhere, so the directory itself is the evidence.

`listed` applies the rule to one directory, and its findings are used in three ways:

    segment_bases   a broker's start: raises for the first thing that RocketMQ would refuse
    list_segments   a checker or a reader at rest: collects all of it as Problems and goes on
    a repair        (maintenance/repair_files.py): plans a step for each

Nothing is mapped here: if somebody truncates a mapped file, reading it kills the process.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.layout import is_segment_name, segment_name
from penstock.shared.next_steps import repair


class Fit(enum.Enum):
    """Whether a file can be a segment of its directory. Its length is a separate question, because
    a checker may not know the right one."""

    SEGMENT = "segment"
    NO_FILE = "not an ordinary file"  # a link, a pipe, a device
    NO_NAME = "not named by an offset"
    OFF_GRID = "named by an offset at which no segment begins"


class Listed(NamedTuple):
    """One entry of a directory of segments."""

    directory: Path
    name: str
    size: int
    fit: Fit

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def base(self) -> int:
        """The segment's first offset. Raises ValueError where the name is not a number."""
        return int(self.name)


def listed(directory: Path, segment_bytes: int) -> Iterator[Listed]:
    """The entries of a directory of segments, by name; `segment_bytes` is 0 where it is not known.

    Sub-directories are left out, as RocketMQ leaves them alone. Links are not followed, since one
    could lead out of the store. Raises FileNotFoundError without the directory.
    """
    with take_descriptor(lambda: os.scandir(directory)) as found:
        entries = sorted(
            (each for each in found if not each.is_dir(follow_symlinks=False)),
            key=lambda each: each.name,
        )
    for entry in entries:
        try:
            size = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # a running store's cleaner has deleted it since
        # The order matters: a link may have a segment's name and length, and a name that is not an
        # offset cannot be compared with the grid.
        if not entry.is_file(follow_symlinks=False):
            fit = Fit.NO_FILE
        elif not is_segment_name(entry.name):
            fit = Fit.NO_NAME
        elif segment_bytes and int(entry.name) % segment_bytes:
            fit = Fit.OFF_GRID
        else:
            fit = Fit.SEGMENT
        yield Listed(directory, entry.name, size, fit)


def missing_between(bases: Iterable[int], segment_bytes: int) -> Iterator[int]:
    """The bases of the segments that are missing between others; `bases` are in order.

    Segments missing before the first or after the last cannot be seen here: once messages have
    expired the first offset may be any, and only other witnesses know where the log ended.
    """
    for before, after in pairwise(bases):
        yield from range(before + segment_bytes, after, segment_bytes)


def segment_bases(directory: Path, segment_bytes: int, *, empty_last: bool = False) -> list[int]:
    """Start offsets of the segments in a directory, checked as RocketMQ checks them at its start.

    Raises StoreDamaged, naming the file, for anything that is not a whole segment of this size.
    Sub-directories are ignored. With `empty_last`, so is an empty last file, which a RocketMQ
    leaves if it dies while making one. Changes nothing.
    """
    bases = []
    files = list(listed(directory, segment_bytes))
    for file in files:
        # The last entry of the directory, not the last segment: RocketMQ looks for it so. A pipe or
        # a device has size 0 too, which proves nothing.
        if empty_last and file is files[-1] and not file.size and file.fit is not Fit.NO_FILE:
            continue
        if file.fit is Fit.NO_FILE:
            raise StoreDamaged("a segment is no ordinary file", file.path, _mend(directory))
        if file.fit is not Fit.SEGMENT:
            raise StoreDamaged(
                f"a file is not named by an offset that is a multiple of {segment_bytes}",
                file.path,
                _mend(directory),
            )
        # RocketMQ refuses to start with it, and Penstock could not map it as a whole.
        if file.size != segment_bytes:
            raise StoreDamaged(
                "a segment has grown" if file.size > segment_bytes else "a segment was cut short",
                f"{file.path} has {file.size} bytes of {segment_bytes}",
                _mend(directory),
            )
        bases.append(file.base)
    for base in missing_between(bases, segment_bytes):
        raise StoreDamaged(
            "a segment is missing between two others",
            directory / segment_name(base),
            _mend(directory),
        )
    return bases


def _mend(directory: Path) -> str:
    return f"restore it from a copy of the store, or run: {repair(directory)}"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where. `offset` is in the file, `position` in the log.

    `kind` is the same for all problems of a sort, `detail` is for people. `position` is None where
    the problem has no place in the log.
    """

    kind: str
    file: str
    offset: int
    position: int | None
    detail: str


def shown(path: Path) -> str:
    """The path as text that any encoding accepts: file names need not be valid UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


class Segment(msgspec.Struct, frozen=True):
    """One file of a log or a queue: its first byte has the offset `base`.

    `size` is the file's actual size; in a damaged store it may differ from its neighbours'.
    """

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


def list_segments(
    directory: Path, family: str, *, multiple_of: int = 1, size: int = 0
) -> tuple[list[Segment], list[Problem]]:
    """The directory's segments in order, and what is wrong with them.

    `family` ("log", "queue") begins the kind of each problem. `size` is what the segments were made
    with, in bytes; if it is 0, most of them are assumed to be right. Lengths have to be a multiple
    of `multiple_of`, as a queue's files hold whole entries. No finding raises an error, and a
    segment of a wrong length is listed all the same: what it holds can be read. Sub-directories are
    left alone, as RocketMQ leaves them; a missing directory has no segments.
    """
    segments: list[Segment] = []
    problems: list[Problem] = []
    try:
        files = list(listed(directory, size))
    except FileNotFoundError:
        return [], []
    for file in files:
        if file.fit is Fit.SEGMENT and file.size:
            segments.append(Segment(file.path, file.base, file.size))
            continue
        kind, detail = {
            Fit.NO_FILE: ("stray-file", "not a regular file; RocketMQ would not start"),
            Fit.NO_NAME: ("stray-file", "not a segment's name; RocketMQ would not start"),
            Fit.OFF_GRID: (f"{family}-segment-name", f"its name is no multiple of {size} bytes"),
            Fit.SEGMENT: ("empty-segment", "a file without a byte, left by a crash"),
        }[file.fit]
        problems.append(Problem(kind, shown(file.path), 0, None, detail))
    problems += _misfits(segments, family, multiple_of, size)
    return segments, problems


def _misfits(
    segments: Sequence[Segment], family: str, multiple_of: int, size: int
) -> list[Problem]:
    """Lengths, names and neighbours that break the rule that files are equal and adjoin."""
    if not segments:
        return []
    # in a tie the first file decides: most_common keeps the order of first appearance
    usual = size or Counter(segment.size for segment in segments).most_common(1)[0][0]
    whose = "the store's files" if size else "its neighbours"
    problems = []
    expected = segments[0].base
    for segment in segments:
        complaints = {
            f"{family}-segment-size": ""
            if segment.size == usual and segment.size % multiple_of == 0
            else f"{segment.size} bytes, where {whose} have {usual}"
            if segment.size != usual
            else f"{segment.size} bytes is not a multiple of {multiple_of}",
            f"{family}-segment-gap": ""
            if segment.base == expected
            else f"begins at {segment.base}, but the one before ends at {expected}",
            f"{family}-segment-name": ""
            if segment.base % usual == 0
            else f"begins at {segment.base}, no multiple of {usual} bytes",
        }
        problems += [
            Problem(kind, shown(segment.path), 0, segment.base if family == "log" else None, detail)
            for kind, detail in complaints.items()
            if detail
        ]
        # The usual length counts, and not the file's own: a file that was cut short is one problem,
        # and not also a gap before the next one.
        expected = segment.base + usual
    return problems
