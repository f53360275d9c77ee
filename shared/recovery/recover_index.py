"""Start-up of the index: checks whether it is as it was left, and decides what to do if it is not.

A record is in the index under its UNIQ_KEY and under each word of its KEYS, unless it rolls a
transaction back. At a start, everything below `dispatch_from` has to be there, and nothing else:

    after our own orderly stop     it is so
    after all our processes died   the index is as a killed reput leaves it: the next reput begins
                                   with a cut
    after a power failure          items below `dispatch_from` are on disk, whatever became of the
                                   rest: files are made again from their items
    after another broker           RocketMQ's rule: after a crash, drop files that are newer than
                                   the checkpoint's index time. Then what the log has after the
                                   last item is put in, if it is little; else a remark says so

penstock/index.json tells which of these it is: it has the run that kept the index, how far the
index was whole then, and the newest file's name. What another program has done since does not fit.

mend_index.py does the work, and is imported only if there is some: numpy takes longer to import
than everything else between a crash and the first acknowledgement.
"""

from __future__ import annotations

import os

import msgspec

from penstock.shared.config import Config
from penstock.shared.files.bad_sectors import read_at, read_file
from penstock.shared.files.durable import opened, replace_file, sync_directory
from penstock.shared.formats.index_layout import HEADER, decode_header
from penstock.shared.index.directory import index_files
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import set_aside
from penstock.shared.memory.run_directory import Run
from penstock.shared.next_steps import rebuild_index
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.survey import StoreSurvey


class IndexState(msgspec.Struct, frozen=True):
    """penstock/index.json: what the last run that kept the index knew of it."""

    run_id: str  # "" if the index was rebuilt since
    whole_to: int  # everything below this log offset is in the index
    newest: str  # the newest file's name, "" without files
    aborts: tuple[str, ...]  # what `abort` may say while no other broker has had the store


def recover_index(
    store: StoreSurvey, recovered: Recovered, last_run: Run | None, now_ms: int
) -> str:
    """Bring the index to hold what it has to. Returns a remark, or "". Raises StoreDamaged,
    OSError.

    Doing it twice, or dying half way and doing it again, ends in the same state.
    """
    paths, config = store.paths, store.config
    for path in index_files(paths.index):
        if path.stat().st_size == 0:  # a RocketMQ died making it
            path.unlink()
    aside = _set_broken_aside(paths, config)
    if not config.message_index_enable and not index_files(paths.index):
        return aside
    if not index_files(paths.index) and recovered.dispatch_from <= store.log_start:
        # the log has nothing below `dispatch_from`, as in a new store: nothing to put in or to cut
        if paths.index.exists():
            sync_directory(paths.index)  # an earlier start, too, may have removed files
        return aside
    known = not aside and _is_known(paths, recovered, last_run)
    if known and config.message_index_enable and _is_as_left(recovered):
        return ""
    from penstock.shared.recovery.mend_index import repair_index

    remark = repair_index(store, recovered, known=known, now_ms=now_ms)
    return "; ".join(filter(None, (aside, remark)))


def _set_broken_aside(paths: StorePaths, config: Config) -> str:
    """Move files away whose header counts more items than they have room for. Returns a remark, or
    ""."""
    moved = []
    for path in index_files(paths.index):
        with opened(str(path), os.O_RDONLY) as handle:
            header = decode_header(read_at(handle, HEADER.size, 0))
        if not 1 <= header.next_item <= config.max_index_num:
            moved.append(str(set_aside(paths, path)))
    if not moved:
        return ""
    return f"no index, its header is damaged: {', '.join(moved)}; {rebuild_index(paths.root)}"


def _is_as_left(recovered: Recovered) -> bool:
    """Whether an index that a run of Penstock has left can stay as it is."""
    if recovered.quarantined:
        return False  # what the log has lost must not stay in the index
    if recovered.mode == "unclean":
        return recovered.from_memory
    return recovered.dispatch_from == recovered.log_end


def keep_index_state(paths: StorePaths, config: Config, run: Run, whole_to: int) -> None:
    """Say that below `whole_to` the index is whole, and that `run` keeps it so from there.

    Called at a start before `abort` names this run, and at the end of a run before `abort` goes.
    """
    if config.message_index_enable:
        _write_state(paths, run.run_id, whole_to, (_abort(paths), str(run.supervisor_pid)))


def index_is_rebuilt(paths: StorePaths) -> None:
    """Say that the index on disk was just made from the log, while no broker had the store."""
    _write_state(paths, "", 0, (_abort(paths),))


def _write_state(paths: StorePaths, run_id: str, whole_to: int, aborts: tuple[str, ...]) -> None:
    files = index_files(paths.index)
    state = IndexState(run_id, whole_to, files[-1].name if files else "", aborts)
    replace_file(paths.index_state, msgspec.json.encode(state))


_decoder: msgspec.json.Decoder[IndexState] = msgspec.json.Decoder(IndexState)


def _is_known(paths: StorePaths, recovered: Recovered, last_run: Run | None) -> bool:
    """Whether the index is as a run of Penstock left it, or a part of that."""
    try:
        state = _decoder.decode(read_file(paths.index_state))
    except (FileNotFoundError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    names = [path.name for path in index_files(paths.index)]
    if recovered.mode != "unclean":
        return state.whole_to == recovered.log_end and state.newest == (names or [""])[-1]
    run_id = "" if last_run is None else last_run.run_id
    # "" is an index that was rebuilt after that run. If `abort` still says what it said then, no
    # other broker has come since.
    if state.run_id not in ("", run_id) or _abort(paths) not in state.aborts:
        return False
    # A RocketMQ would have begun by dropping the file that was being filled, the newest. It has not
    # if that file is there, or if all files are newer because it has expired.
    return not state.newest or state.newest in names or names[:1] > [state.newest]


def _abort(paths: StorePaths) -> str:
    """The process that `abort` names; "" where there is none."""
    try:
        return read_file(paths.abort).decode("ascii", "replace")
    except FileNotFoundError:
        return ""
