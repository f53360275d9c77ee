"""The first part of a repair: names and lengths in the directories of segments.

RocketMQ refuses to start with a file that is not a segment, or has a wrong length. This plans
steps, and applies one on request; a step that is done twice, or half and then again, does no harm.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from filecmp import cmp
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, make_file, sync_directory
from penstock.shared.files.segments import Fit, listed, missing_between, shown
from penstock.shared.formats.checkpoint import decode_checkpoint
from penstock.shared.layout import PAGE_BYTES, StorePaths, segment_name
from penstock.shared.log.damage import name_aside, place_aside, set_aside
from penstock.shared.memory.run_directory import read_run
from penstock.shared.recovery.restore_queues import find_missed_queues
from penstock.shared.recovery.witness import find_witness, hear
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import check_lengths
from penstock.shared.store.geometry_search import queue_directories


class FileStep(NamedTuple):
    """One step: what it does, in words, and the function that does it.

    The words are made before it is done, so a plan and a repair say the same.
    """

    text: str
    apply: Callable[[], object]


def plan_files(paths: StorePaths, config: Config) -> Iterator[FileStep]:
    """The steps, in order; each is planned when the one before it is done.

    So a repair applies them one by one, and sees the store that the last one has left. If they are
    only read they are a plan, without what follows from a step. The caller holds the lock if it
    applies them. Raises OSError; ConfigError or StoreDamaged for sizes that are not the store's.
    """
    # This comes first: with a wrong size a repair would change the length of every good file.
    check_lengths(paths, config)
    size = config.mapped_file_size_commit_log_bytes
    with StoreDirectory(paths.root) as store:
        # Consume queues are no witnesses here: they are among what is repaired.
        log_end = find_witness(store, hear(store, read_run(paths)), 0).flushed
    yield from _directory(paths, paths.commit_log, size, log_end)
    yield from _missing(paths, size, log_end)
    for queue in queue_directories(paths):
        size = config.mapped_file_size_consume_queue_bytes
        yield from _directory(paths, queue, size)
        # This step only has words: the start that follows in a repair makes such a queue.
        for path in _gaps(queue, size):
            yield FileStep(f"make {shown(path)} anew, which is missing", lambda: None)
    with StoreDirectory(paths.root) as store:
        missed = find_missed_queues(store)
    for name, why in missed.items():
        # the next part of a repair begins like a start, which makes the queue
        yield FileStep(f"make queue {name} anew, which {why}", lambda: None)
    if paths.checkpoint.exists() and _is_wrong_checkpoint(paths.checkpoint):
        yield _aside(paths, paths.checkpoint, "no checkpoint")


def _directory(paths: StorePaths, directory: Path, size: int, end: int = 0) -> Iterator[FileStep]:
    """The steps for one directory of segments: remove what is not a segment, then correct lengths.

    `end` is where the segments are known to end, so that an empty last one has lost bytes.
    """
    # All are listed before the first step, since steps move files out of this directory.
    files = list(listed(directory, size))
    segments = [file for file in files if file.fit is Fit.SEGMENT]
    for file in files:
        if file.fit is not Fit.SEGMENT:
            is_off = file.fit is Fit.OFF_GRID
            why = f"its name is no multiple of {size}" if is_off else "no segment"
            yield _aside(paths, file.path, why)
    for file in segments:
        # RocketMQ itself removes an empty last segment, unless messages were in it
        is_wrong = file.size != size
        if is_wrong and (file.size or file is not segments[-1] or file.base < end):
            text = f"give {shown(file.path)} its {size} bytes; it has {file.size}"
            yield FileStep(text, partial(_resize, paths, file.path, size))


def _missing(paths: StorePaths, size: int, log_end: int) -> Iterator[FileStep]:
    """Segments between others, and those up to where the log is known to have been written.

    Each is made sparse, and reads as zeros: the next part of a repair treats these as damage, and
    puts tombstones and fillers there.
    """
    files = listed(paths.commit_log, size)
    bases = (file.base for file in files if file.fit is Fit.SEGMENT)
    # If there is no segment at all, only the one with the log's end is made: what stood before it
    # may have expired.
    last = max(bases, default=log_end // size * size - size)
    past = [paths.commit_log / segment_name(base) for base in range(last + size, log_end, size)]
    for path in chain(_gaps(paths.commit_log, size), past):
        yield FileStep(
            f"make {shown(path)}, which is missing",
            partial(make_file, paths.staging, path, size, sparse=True),
        )


def _gaps(directory: Path, size: int) -> Iterator[Path]:
    """The segments that are missing between two others."""
    bases = [file.base for file in listed(directory, size) if file.fit is Fit.SEGMENT]
    for base in missing_between(bases, size):
        yield directory / segment_name(base)


def _is_wrong_checkpoint(path: Path) -> bool:
    """Whether it is nonsense by itself. A start decides whether to believe one that is old, or
    ahead of the log: it also weighs the other witnesses."""
    if not path.is_file() or path.stat().st_size != PAGE_BYTES:
        return True
    words = decode_checkpoint(read_file(path))
    return min(words.physic_timestamp_ms, words.logics_timestamp_ms, words.confirm_offset) < 0


def _aside(paths: StorePaths, path: Path, why: str) -> FileStep:
    """A move to the quarantine. Nothing is deleted: it may be all that is left of something."""
    text = f"move {shown(path)} to {shown(paths.quarantine)}/: {why}"
    return FileStep(text, lambda: set_aside(paths, path))


def _resize(paths: StorePaths, path: Path, size: int) -> None:
    """Give a segment its length; the quarantine keeps it as it was. Durable on return.

    The copy is whole and has its name before the segment changes. If a repair died after this
    point it is not made again; a copy with other bytes is from an earlier repair.
    """
    make_directory(paths.quarantine)
    kept = place_aside(
        paths, name_aside(paths, path), lambda found: cmp(found, path, shallow=False)
    )
    if not kept.exists():
        growing = kept.with_name(kept.name + ".tmp")
        shutil.copyfile(path, growing)
        handle = os.open(growing, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        os.rename(growing, kept)
        sync_directory(paths.quarantine)
    os.truncate(path, size)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
