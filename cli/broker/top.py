"""`penstock top`: the monitor's page in a terminal. Asks no actor anything.

It reads the same shared memory and files by the monitor's own functions: each view shows what a
route of the page answers. So it needs no monitor, and works while actors are frozen.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.broker.top_browsing import VIEWS, Browsing, keys_of, words_of
from penstock.cli.broker.top_views import Place, Shown, wrapped
from penstock.cli.broker.watching import watching
from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import Finite, store_option
from penstock.cli.printing.output import output_option, print_json
from penstock.cli.printing.table import cells_of, lay_out, printable
from penstock.cli.signals import end_in_order

if TYPE_CHECKING:
    from penstock.actors.monitor import History, Reading

WIDTH, LINES = 80, 24
# The time between the two looks that rates come from, if only one frame is printed.
LOOK_S = 0.5
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CHOSEN, _NOT_CHOSEN = "\x1b[7m", "\x1b[27m"
_ENDS = "q ends"


@click.command(
    epilog="""\b
Examples:
  penstock top --store ./store
  penstock top groups order=lag --store ./store
  penstock top message topic=orders key=order-7 --store ./store
  penstock top topic name=orders -o json --store ./store | jq .rows
  penstock top --store ./store -o json | jq .rates
  penstock top --store ./store --every 5
\b
Keys:
  1 to 8         pipeline, topics, groups, message, dead letters, files,
                 recoveries, and what has been since the command began
  arrows, Enter  choose a row, and see what it stands for; Esc goes back
  n, p           the next and the previous page
  /              search; in the view of messages: words as on the command line
  o, a, f        another order; the broker's own topics too; a body as JSON,
                 text or hex
  K              kill the chosen actor, and see its successor go on
  q, Ctrl-C      end
"""
)
@click.argument("view", type=click.Choice(list(VIEWS)), default="pipeline", metavar="[VIEW]")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@store_option
@click.option(
    "--every", type=Finite(0.1, 3600), default=1.0, show_default=True, help="Seconds a frame."
)
@output_option
@click.pass_context
def top(
    ctx: click.Context,
    view: str,
    words: tuple[str, ...],
    store: Path | None,
    every: float,
    output: str,
) -> None:
    """Watch a broker: what its page shows, in a terminal and by the keyboard.

    VIEW is where to begin: pipeline, topics, groups, message, dead-letters, files, recoveries,
    history; or topic, group, messages with name= or topic= and queue=. The words are those of
    the page's API: search, page, rows, order, all.

    Without a terminal, and with -o, there is one frame. What cannot be read is unknown, and never
    0. Exits with 3 when no broker runs on the store.
    """
    try:
        begins = Place(view, words_of(list(words)))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="KEY=VALUE") from None
    end_in_order(ctx)  # a terminal that is left on the other screen, without echo, is of no use
    with watching(store_of(store)) as (reading, history):
        if output == "json" or not sys.stdout.isatty():
            _once(reading, history, begins, output)
            return
        try:
            _live(reading, history, Browsing(begins), every)
        except KeyboardInterrupt:  # a normal way to end it
            return


def _once(reading: Reading, history: History, place: Place, output: str) -> None:
    if place.view in ("pipeline", "history"):
        _sample(reading, history)
        time.sleep(LOOK_S)  # rates need two looks
    _sample(reading, history)
    found = _look(reading, history, place)
    if output == "json":
        for row in found if isinstance(found, list) else [found]:
            print_json(row)
        return
    shown = VIEWS[place.view].show(found, dict(place.words))
    # rows are all printed, for `grep`; the first view is as people see it
    height = LINES if place.view == "pipeline" else len(shown.rows) + LINES
    width = WIDTH if place.view == "pipeline" else 1 << 20
    click.echo("\n".join(_frame(_state(reading), shown, width, height)[0]))


def _live(reading: Reading, history: History, browsing: Browsing, every: float) -> None:
    """Draw frames, each as large as the terminal is then, until q. Raises ConnectError if the
    broker ends."""
    from penstock.cli.broker.top_screen import draw, screen
    from penstock.shared.memory.run_directory import running
    from penstock.shared.process.find_broker import find_running

    asked, due_s, shown = None, 0.0, Shown([])
    pending: deque[str] = deque()
    with screen() as keys:
        while True:
            now_s = time.monotonic()
            if asked != browsing.place or now_s >= due_s:
                if not running(reading.run):
                    find_running(reading.paths.root)  # raises what happened to the broker
                    return
                reading.release_deleted()  # a deleted segment takes disk space while it is mapped
                _sample(reading, history)
                shown, asked = _shown(reading, history, browsing.place), browsing.place
                due_s = now_s + every
            columns, rows = shutil.get_terminal_size((WIDTH, LINES))
            fitted = wrapped(shown, columns)
            browsing.row = max(0, min(browsing.row, len(fitted.rows) - 1))
            head, bar = _state(reading), browsing.bar(columns)
            lines, chosen = _frame(head, fitted, columns, max(rows, 2), browsing.row, bar)
            lines[0] = _with_key(lines[0], columns)
            if chosen is not None:
                lines[chosen] = f"{_CHOSEN}{lines[chosen]}{_NOT_CHOSEN}"
            text = "\r\n".join(f"{_END_OF_LINE}{line}" for line in lines)
            draw(f"{_HOME}{text}{_BELOW}")
            if not pending:
                pressed = keys.wait(due_s - time.monotonic())
                if pressed is None:
                    return
                pending.extend(keys_of(pressed))
            # keys after one that opens another view wait until that view is shown
            while pending and browsing.place == asked:
                if not browsing.press(pending.popleft(), fitted, max(1, rows - 8)):
                    return


def _sample(reading: Reading, history: History) -> None:
    now_ms = reading.clock.monotonic_ms()
    history.look(reading.positions, now_ms)
    if history.last is None or history.due_ms(now_ms) <= 0:
        messages = reading.queues.message_count
        history.sample(reading.positions, messages, now_ms, reading.clock.now_ms())


def _look(reading: Reading, history: History, place: Place) -> Any:
    """The answer of the page's route for this view. Raises PenstockError, OSError."""
    from collections.abc import Generator

    from penstock.actors.monitor import at_once, looks
    from penstock.cli.broker.top_pipeline import look

    if place.view == "pipeline":
        return look(reading, history)
    found = looks(reading, history)[VIEWS[place.view].look](dict(place.words))
    return at_once(found) if isinstance(found, Generator) else found


def _shown(reading: Reading, history: History, place: Place) -> Shown:
    """A view, or why it cannot be shown now."""
    from penstock.shared.errors import PenstockError

    if place.view == "message" and not place.words:
        return Shown([f"Find a message: press / and type {VIEWS['message'].asks}"])
    try:
        return VIEWS[place.view].show(_look(reading, history, place), dict(place.words))
    except PenstockError as error:
        said = [error.what, "" if error.value is None else str(error.value), error.hint]
        return Shown([". ".join(part for part in said if part)])
    except OSError as error:
        return Shown([f"a file cannot be read: {error}"])


def _state(reading: Reading) -> list[str]:
    """Which broker this is, and whether it is healthy."""
    from penstock.actors.monitor import problems

    wrong = "; ".join(problems(reading, reading.clock.monotonic_ms()))
    name = f"{reading.config.broker_name}  {reading.paths.root.resolve()}"
    return [name, f"not healthy: {wrong}" if wrong else "healthy"]


def _frame(
    state: Sequence[str],
    shown: Shown,
    width: int = WIDTH,
    height: int = LINES,
    row: int = 0,
    bar: str | None = None,
) -> tuple[list[str], int | None]:
    """At most this many columns and lines, and the line of the chosen row if a key does anything
    with it. Without a `bar` there is one line less, because the cursor is below the last one."""
    lines = [*state[:1], *_folded([*state[1:], *shown.head], width, height // 3), ""]
    table = [str(line.cells[0]) for line in shown.rows]
    if shown.columns:
        rows = [line.cells for line in shown.rows]
        layout = lay_out(shown.columns, rows, None)
        lines.append(layout.head())
        table = [line for cells in rows for line in layout.row(cells_of(cells))] or ["none"]
    room = max(1, height - 1 - len(lines))
    # in a table the chosen row is in the middle, in a text it is the first line
    first = max(0, min(row - room // 2 if shown.columns else row, len(table) - room))
    chosen = None
    if bar is not None and row < len(shown.rows) and any(shown.rows[row][1:]):
        chosen = len(lines) + row - first
    lines += table[first : first + room]
    foot = shown.foot[: max(0, height - 1 - len(lines))]
    # a heading without a row below it is useless
    lines += foot if len(foot) > 2 or len(foot) == len(shown.foot) else []
    lines = [line[:width] for line in map(printable, lines[: height - 1])]
    if bar is not None:
        lines += [""] * (height - 1 - len(lines)) + [printable(bar)[:width]]
    return lines, chosen if chosen is not None and chosen < height - 1 else None


def _folded(lines: Sequence[str], width: int, most: int) -> Sequence[str]:
    """The lines folded at this width, unless that makes more than `most` lines."""
    folded = [textwrap.wrap(line, width) if len(line) > width else [line] for line in lines]
    found = [part for parts in folded for part in parts]
    return found if len(found) <= most else lines


def _with_key(line: str, columns: int) -> str:
    """A frame's first line, with the key that ends it on the right, if there is room."""
    if len(line) + 2 + len(_ENDS) > columns:
        return line
    return f"{line:<{columns - len(_ENDS)}}{_ENDS}"
