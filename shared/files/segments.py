"""The segment files of one directory, read-only: names, lengths, bounded reads by offset.

RocketMQ keeps the log and every queue as files of one length, named by the offset they begin with.
Neither the length nor the count is stored anywhere, so the directory itself is the evidence; what
does not fit is collected as a Problem, because a checker wants all of it and a reader can often go
on. This file knows no records, and maps nothing: a mapping of a file that shrinks kills its reader.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.shared.layout import is_segment_name


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where. `offset` is in the file, `position` in the log."""

    kind: str
    file: str
    offset: int
    position: int | None
    detail: str


def shown(path: Path) -> str:
    """The path as text that any encoding takes: file names need not be valid UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


class Segment(msgspec.Struct, frozen=True):
    """One file of a log or a queue: its first byte has the offset `base`."""

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
    in bytes, 0 where nobody knows: then most of them are right. Sub-directories are left alone, as
    RocketMQ leaves them; a missing directory has no segments.
    """
    segments: list[Segment] = []
    problems: list[Problem] = []

    def report(kind: str, path: Path, detail: str) -> None:
        problems.append(Problem(kind, shown(path), 0, None, detail))

    for name in sorted(_names(directory)):
        path = directory / name
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # a running store's cleaner was faster
        if stat.S_ISDIR(found.st_mode):
            continue
        if not stat.S_ISREG(found.st_mode):
            report("stray-file", path, "not a regular file; RocketMQ would not start")
        elif not is_segment_name(name):
            report("stray-file", path, "not a segment's name; RocketMQ would not start")
        elif size and int(name) % size:
            kind, detail = f"{family}-segment-name", f"its name is no multiple of {size} bytes"
            report(kind, path, detail)
        elif found.st_size == 0:
            report("empty-segment", path, "a file without a byte, left by a crash")
        else:
            segments.append(Segment(path, int(name), found.st_size))
    problems += _misfits(segments, family, multiple_of, size)
    return segments, problems


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


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
        expected = segment.base + usual
    return problems
