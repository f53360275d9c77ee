"""The segment files of one directory: which there are, and what is wrong with them. Read-only.

RocketMQ keeps the log and every queue as files of one length, named by the offset they begin with.
Neither the length nor the count is stored anywhere, so the directory itself is the evidence.

`listed` applies the rule to one directory, and there are three uses of what it finds:

    segment_bases   a broker's start: raises for the first thing that RocketMQ would refuse
    list_segments   a checker or a reader at rest: collects all of it as Problems and goes on
    a repair        (maintenance/repair_files.py): plans a step for each

Nothing is mapped here: a mapping of a file that somebody cuts short kills its reader.
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
    """Whether a file can be a segment of its directory; what it has for a length is another
    question, because a checker may not know the right one."""

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
        """The offset that a segment begins with. Raises ValueError where the name is no number."""
        return int(self.name)


def listed(directory: Path, segment_bytes: int) -> Iterator[Listed]:
    """What is in a directory of segments, by name; `segment_bytes` is 0 where nobody knows it.

    Sub-directories are left out, as RocketMQ leaves them alone. Nothing follows a link: a segment
    that is one could lead out of the store. Raises FileNotFoundError without the directory.
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
            continue  # a running store's cleaner was faster
        # In this order: a link may have a segment's name and length, and a name without an offset
        # has no place on the grid.
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

    What is missing before the first or after the last cannot be seen here: the first one's offset
    may be any after messages have expired, and only other witnesses know where the log ended.
    """
    for before, after in pairwise(bases):
        yield from range(before + segment_bytes, after, segment_bytes)


def segment_bases(directory: Path, segment_bytes: int, *, empty_last: bool = False) -> list[int]:
    """Start offsets of the segments in a directory, checked as RocketMQ checks them at its start.

    Raises StoreDamaged, naming the file, for anything that is not a whole segment of this size;
    sub-directories are ignored, and a last file without a byte where that is allowed, which is how
    a RocketMQ leaves one that died making it. Changes nothing.
    """
    bases = []
    files = list(listed(directory, segment_bytes))
    for file in files:
        # The last entry of the directory and not the last segment, as RocketMQ looks for it. Of a
        # pipe or a device a size of 0 proves nothing.
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
        # RocketMQ refuses to start on it, and here it could not be mapped as a whole.
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

    `kind` is the same for all of a sort, `detail` is for readers. `position` is None where the
    problem has no place in the log.
    """

    kind: str
    file: str
    offset: int
    position: int | None
    detail: str


def shown(path: Path) -> str:
    """The path as text that any encoding takes: file names need not be valid UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


class Segment(msgspec.Struct, frozen=True):
    """One file of a log or a queue: its first byte has the offset `base`.

    `size` is what the file has, which of a damaged store need not be what its neighbours have.
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

    `family` ("log", "queue") begins the kind of each problem; `size` is what they were made with,
    in bytes, 0 where nobody knows: then most of them are right. Lengths have to be a multiple of
    `multiple_of`, as a queue's files hold whole entries. Nothing that is found raises an error, and
    a segment of a wrong length is listed all the same: what it holds can be read. Sub-directories
    are left alone, as RocketMQ leaves them; a missing directory has no segments.
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
    """Lengths, names and neighbours that break the rule of equal files side by side."""
    if not segments:
        return []
    # most_common keeps the order of first appearance among equals, so the first file decides a tie
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
        # By the usual length and not by its own: one file cut short is one problem, and not also a
        # gap before its neighbour.
        expected = segment.base + usual
    return problems
