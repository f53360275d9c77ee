"""The first view of `penstock top`: what the page's first view has, and from the other views what
one must know when looking at a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.broker.top_views import (
    UNKNOWN,
    Answer,
    Row,
    Shown,
    count,
    duration,
    full_when,
    size,
)
from penstock.cli.printing.table import cells_of, lay_out

if TYPE_CHECKING:
    from penstock.actors.monitor import History, Reading

_COLUMNS = ("actor", "state", "pid", "restarts", "moved", "log offset", "behind", "late")
# The most groups: each costs a look at its queues.
GROUPS = 50


def look(reading: Reading, history: History) -> dict[str, Any]:
    """The overview, with the groups that lag most, disk, dead letters and recoveries."""
    import msgspec

    from penstock.actors.monitor import at_once, count_dead_letters, filling, looks
    from penstock.shared.errors import PenstockError, StoreDamaged
    from penstock.shared.recovery.history import load_recoveries

    asked = looks(reading, history)
    found: dict[str, Any] = dict(asked["overview"]({}))
    try:
        found["most_lag"] = at_once(asked["groups"]({"order": "lag", "rows": str(GROUPS)}))["rows"]
    except (PenstockError, OSError):
        found["most_lag"] = None
    try:
        recoveries = msgspec.to_builtins(load_recoveries(reading.paths))
    except (StoreDamaged, OSError):
        recoveries = None
    return (
        found
        | filling(reading, history)
        | {
            "dead_letters": count_dead_letters(reading),
            "recoveries": recoveries,
        }
    )


def pipeline(found: Answer, words: Answer) -> Shown:
    rates = found["rates"] or {}
    head = [
        f"{count(rates.get('messages_s'))} messages/s, {size(rates.get('bytes_s'))}/s; "
        f"{count(found['messages'])} messages, {count(found['topics'])} topics, "
        f"{count(found['groups'])} groups",
        f"acknowledge p50 {duration(rates.get('acknowledge_p50_ms'))}, "
        f"p99 {duration(rates.get('acknowledge_p99_ms'))}; "
        f"flush p50 {duration(rates.get('flush_p50_ms'))}, "
        f"p99 {duration(rates.get('flush_p99_ms'))}",
        _disk_line(found),
    ]
    running = [each for each in found["actors"] if each["state"] != "off"]
    actors = [Row(_actor(each), pid=each["pid"] or 0) for each in running]
    return Shown(head, _COLUMNS, actors, _groups(found["most_lag"]))


def _groups(most: list[Answer] | None) -> list[str]:
    if most is None:
        return ["", f"groups: {UNKNOWN}"]
    rows = [(each["group"], count(each["lag"]), duration(each["lag_ms"])) for each in most]
    layout = lay_out(("group", "lag", "oldest"), rows, None)
    lines = [line for row in rows for line in layout.row(cells_of(row))]
    return ["", layout.head(), *lines] if lines else []


def _disk_line(found: Answer) -> str:
    used, rows = found["disk_used_percent"], found["recoveries"]
    disk = f"disk {UNKNOWN if used is None else f'{used} %'} used"
    recovered = "no start had to recover"
    if rows is None:
        recovered = f"recoveries {UNKNOWN}"
    elif rows:
        recovered = f"recovered {duration(max(0, found['now_ms'] - rows[-1]['at_ms']))} ago"
    return (
        f"{disk}, full {full_when(found)}; {count(found['dead_letters'])} dead letters; {recovered}"
    )


def _actor(actor: Answer) -> tuple[object, ...]:
    at: tuple[object, ...] = (None, None, None)
    if actor["position"]:
        at = (actor["at"], size(actor["behind_bytes"]), duration(actor["behind_ms"]))
    moved = duration(actor["heartbeat_age_ms"])
    life = actor["state"], actor["pid"] or None, max(0, actor["restarts"])
    return actor["name"], *life, moved, *at
