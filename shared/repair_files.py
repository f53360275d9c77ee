"""The first part of a repair: names and lengths in the directories of segments.

RocketMQ refuses to start on a file that is no segment, and on one of a wrong length. Plans steps,
and does one when asked to; doing a step twice, or half, changes nothing that counts. Knows no
records.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.shared.checkpoint import decode_checkpoint
from penstock.shared.config import Config
from penstock.shared.durable_files import make_directory, make_file, sync_directory
from penstock.shared.errors import ConfigError
from penstock.shared.layout import PAGE_BYTES, StorePaths, is_segment_name, segment_name
from penstock.shared.quarantine import set_aside
from penstock.shared.run_directory import read_run
from penstock.shared.segment_files import shown
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.witness import find_witness


class FileStep(NamedTuple):
    """One step: what it does, in words, and the doing."""

    text: str
    apply: Callable[[], object]


def plan_files(paths: StorePaths, config: Config) -> Iterator[FileStep]:
    """The steps, in order; each is planned when the one before it is done."""
    check_sizes(paths, config)
    size = config.mapped_file_size_commit_log_bytes
    with StoreDirectory(paths.root) as store:
        log_end = find_witness(store, read_run(paths), 0).flushed
    yield from _directory(paths, paths.commit_log, size, log_end)
    yield from _missing(paths, size, log_end)
    for topic in _directories(paths.consume_queue):
        for queue in _directories(topic):
            if queue.name.isascii() and queue.name.isdigit():
                yield from _directory(paths, queue, config.mapped_file_size_consume_queue_bytes)
    if paths.checkpoint.exists() and _is_wrong_checkpoint(paths.checkpoint):
        yield _aside(paths, paths.checkpoint, "no checkpoint")


def _directories(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []


def _directory(paths: StorePaths, directory: Path, size: int, end: int = 0) -> Iterator[FileStep]:
    """`end` is where the segments are known to end, so that an empty last one has lost bytes."""
    segments = []
    for path in sorted(directory.iterdir()):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            continue
        fits = is_segment_name(path.name) and int(path.name) % size == 0
        if stat.S_ISREG(found.st_mode) and fits:
            segments.append((path, found.st_size))
        elif stat.S_ISREG(found.st_mode) and is_segment_name(path.name):
            yield _aside(paths, path, f"its name is no multiple of {size}")
        else:
            yield _aside(paths, path, "no segment")
    for path, length in segments:
        if length != size and (length or path != segments[-1][0] or int(path.name) < end):
            text = f"give {shown(path)} its {size} bytes; it has {length}"
            yield FileStep(text, lambda path=path: _resize(paths, path, size))  # type: ignore[misc]


def check_sizes(paths: StorePaths, config: Config) -> None:
    """Files of a length that occurs again and again are right, and a configuration that has none
    of that length is wrong. Raises ConfigError."""
    queues = [queue for topic in _directories(paths.consume_queue) for queue in _directories(topic)]
    for directories, size in (
        ([paths.commit_log], config.mapped_file_size_commit_log_bytes),
        (queues, config.mapped_file_size_consume_queue_bytes),
    ):
        sizes = Counter(
            path.stat().st_size
            for directory in directories
            for path in directory.iterdir()
            if is_segment_name(path.name) and path.is_file()
        )
        if sizes and not sizes[size] and max(sizes.values()) > 1:
            raise ConfigError(
                f"segments are {size} bytes long, as configured",
                f"those in {shown(directories[0])} have {sizes.most_common(1)[0][0]}",
                "give the configuration that the store was written with: --config or --set",
            )


def _missing(paths: StorePaths, size: int, log_end: int) -> Iterator[FileStep]:
    """Segments between others, and those up to where the log is known to have been written."""
    bases = sorted(
        int(path.name) for path in paths.commit_log.iterdir() if is_segment_name(path.name)
    )
    behind = max(bases[-1] + size if bases else 0, -(-log_end // size) * size)
    for before, after in pairwise([*(bases or [log_end // size * size - size]), behind]):
        for base in range(before + size, after, size):
            yield _made(paths, base, size)


def _made(paths: StorePaths, base: int, size: int) -> FileStep:
    path = paths.commit_log / segment_name(base)
    return FileStep(
        f"make {shown(path)}, which is missing",
        lambda: make_file(paths.half_made, path, size, sparse=True),
    )


def _is_wrong_checkpoint(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size != PAGE_BYTES:
        return True
    words = decode_checkpoint(path.read_bytes())
    return min(words.physic_timestamp_ms, words.logics_timestamp_ms, words.confirm_offset) < 0


def _aside(paths: StorePaths, path: Path, why: str) -> FileStep:
    text = f"move {shown(path)} to {shown(paths.quarantine)}/: {why}"
    return FileStep(text, lambda: set_aside(paths, path))


def _resize(paths: StorePaths, path: Path, size: int) -> None:
    """Give a segment its length; as it was it stays in the quarantine."""
    make_directory(paths.quarantine)
    kept = paths.quarantine / str(path.relative_to(paths.root)).replace("/", "--")
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
