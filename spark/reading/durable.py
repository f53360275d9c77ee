"""How far a store's log is on disk: the position that bounds a stream.

A stream records which offsets it has read, and never reads them again. So it may read only what no
failure can take back. Otherwise a power failure could cut the log, other messages would get those
offsets, and the query, whose checkpoint was on disk, would skip them. A record that is only written
is not safe, even if it was acknowledged as written; one below `flushed` is.

    who has the store           bound
    a Penstock that runs, or    `flushed` of its shared memory, and not past `queued`, below which
    died in this boot           every queue entry is complete
    a Penstock that went down   its watermark: `flushed` as it was on disk, up to 100 ms old
    with the machine
    a RocketMQ                  none: no file of it says a position. Its queues are believed
    nobody, in order            none: all of it is on disk
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import original_of, read_run, survives
from penstock.shared.recovery.empty_pool import is_named_by
from penstock.shared.store.watermark import load_watermark


class Durable(NamedTuple):
    """`end` is a log offset, or None if nothing bounds the queues.

    As long as this stays equal, and `end` is not None, no queue has anything new. `settled` is
    False while a store may be in the middle of a recovery, which makes queues shorter for a moment.
    """

    end: int | None
    run_id: str = ""
    log_start: int = 0
    settled: bool = True


def durable_end(paths: StorePaths) -> Durable:
    """The present bound. Raises OSError, StoreDamaged."""
    unclean = paths.abort.exists()
    run = read_run(paths)
    # a copy of a store has the original's run.json, whose shared memory is about other files
    if run is None or original_of(paths, run) is not None:
        return Durable(None, settled=not unclean)
    if survives(run):
        try:
            page = Positions(run.positions)
        except FileNotFoundError:  # the broker has stopped since
            return Durable(None, settled=False)
        try:
            end = min(page["flushed"], page["queued"])
            serving = page.life("reput").state == "running"
            return Durable(end, run.run_id, page["log_start"], serving)
        finally:
            page.close()
    mark = load_watermark(paths.watermark)
    if mark is not None and mark.run_id == run.run_id and is_named_by(paths.abort, run):
        return Durable(mark.flushed, run.run_id, settled=False)
    return Durable(None, settled=not unclean)
