"""Closes a store in good order, when its actors have stopped. Only the supervisor does this.

Removing `abort` declares the store clean, to RocketMQ too, so it comes last. A crash before that
leaves a store that recovers; a crash after it leaves a store that needs no recovery.
"""

from __future__ import annotations

from penstock.shared.config import Config
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import sync_directory
from penstock.shared.files.segments import segment_bases
from penstock.shared.layout import segment_name
from penstock.shared.memory.run_directory import remove_run_directory
from penstock.shared.recovery.open_store import OpenStore
from penstock.shared.recovery.recover_index import keep_index_state


def close_store(store: OpenStore, config: Config) -> bool:
    """Leave a store that RocketMQ calls clean. Returns whether it is.

    If something is not on disk or not dispatched, `abort` and the shared memory stay, and the next
    start recovers. The caller holds the lock, and has seen all actors end. Raises OSError; then
    `abort` may be there or not, and the store is whole in both cases.
    """
    positions = store.positions
    if positions["read_only"]:
        _leave_read_only(store)
        return False
    # `queued` need not be compared: `dispatched` is stored after it, once the index has the records
    # too.
    wrote = positions["wrote"]
    whole = all(positions[name] == wrote for name in ("committed", "flushed", "dispatched"))
    # The kernel reports a failed sync once. After one, the positions may agree and prove nothing:
    # it may have been the sync of a queue, of the index or of the checkpoint.
    if not whole or positions["flush_error"]:
        return False
    # Delete segments that were made ahead, except the first one of an empty store. Delete from the
    # end and sync after each: a crash then never leaves a hole in the log, which the next start
    # would refuse.
    bases = segment_bases(store.paths.commit_log, config.mapped_file_size_commit_log_bytes)
    for base in reversed([base for base in bases if base >= max(wrote, 1)]):
        (store.paths.commit_log / segment_name(base)).unlink()
        crash_point("shutdown.mid_unlink")
        sync_directory(store.paths.commit_log)
    # Noted while `abort` still names this process, so that it is right in both cases: a crash
    # before `abort` goes leaves an unclean store of this run, one after it a clean store that ends
    # here.
    keep_index_state(store.paths, config, store.run, wrote)
    crash_point("shutdown.before_abort_removed")
    store.paths.abort.unlink()
    crash_point("shutdown.after_abort_removed")
    sync_directory(store.paths.root)
    # Last: while `abort` stood, the next start would have gone on from this memory. If a crash
    # leaves it over now, that start removes it without reading it.
    remove_run_directory(store.run)
    return True


def _leave_read_only(store: OpenStore) -> None:
    """Leave a damaged store as it was found: one that was clean looks clean to RocketMQ again.

    This run's start wrote `abort`, so only what that start found tells whether the store was clean.
    The memory goes in both cases: no message was taken, so it has nothing for the next start.
    """
    if store.recovered.mode == "clean":
        store.paths.abort.unlink()
        sync_directory(store.paths.root)
    remove_run_directory(store.run)
