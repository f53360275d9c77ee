"""How every command writes: data to stdout as a table or as JSON lines, progress to stderr.

rich is imported when the first table or bar is drawn, never for JSON. Colour and bars are for
terminals only, and NO_COLOR is heeded. Knows no command and no store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print: a table, or one JSON object per line.",
)

# Of what is wrong there may be one for each record, and nobody reads more.
MOST_LISTED = 100

# Wider than any row: a table in a pipe is for `grep` and `cut`, which a folded line would break.
_PIPE_COLUMNS = 4096


def print_json(row: object) -> None:
    """One object on one line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings; numbers to the right. None shows as nothing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(shown) and all(isinstance(row[index], int | float) for row in shown)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
    for row in shown:
        table.add_row(*(Text(printable("" if cell is None else str(cell))) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if terminal else _PIPE_COLUMNS,
        no_color=not terminal or "NO_COLOR" in os.environ,
        highlight=False,
    )
    console.print(table)


def shown_time(timestamp_ms: int) -> str:
    """Ms since 1970 as a time in UTC; 0 as nothing, and what is no time as the number."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z") if timestamp_ms else ""


def printable(text: str) -> str:
    """The text with control characters spelt out: a message must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for the block; call it with (done, total). Silent unless on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, no_color="NO_COLOR" in os.environ)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
