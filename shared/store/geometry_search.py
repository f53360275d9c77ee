"""The sizes of a store's files, found by inspection: for a store that has not written them down.

Segments adjoin and have one length; each is named by its first byte. So each file votes for its own
length, and two neighbours vote for the difference of their names: a file that has grown or was cut
short is outvoted. index/slots.py finds what is in index files. Reads, and changes nothing. Without
a clear answer it says 0 and why: a wrong size would make whole files look damaged.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import shown
from penstock.shared.formats.index_layout import HEADER, ITEM, SLOT_BYTES, Geometry
from penstock.shared.index.directory import index_files
from penstock.shared.layout import (
    CQ_ENTRY_BYTES,
    PAGE_BYTES,
    StorePaths,
    is_queue_name,
    is_segment_name,
)
from penstock.shared.queue.snapshot import QueueFiles

LOG, QUEUE = "mapped_file_size_commit_log_bytes", "mapped_file_size_consume_queue_bytes"
SLOTS, ITEMS = "max_hash_slot_num", "max_index_num"


class Looked(NamedTuple):
    """What the files say: a size, or 0 and why they do not."""

    value: int
    why: str = ""


def look_at_log(paths: StorePaths) -> Looked | None:
    """Bytes of a log segment; None without a file."""
    found = _length_of([paths.commit_log], PAGE_BYTES)
    files = segment_files(paths.commit_log)
    if found and found.value and len(files) == 1:
        # One file has no neighbour, so its length is the only vote, even if it was cut. It can be
        # compared only with what the queues name.
        end = int(files[0].name) + files[0].stat().st_size
        if named_to(paths) > end:
            return Looked(0, f"{shown(files[0])} ends before messages that its queues name")
    return found


def look_at_queues(paths: StorePaths) -> Looked | None:
    """Bytes of a file of consume queues; None without one."""
    return _length_of(queue_directories(paths), CQ_ENTRY_BYTES)


def look_at_index(paths: StorePaths, asked: Mapping[str, int]) -> dict[str, Looked]:
    """Slots and items of an index file; empty without one. `asked` is what the user says.

    Either both are known or neither. Raises OSError.
    """
    lengths = _index_lengths(paths)
    if not lengths:
        return {}
    # files of other lengths were cut or have grown, and the search needs equal ones
    ((length, _),) = Counter(lengths.values()).most_common(1)
    # imported here: it brings numpy, whose import takes longer than a start may
    from penstock.shared.index.slots import find_geometry

    files = [path for path, size in lengths.items() if size == length]
    found = find_geometry(files, _guesses(length, asked))
    if found is None:
        why = f"its index files, of {length} bytes, hold too few keys to tell, or are damaged"
        return {key: Looked(0, why) for key in (SLOTS, ITEMS)}
    return {SLOTS: Looked(found.slots), ITEMS: Looked(found.items)}


def has_files(paths: StorePaths, key: str) -> bool:
    """Whether there is a file whose length depends on this key.

    An empty file does not count: it has no length that a new size could contradict.
    """
    if key in (SLOTS, ITEMS):
        return bool(_index_lengths(paths))
    places = [paths.commit_log] if key == LOG else queue_directories(paths)
    return any(path.stat().st_size for place in places for path in segment_files(place))


def lengths_of(directories: Iterable[Path]) -> Counter[int]:
    """How many segments there are of each length, empty ones included."""
    return Counter(path.stat().st_size for place in directories for path in segment_files(place))


def queue_directories(paths: StorePaths) -> Iterator[Path]:
    """Every directory that has a queue's place and name."""
    for topic in _directories(paths.consume_queue):
        for queue in _directories(topic):
            if is_queue_name(queue.name):
                yield queue


def segment_files(directory: Path) -> list[Path]:
    """The files that have a segment's name; none where the directory is missing. As long as their
    size is not known, the name is all that can be checked.
    """
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if is_segment_name(path.name) and path.is_file()]


def named_to(paths: StorePaths) -> int:
    """The log offset after the newest record that a queue names; 0 where no queue names one."""
    # 0 as the log's start: entries of expired records do not affect a maximum
    files = FileCache()
    try:
        return max(
            (
                QueueFiles(files, path, path.parent.name, int(path.name), 0).dispatched_to
                for path in queue_directories(paths)
            ),
            default=0,
        )
    finally:
        files.close()


def _index_lengths(paths: StorePaths) -> dict[Path, int]:
    """The index files that are not empty, with their lengths. Links do not count."""
    found = {path: path.lstat() for path in index_files(paths.index)}
    return {
        path: each.st_size
        for path, each in found.items()
        if stat.S_ISREG(each.st_mode) and each.st_size
    }


def _directories(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []


def _length_of(directories: Iterable[Path], unit: int) -> Looked | None:
    """The length with which these directories' segments were made; None without a file.

    In bytes; it has to be a multiple of `unit`.
    """
    votes: Counter[int] = Counter()
    bases: list[int] = []
    for directory in directories:
        files = sorted(
            (int(path.name), length)
            for path in segment_files(directory)
            # an empty file is one that RocketMQ died making
            if (length := path.stat().st_size)
        )
        votes.update(length for _, length in files)
        # A file that is cut or grows keeps its name. Where a segment is missing the distance is
        # larger, and is outvoted.
        votes.update(after - before for (before, _), (after, _) in pairwise(files))
        bases += [base for base, _ in files]
    if not bases:
        return None
    (first, most), *others = votes.most_common(2)
    # A directory begins at a multiple of its size, even when its first files have expired. Half of
    # the names must agree, but not all: a stray file may have a segment's name.
    strange = sum(base % first != 0 for base in bases)
    if others and most == others[0][1] or first % unit or 2 * strange > len(bases):
        seen = ", ".join(str(value) for value, _ in votes.most_common(3))
        return Looked(0, f"names and lengths of its files do not agree on one; {seen} were seen")
    return Looked(first)


def _guesses(length: int, asked: Mapping[str, int]) -> list[Geometry]:
    """What a file of this length may have: what the user says, and the default.

    The first that fits is taken, and an index without a key fits any: so the user's comes first.
    One number is enough, as the other one follows from the length.
    """
    default = Config()
    pairs = [(default.max_hash_slot_num, default.max_index_num)]
    if SLOTS in asked:
        slots = asked[SLOTS]
        pairs.insert(0, (slots, (length - HEADER.size - SLOT_BYTES * slots) // ITEM.size))
    elif ITEMS in asked:
        items = asked[ITEMS]
        pairs.insert(0, ((length - HEADER.size - ITEM.size * items) // SLOT_BYTES, items))
    # the division may leave a remainder: such a pair makes a file of another length, and is dropped
    geometries = [Geometry(slots, items) for slots, items in pairs if slots > 0 and items > 1]
    return [each for each in geometries if each.file_bytes == length]
