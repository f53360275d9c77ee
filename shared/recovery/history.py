"""penstock/recovery.json: what the last starts that were not clean have found and done.

Written at a start when producers can be served, newest last; a start writes it whole, so a crash
leaves the old or the new. Nobody decides anything by it: it is for people.
"""

from __future__ import annotations

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away
from penstock.shared.recovery.recover_log import Recovered

# Starts that are kept, the newest ones. It is read by people, and written whole each time.
KEPT = 20


class PastRecovery(msgspec.Struct, frozen=True):
    """One start."""

    at_ms: int  # by the wall clock
    found: Recovered


def load_recoveries(paths: StorePaths) -> list[PastRecovery]:
    """Oldest first; nothing where every start was clean. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(paths.recoveries.read_bytes(), type=list[PastRecovery])
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise StoreDamaged(
            "penstock/recovery.json cannot be read",
            f"{paths.recoveries}: {error}",
            f"only history is lost without it: {move_away(paths.recoveries)}",
        ) from error


def keep_recovery(paths: StorePaths, found: Recovered, now_ms: int) -> str:
    """Add a start, unless it was clean; durable on return. Why that cannot be, or "".

    The reason is returned and not raised: a disk that takes no file more must not keep a store
    from being served for the sake of its history.
    """
    # A clean start is written down too where it has found damage, or has mended something.
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
