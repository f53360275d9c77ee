"""Consume queues and index made from the log, next to the old ones, and then swapped in.

    STORE/penstock/rebuild/   the new ones while they grow, and what the log's parts have told of
                              them; the old ones after the swap

The swap is one exchange of names, so a crash leaves either the old ones or the new, whole; the next
rebuild or start removes what is left in `rebuild/`. The caller holds the store's lock.

A queue without a record in the log keeps its files: they say at which offset it goes on. A message
that was lost to damage keeps its slot, with an entry that points to the damage, as the reput does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from penstock.maintenance.cuts import PART_BYTES
from penstock.maintenance.rebuild_parts import RunParts, WalkedLog
from penstock.maintenance.side_by_side import run_side_by_side
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import exchange, make_directory, sync_tree
from penstock.shared.index.directory import index_files, index_geometry
from penstock.shared.layout import StorePaths, is_segment_name
from penstock.shared.log.damage import set_aside
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.recovery.build_queues import Progress, QueueBuilder, remove_rebuild
from penstock.shared.recovery.recover_index import index_is_rebuilt
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import check_lengths, keep_sizes, load_sizes


class Rebuilt(msgspec.Struct):
    """What a rebuild has made. For a part that was not asked for, everything stays 0 or empty."""

    messages: int = 0
    queues: int = 0
    entries: int = 0
    kept_queues: int = 0  # without a record in the log
    lost: int = 0  # slots of messages that the log does not have
    # log offsets of records that are left out, as their queue offsets are impossible
    misplaced: list[int] = []
    index_files: int = 0
    keys: int = 0
    seconds: float = 0.0


def rebuild_store(
    paths: StorePaths,
    config: Config,
    clock: Clock,
    *,
    queues: bool,
    index: bool,
    progress: Progress | None = None,
    run: RunParts = run_side_by_side,
    part_bytes: int = PART_BYTES,
) -> Rebuilt:
    """Rebuild; durable on return. Raises StoreDamaged and OSError, and then nothing has changed,

    with two exceptions: stray files of queues may be in the quarantine, and a failure between the
    two swaps leaves new queues and the old index, each of them whole. Raises ConfigError if the
    files have other sizes than `config`. `run` walks the log in parts of about `part_bytes`, by
    default in this process. `progress` is told (done, total) in bytes of the log: each counts once
    for being walked, and once for the queues or the index made from it.
    """
    began = time.monotonic()
    # This comes before anything is made: with a wrong size the files would not fit the store.
    check_lengths(paths, config)
    done = Rebuilt()
    remove_rebuild(paths)
    new = StorePaths(paths.rebuild)
    for directory in (new.consume_queue, new.index, new.staging):
        make_directory(directory)
    with StoreDirectory(paths.root) as store:
        steps = _Steps(progress, 1 + queues + index)
        parts = paths.rebuild / "parts", part_bytes, (queues, index)
        walked = WalkedLog(store, config, parts, run, steps.next())
        if queues:
            _build_queues(store, new, config, done, steps.next(), walked)
            _keep_others(paths, new.consume_queue, done)
        if index:
            places = new.index, new.staging, index_geometry(config), clock.now_ms
            made = rebuild_index(store, *places, steps.next(), walked.keys())
            done.index_files, done.keys = made
            _keep_other_files(paths.index, new.index)
    # The swap and geometry.json cannot change in one step. So if the index changes its sizes, none
    # are written down in between; after a crash they are found by inspecting the files.
    if index:
        keep_sizes(paths, config, index=_has_this_index(paths, config))
    _swap_in(paths, new, queues, index)
    if index:
        keep_sizes(paths, config)
        index_is_rebuilt(paths)
    crash_point("rebuild.before_removal")
    remove_rebuild(paths)
    done.seconds = round(time.monotonic() - began, 3)
    return done


class _Steps:
    """Several walks over the log, each reported from beginning to end, as one progress."""

    def __init__(self, progress: Progress | None, count: int) -> None:
        self._progress, self._count = progress, count
        self._begun = 0

    def next(self) -> Progress | None:
        """The progress function for the next step."""
        tell, before = self._progress, self._begun
        self._begun += 1
        if tell is None:
            return None
        return lambda done, total: tell(before * total + done, self._count * total)


def _swap_in(paths: StorePaths, new: StorePaths, queues: bool, index: bool) -> None:
    """Let the store's names lead to what was made."""
    for wanted, old, rebuilt in (
        (queues, paths.consume_queue, new.consume_queue),
        (index, paths.index, new.index),
    ):
        if wanted:
            make_directory(old)
            # Everything below is durable before the name leads there, and the exchange is durable
            # when it returns. So at no time does the store's name lead to an incomplete tree.
            sync_tree(rebuilt)
            crash_point("rebuild.before_swap")
            exchange(old, rebuilt)
            crash_point("rebuild.after_swap")


def _build_queues(
    store: StoreDirectory,
    new: StorePaths,
    config: Config,
    done: Rebuilt,
    progress: Progress | None,
    walked: WalkedLog,
) -> None:
    """Make all queues in `new`, and count them in `done`. Nothing is synced here."""
    builder = QueueBuilder(store, new, config)
    builder.build(progress, walked.runs(builder.numbers))
    builder.close()
    made = builder.done
    done.messages, done.entries, done.lost = made.messages, made.entries, made.lost
    done.misplaced, done.queues = made.misplaced, len(builder.ends)


def _has_this_index(paths: StorePaths, config: Config) -> bool:
    """Whether the index that is about to go has the same sizes as the new one.

    If its sizes were not written down the answer is no, which is the safe one.
    """
    sizes = load_sizes(paths)
    had = sizes.max_hash_slot_num, sizes.max_index_num
    return had == (config.max_hash_slot_num, config.max_index_num)


def _files(directory: Path) -> list[Path]:
    """Ordinary files, and links to them, in a directory that may be missing."""
    return [path for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []


def _keep_other_files(index: Path, new: Path) -> None:
    """Files of other names are not Penstock's to remove. They are linked, not moved, so the old
    directory stays whole until the swap."""
    for path in set(_files(index)) - set(index_files(index)):
        os.link(path, new / path.name, follow_symlinks=False)


def _keep_others(paths: StorePaths, new: Path, done: Rebuilt) -> None:
    """Link what is in the old tree and was not rebuilt: queues without records, and others' files.

    A directory two levels down is a queue's. If the log has records of the queue, the new directory
    replaces it, and the old segments go with the old tree.
    """
    old = paths.consume_queue
    for place, _, names in os.walk(old):
        here = Path(place).relative_to(old)
        rebuilt = len(here.parts) == 2 and (new / here).exists()
        for name in names:
            # linked, not moved: until the swap the old tree is the store's, and has to be whole
            if not rebuilt:
                make_directory(new / here)
                os.link(old / here / name, new / here / name, follow_symlinks=False)
            # RocketMQ refuses a stray file among segments, so it must not come along; but it may be
            # all that is left of something.
            elif not is_segment_name(name):
                set_aside(paths, old / here / name)
        done.kept_queues += bool(names) and len(here.parts) == 2 and not rebuilt
