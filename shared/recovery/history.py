"""penstock/recovery.json: what the last starts that were not clean have found and done.

A start writes it once producers can be served, newest last. It writes the whole file, so a crash
leaves the old one or the new one. It is for people: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away, quoted
from penstock.shared.recovery.recover_log import Recovered

# This many starts are kept, the newest ones: people read the file, and it is written whole.
KEPT = 20
# A start reports this many damaged ranges at most; recovery.json has them all.
MOST_TOLD = 100


class PastRecovery(msgspec.Struct, frozen=True):
    """One start."""

    at_ms: int  # by the wall clock
    found: Recovered


_decoder: msgspec.json.Decoder[list[PastRecovery]] = msgspec.json.Decoder(list[PastRecovery])


def load_recoveries(paths: StorePaths) -> list[PastRecovery]:
    """Oldest first; nothing where every start was clean. Raises StoreDamaged."""
    try:
        return _decoder.decode(read_file(paths.recoveries))
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise StoreDamaged(
            "penstock/recovery.json cannot be read",
            f"{paths.recoveries}: {error}",
            f"only history is lost without it: {move_away(paths.recoveries)}",
        ) from error


def keep_recovery(paths: StorePaths, found: Recovered, now_ms: int) -> str:
    """Add a start, unless it was clean; durable on return. Returns why it could not, or "".

    The reason is returned and not raised: a full disk must not keep a store from being served for
    the sake of its history.
    """
    # A clean start is written down, too, if it has found damage or mended something.
    told = found.quarantined or found.torn_bytes or found.restored_queues
    if found.mode != "unclean" and not told:
        return ""
    try:
        rows = [*_past(paths), PastRecovery(now_ms, found)][-KEPT:]
        replace_file(paths.recoveries, msgspec.json.format(msgspec.json.encode(rows)))
    except OSError as error:
        return f"what this start has found is not written down: {error}"
    return ""


def _past(paths: StorePaths) -> list[PastRecovery]:
    try:
        return load_recoveries(paths)
    except StoreDamaged:
        return []  # no history is worth a start that fails; the new one replaces it


def recovery_lines(found: Recovered, paths: StorePaths) -> Iterator[str]:
    """The lines that a start reports: what it found after an unclean stop, what it cut, and what is
    damaged."""
    if found.mode == "unclean":
        yield (
            f"recovered after an unclean stop: {found.messages} messages scanned from "
            f"{found.scanned_from}, {found.pool_bytes} bytes taken from the pool, "
            f"{found.torn_bytes} torn bytes cut, log ends at {found.log_end}, "
            f"{found.seconds:.2f} s"
        )
    elif found.torn_bytes:
        yield (
            f"{found.torn_bytes} bytes behind the log's end, which is {found.log_end}, "
            "were no messages and are cut, although the last stop was in order"
        )
    if found.torn_records:
        yield (
            f"{found.torn_records} whole records were behind bytes that are lost, so they are "
            f"no part of the log any more; they are kept in {paths.quarantine}"
        )
    for damage in found.quarantined[:MOST_TOLD]:
        yield f"damaged: {damage}"
    if (more := len(found.quarantined) - MOST_TOLD) > 0:
        yield f"and {more} more"
    if found.quarantined:
        yield (
            "the store is read-only: consumers get everything that is whole, producers nothing; "
            f"stop the broker and run: penstock store repair {quoted(paths.root)}"
        )
