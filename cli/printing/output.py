"""How every command writes: data to stdout as a table or as JSON lines, the rest to stderr.

Bars appear only on terminals, and NO_COLOR is respected.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from penstock.cli.printing.table import Layout, cells_of, lay_out, printable

__all__ = ["printable"]

# the key under which a click context keeps the form of tables
_FORM = "penstock.table"
# and that of the header line that was printed last
_HEAD = "penstock.head"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _form(told: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Commands see only "json" or "table": csv and plain are passed to them as `told`."""

    def chosen(ctx: click.Context, _: click.Parameter, value: str) -> str:
        if value in ("csv", "plain"):
            ctx.meta[_FORM] = value
            return told
        return "json" if value == "jsonl" else value

    return chosen


def _option(forms: Sequence[str], told: str, about: str) -> Callable[[_Command], _Command]:
    return click.option(
        *("-o", "--output"),
        type=click.Choice(["table", "json", "jsonl", *forms]),
        default="table",
        show_default=True,
        callback=_form(told),
        help=about,
    )


# for a command that prints a text for people and an object for programs, which csv has as rows
output_option = _option(
    ("csv", "plain"),
    "json",
    "How to print: a table; one JSON object per line (json, jsonl); csv and plain: that object as "
    "a row under its names, or as rows of what and value.",
)

# for commands that list rows; all else that people read is printed by `print_text`
rows_option = _option(
    ("csv", "plain"),
    "table",
    "How to print: a table; one JSON object per line (json, jsonl); csv with a line of names; "
    "plain: cells with tabs between them.",
)

# for a command that goes on after its one line
line_option = _option((), "table", "How to print: a table, or one JSON object per line.")

# A damaged store may have a problem for each record, but nobody reads more than the first ones.
MOST_LISTED = 100


def json_line(row: object, encoding: str | None = None) -> str:
    """One object as JSON, in characters that standard output, or `encoding`, can represent."""
    import msgspec

    try:
        text = msgspec.json.encode(row).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = ""
    shows = encoding or sys.stdout.encoding
    if not text or not (text.isascii() or shows.lower() == "utf-8"):
        import json

        text = json.dumps(msgspec.to_builtins(row))
    return text


def print_json(row: object) -> None:
    """Print an object on one line or, with `output_option`, as csv or plain if asked for."""
    if rows_alone():
        _print_facts(row)
    else:
        sys.stdout.write(json_line(row) + "\n")


def _print_facts(row: object) -> None:
    """Print a flat object as a row under its names, a nested one as rows of what and value."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(row)
    is_flat = not any(isinstance(value, dict | list) for value in found.values())
    leaves = list(_leaves(found, ""))
    columns = [what for what, _ in leaves] if is_flat else ["what", "value"]
    shown = [[value for _, value in leaves]] if is_flat else leaves
    meta = click.get_current_context().meta
    is_more = meta.get(_HEAD) == columns
    meta[_HEAD] = columns
    if is_more:
        for each in shown:
            print_row(each)
    else:
        print_table(columns, shown)


def _leaves(found: Any, path: str) -> Iterator[tuple[str, object]]:
    """Each plain value and its path: ("queues.0.topic", "orders")."""
    inside = dict(enumerate(found)) if isinstance(found, list) else found
    if isinstance(inside, dict) and inside:
        for name, value in inside.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(found, bool):
        yield path, "true" if found else "false"  # as in JSON
    else:
        yield path, None if isinstance(inside, dict) else found


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings, numbers aligned right. None is shown as nothing."""
    form = table_form()
    if form == "csv":
        print_csv([name or "current" for name in columns])
    if form:
        for row in rows:
            print_row(row)
        return
    shown = list(rows)
    layout = lay_out(columns, shown, room())
    print_head(layout)
    print_rows(layout, shown)


def print_row(row: Sequence[object]) -> None:
    """Print one more row of csv or plain, after their table."""
    sys.stdout.write(rows_text([row], table_form(), to_terminal=sys.stdout.isatty()))


def print_text(text: str) -> None:
    """Print a line that is only for people: csv and plain have nothing but rows."""
    if not rows_alone():
        click.echo(text)


def rows_alone() -> bool:
    """Whether csv or plain was asked for."""
    return bool(table_form())


def table_form() -> str:
    """csv or plain if asked for, else ""."""
    ctx = click.get_current_context(silent=True)
    return "" if ctx is None else ctx.meta.get(_FORM, "")


def print_csv(row: Sequence[object]) -> None:
    """Print a row by RFC 4180, but with this system's line ends."""
    sys.stdout.write(rows_text([row], "csv", to_terminal=sys.stdout.isatty()))


def rows_text(rows: Iterable[Sequence[object]], form: str, *, to_terminal: bool) -> str:
    """Rows as lines of csv, or of plain."""
    if form != "csv":
        return "".join("\t".join(cells_of(row)) + "\n" for row in rows)
    import csv
    import io

    # made printable on a terminal, which data must not control; a program gets the raw data
    text = io.StringIO(newline="")
    cells = map(cells_of, rows) if to_terminal else rows
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def heading(text: str) -> str:
    """The text, bold on a terminal unless NO_COLOR is set."""
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else click.style(text, bold=True)


def print_head(layout: Layout) -> None:
    click.echo(heading(layout.head()))


def print_rows(layout: Layout, rows: Iterable[Sequence[object]]) -> None:
    for row in rows:
        for line in layout.row(cells_of(row)):
            sys.stdout.write(line + "\n")


def room() -> int | None:
    """How wide a table may be; None in a pipe, where `grep` and `cut` need whole rows."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def shown_time(timestamp_ms: int) -> str:
    """Ms since 1970 as a time in UTC; 0 as "", and a number out of range as it is."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z") if timestamp_ms else ""


def shown_bytes(count: float) -> str:
    """A size for people: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def shortened(text: str, characters: int = 60) -> str:
    """The beginning of a text, for a table; csv and plain have all of it."""
    return text if rows_alone() or len(text) <= characters else text[: characters - 3] + "..."


def few(lines: Iterable[str]) -> Iterator[str]:
    """The first lines, and how many more there are."""
    more = 0
    for number, line in enumerate(lines):
        if number < MOST_LISTED:
            yield line
        else:
            more += 1
    if more:
        yield f"and {more} more"


def is_file(stream: Any) -> bool:
    """Whether the stream writes to a file, and not to a screen or a pipe."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False


def progress(
    label: str, *, wanted: bool = True, text: Callable[[int, int], str] | None = None
) -> _Bar:
    """A bar on stderr for a block that takes more than a moment; call it with (done, total).

    Silent unless on a terminal. `text` makes from the numbers what the bar shows next to itself; it
    is called a few times a second, when the bar is drawn. A total of 0 or less means unknown.
    """
    known = text or (lambda done, total: f"{done:,} of {total:,}" if total > 0 else "")
    return _Bar(label, known, wanted and sys.stderr.isatty())


def time_left() -> Callable[[int, int], str]:
    """The `text` of a bar that counts bytes: how many, and about how much time is left. A job does
    several things one after the other, each from 0 on; the time is that of the present one."""
    began, before = time.monotonic(), 0

    def text(done: int, total: int) -> str:
        nonlocal began, before
        if done < before:
            began = time.monotonic()
        before = done
        if not done or done >= total:
            return ""
        left_s = (time.monotonic() - began) * (total - done) / done
        return f"{shown_bytes(done)} of {shown_bytes(total)}, about {left_s:.0f} s left"

    return text


class _Bar:
    """The bar of `progress`, drawn by a thread while its block runs."""

    DELAY_S = 0.4
    LOOK_S = 0.1

    def __init__(self, label: str, text: Callable[[int, int], str], wanted: bool) -> None:
        self._label = label
        self._text = text
        self._wanted = wanted
        self._now = (0, 0)
        self._over: Any = None
        self._thread: Any = None

    def __call__(self, done: int, total: int) -> None:
        self._now = done, total

    def __enter__(self) -> _Bar:
        if self._wanted:
            import threading

            self._over = threading.Event()
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _draw(self) -> None:
        """Runs in a thread, so that the clock goes on even if the work reports nothing for long."""
        if self._over.wait(self.DELAY_S):
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, no_color="NO_COLOR" in os.environ)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
        )
        # otherwise rich would redirect standard output to the console
        bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        with bar:
            said = self._text(*self._now)
            task = bar.add_task(self._label, total=None, said=said)
            while not self._over.wait(self.LOOK_S):
                done, total = self._now
                said = self._text(done, total)
                bar.update(task, completed=done, total=total if total > 0 else None, said=said)
