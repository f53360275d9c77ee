"""What `penstock top` shows: the answers of the page's routes as lines and rows. Pure.

None is shown as unknown, and never as 0. A row may lead to another view, like a link of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.cli.printing.output import shown_bytes, shown_time
from penstock.cli.printing.table import printable

UNKNOWN = "unknown"
Answer = Mapping[str, Any]
_BARS = "▁▂▃▄▅▆▇█"


class Place(NamedTuple):
    """A view and the words that it asks with, as in an address of the page."""

    view: str
    words: tuple[tuple[str, str], ...] = ()

    def but(self, **changed: str | None) -> Place:
        """The same place with some words changed; None removes a word."""
        words = dict(self.words) | changed
        return Place(self.view, tuple((k, v) for k, v in words.items() if v is not None))


class Row(NamedTuple):
    cells: tuple[object, ...]
    leads_to: Place | None = None
    # the pid of a running actor: K kills it
    pid: int = 0


class Shown(NamedTuple):
    """A view: lines, a table, and lines below it. Without columns each row is a line of text."""

    head: Sequence[str]
    columns: tuple[str, ...] = ()
    rows: Sequence[Row] = ()
    foot: Sequence[str] = ()
    page: int = 1
    pages: int = 1


def place(view: str, **words: object) -> Place:
    return Place(view, tuple((name, str(value)) for name, value in words.items()))


def wrapped(shown: Shown, width: int) -> Shown:
    """A text as one row for each line of the terminal; a table as it is."""
    if shown.columns:
        return shown
    texts = [printable(str(row.cells[0])) for row in shown.rows]
    return shown._replace(
        rows=[Row((t[at : at + width],)) for t in texts for at in range(0, len(t) or 1, width)]
    )


# --- words for numbers ---


def count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def _number(value: int | None) -> object:
    """A cell of a column of numbers."""
    return UNKNOWN if value is None else value


def size(number: float | None) -> str:
    return UNKNOWN if number is None else shown_bytes(number)


def duration(ms: float | None) -> str:
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{ms:.3g} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"


def when(ms: int | None) -> str:
    return shown_time(ms) if ms else UNKNOWN


def _paged(title: str, found: Answer, columns: tuple[str, ...], rows: list[Row]) -> Shown:
    pages = max(1, -(-found["total"] // found["rows_a_page"]))
    head = f"{title}: {count(found['total'])} in all, page {found['page']} of {pages}"
    return Shown([head], columns, rows, page=found["page"], pages=pages)


# --- views ---


def history(found: list[Answer], words: Answer) -> Shown:
    """Everything that this command has seen, newest first, below lines that summarise it."""
    names = ("messages/s", "bytes/s", "acknowledge p99", "flush p99")
    keys = ("messages_s", "bytes_s", "acknowledge_p99_ms", "flush_p99_ms")
    told: tuple[Callable[[float | None], str], ...] = (count, size, duration, duration)
    head = [f"Since this command began, {len(found)} looks of up to 15 minutes"]
    for name, key, say in zip(names, keys, told, strict=True):
        values = [row[key] for row in found]
        most = max((value for value in values if value is not None), default=None)
        head.append(f"{name:<16} {_line(values)} highest {say(most)}")
    columns = ("time", "messages/s", "bytes/s", "pulls/s", *_both("acknowledge"), *_both("flush"))
    rows = []
    for row in reversed(found):
        rates = count(row["messages_s"]), size(row["bytes_s"]), count(row["pulls_s"])
        names_of = ("acknowledge_p50_ms", "acknowledge_p99_ms", "flush_p50_ms", "flush_p99_ms")
        rows.append(Row((when(row["at_ms"]), *rates, *(duration(row[name]) for name in names_of))))
    return Shown(head, columns, rows)


def _both(what: str) -> tuple[str, str]:
    return f"{what} p50", "p99"


def _line(values: list[float | None], width: int = 40) -> str:
    """A line of bars: each is the highest of its looks, or a gap if nothing was measured."""
    step = max(1, -(-len(values) // width))
    steps = [
        max((v for v in values[at : at + step] if v is not None), default=None)
        for at in range(0, len(values), step)
    ]
    most = max((v for v in steps if v is not None), default=0) or 1
    bars = (" " if v is None else _BARS[min(7, int(v / most * 7.99))] for v in steps)
    return f"{''.join(bars):>{width}}"


def topics(found: Answer, words: Answer) -> Shown:
    rows = [
        Row(
            (row["topic"], row["queues"], row["messages"], row["messages_ever"]),
            place("topic", name=row["topic"]),
        )
        for row in found["rows"]
    ]
    return _paged("Topics", found, ("topic", "queues", "messages", "ever stored"), rows)


def topic(found: Answer, words: Answer) -> Shown:
    name, rows = found["topic"], []
    for row in found["rows"]:
        low, high = row["min_offset"], row["max_offset"]
        leads_to = place("messages", topic=name, queue=row["queue"]) if high > low else None
        rows.append(Row((row["queue"], low, high, high - low), leads_to))
    columns = ("queue", "first offset", "next offset", "messages")
    shown = _paged(f"Queues of the topic {name}", found, columns, rows)
    groups = found["groups"]
    named = f"groups: {UNKNOWN}" if groups is None else "no group consumes it"
    if groups:
        named = f"{count(found['group_count'])} groups: {', '.join(groups)}"
    facts = f"{count(found['messages'])} messages, {count(found['write_queues'])} queues to write"
    return shown._replace(head=[*shown.head, f"{facts}; {named}"])


def groups(found: Answer, words: Answer) -> Shown:
    columns = ("group", "topics", "queues", "lag", "oldest waits")
    rows = [
        Row(
            (
                *(row[each] for each in columns[:3]),
                *(_number(row["lag"]), duration(row["lag_ms"])),
            ),
            place("group", name=row["group"]),
        )
        for row in found["rows"]
    ]
    return _paged("Groups", found, columns, rows)


def group(found: Answer, words: Answer) -> Shown:
    rows = []
    for row in found["rows"]:
        offsets = row["offset"], row["max_offset"], row["lag"]
        cells = row["topic"], row["queue"], *offsets, size(row["lag_bytes"])
        at = place("messages", topic=row["topic"], queue=row["queue"], offset=row["offset"])
        rows.append(Row((*cells, duration(row["lag_ms"])), at))
    columns = ("topic", "queue", "offset", "end", "lag", "bytes", "oldest waits")
    shown = _paged(f"Queues of the group {found['group']}", found, columns, rows)
    return shown._replace(head=[*shown.head, f"lag {count(found['lag'])} messages"])


def messages(found: Answer, words: Answer) -> Shown:
    title = f"Topic {found['topic']}, queue {found['queue']}: "
    title += f"offsets {count(found['min_offset'])} to {count(found['max_offset'])}"
    return _listed(title, found["rows"])


def _listed(title: str, found: list[Answer]) -> Shown:
    rows = []
    for row in found:
        at = place("message", topic=row["topic"], queue=row["queue"], offset=row["offset"])
        if "error" in row:
            rows.append(Row((row["queue"], row["offset"], row["error"], None, None, None)))
            continue
        body = row.get("text") or row.get("hex") or row.get("body_error") or ""
        cells = row["queue"], row["offset"], when(row["stored_ms"]), row["keys"], row["tags"]
        rows.append(Row((*cells, body[:80]), at))
    return Shown([title], ("queue", "offset", "stored", "keys", "tags", "body"), rows)


def message(found: Answer, words: Answer) -> Shown:
    """One message in full; several, or none, as a list."""
    rows = found["rows"]
    if len(rows) != 1 or "error" in rows[0]:
        return _listed(f"Messages: {len(rows)} were found", rows)
    (row,) = rows
    forms = {name: row.get(name) for name in ("json", "text", "hex") if row.get(name) is not None}
    form = words.get("form") if words.get("form") in forms else next(iter(forms), "")
    lines = [
        f"stored {when(row['stored_ms'])}, made {when(row['born_ms'])}",
        f"keys {row['keys'] or 'none'}; tags {row['tags'] or 'none'}",
        f"message id {row['message_id']}; consumed again {count(row['reconsume_times'])} times",
        *(f"property {name} = {value}" for name, value in row["properties"].items()),
    ]
    if form:
        cut = ", its beginning" if row["is_cut"] else ""
        lines += ["", f"body as {form} of {', '.join(forms)}, {size(row['body_bytes'])}{cut}:"]
        lines += forms[form].split("\n")
    else:
        lines += ["", str(row["body_error"])]
    title = f"Topic {row['topic']}, queue {row['queue']}, offset {row['offset']}"
    return Shown([title], (), [Row((line,)) for line in lines])


def dead_letters(found: Answer, words: Answer) -> Shown:
    rows = [
        Row(
            (row["group"], row["messages"], row["messages_ever"]),
            place("messages", topic=row["topic"], queue=0),
        )
        for row in found["rows"]
    ]
    return _paged("Groups with dead letters", found, ("group", "messages", "ever stored"), rows)


def files(found: Answer, words: Answer) -> Shown:
    lines = []
    for name, part in found["files"].items():
        held = UNKNOWN if part is None else f"{size(part['bytes'])} in {count(part['files'])} files"
        lines.append(f"{name:<14} {held}")
    disk, used, kept = found["disk"], found["disk_used_percent"], found["retention"]
    free = UNKNOWN if disk is None else f"{size(disk['free'])} of {size(disk['size'])} free"
    full = full_when(found)
    rate = found["bytes_per_s"]
    growth = UNKNOWN if rate is None else f"{size(rate)}/s"
    lines += [
        f"{'disk':<14} {free}; {UNKNOWN if used is None else f'{used} %'} used, refuses messages "
        f"above {found['refuses_above_percent']} %; full {full}",
        f"{'the log grows':<14} {growth}",
        f"{'messages':<14} are kept {kept['file_reserved_time_h']} h, and deleted at hour "
        f"{kept['delete_when']}",
    ]
    columns = ("deleted", "why", "segments", "messages")
    if found["deletions"] is None:
        return Shown([*lines, f"deletions {UNKNOWN}"], columns)
    rows = [
        Row((when(each["at_ms"]), each["why"], each["segments"], _number(each["messages"])))
        for each in found["deletions"]
    ]
    return Shown(lines, columns, rows)


def full_when(found: Answer) -> str:
    """When the disk is full."""
    if found["full_in_s"] is not None:
        return f"in {duration(found['full_in_s'] * 1000)}"
    return UNKNOWN if found["bytes_per_s"] is None or found["disk"] is None else "not at this rate"


def recoveries(found: list[Answer], words: Answer) -> Shown:
    rows = []
    for each in reversed(found):
        at = each["found"]
        offsets = at["scanned_from"], at["log_end"], at["messages"]
        sizes = size(at["pool_bytes"]), size(at["torn_bytes"]), len(at["quarantined"])
        took = duration(at["seconds"] * 1000)
        rows.append(Row((when(each["at_ms"]), at["mode"], *offsets, *sizes, took)))
    columns = ("start", "mode", "from", "log end", "messages", "pool", "torn", "damaged", "took")
    head = "Starts that had to recover, newest first" if found else "No start had to recover"
    return Shown([head], columns, rows)
