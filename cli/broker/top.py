"""`penstock top`: the monitor's first page, live in a terminal. Asks no actor anything.

It looks with the monitor's eyes at the same shared memory and files, so it needs no monitor, and
works while actors are frozen. A frame fits the terminal; elsewhere 80 columns and 24 lines.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.broker.watching import watching
from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import Finite, store_option
from penstock.cli.printing.output import output_option, print_json, shown_bytes
from penstock.cli.printing.table import cells_of, lay_out, printable
from penstock.cli.signals import end_in_order
from penstock.shared.files.readable import is_readable

if TYPE_CHECKING:
    from penstock.actors.monitor import History, Reading

WIDTH, LINES = 80, 24
# However high the terminal is: each costs a look at its queues.
MOST_GROUPS = 50
# Between the two looks that rates come from, where there is one frame only.
LOOK_S = 0.5
UNKNOWN = "unknown"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command(
    epilog="""\b
Examples:
  penstock top --store ./store
  penstock top --store ./store -o json | jq .rates
  penstock top --store ./store --every 5
"""
)
@store_option
@click.option(
    "--every", type=Finite(0.1, 3600), default=1.0, show_default=True, help="Seconds a frame."
)
@output_option
@click.pass_context
def top(ctx: click.Context, store: Path | None, every: float, output: str) -> None:
    """Watch a broker: its actors, how far each is, rates, its disk, and the groups with most to do.

    q or Ctrl-C ends it. Without a terminal there is one frame. What cannot be read is unknown, and
    never 0. Exits with 3 when no broker runs on the store.
    """
    end_in_order(ctx)  # a terminal that is left on the other screen, without echo, is of no use
    with watching(store_of(store)) as (reading, history):
        if output == "json" or not sys.stdout.isatty():
            _look(reading, history)
            time.sleep(LOOK_S)
            found = _look(reading, history)
            if output == "json":
                print_json(found)
            else:
                click.echo("\n".join(_frame(found)))
            return
        with _screen() as keys:
            _live(reading, history, every, keys)


def _live(reading: Reading, history: History, every: float, keys: int | None) -> None:
    """Frame after frame, as large as the terminal is by then, until q. Raises ConnectError where
    the broker ends."""
    from penstock.shared.memory.run_directory import running
    from penstock.shared.process.find_broker import find_running

    try:
        while True:
            if not running(reading.run):
                find_running(reading.paths.root)  # says what has become of it
                return
            reading.release_deleted()  # a segment that is mapped keeps its room on the disk
            columns, rows = shutil.get_terminal_size((WIDTH, LINES))
            rows = max(rows, 2)
            lines = _frame(_look(reading, history, rows), columns, rows)
            lines[0] = _with_key(lines[0], columns)
            text = "".join(f"{_END_OF_LINE}{line}\r\n" for line in lines)
            _draw(f"{_HOME}{text}{_BELOW}")
            if _quits(keys, every):
                return
    except KeyboardInterrupt:  # how one ends what shows itself until then
        return


def _with_key(line: str, columns: int) -> str:
    """A frame's first line, with how to end it on the right where there is room."""
    key = "q ends"
    return line if len(line) + 2 + len(key) > columns else f"{line:<{columns - len(key)}}{key}"


def _draw(text: str) -> None:
    """Onto the terminal at once: a buffer whose flush Ctrl-C interrupts is written twice."""
    raw = text.encode(sys.stdout.encoding, "replace")
    while raw:
        raw = raw[os.write(sys.stdout.fileno(), raw) :]


def _quits(keys: int | None, seconds: float) -> bool:
    """Wait for the next frame; whether q was pressed meanwhile."""
    if keys is None:
        time.sleep(seconds)
        return False
    return is_readable(keys, seconds) and os.read(keys, 64) in (b"q", b"Q", b"")


@contextmanager
def _screen() -> Iterator[int | None]:
    """The terminal's other screen, without echo; the descriptor keys come from, if they can.

    While Ctrl-Z holds the command, the terminal is the shell's, as it was.
    """
    import termios
    import tty

    keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keys is None else termios.tcgetattr(keys)

    def enter() -> None:
        if keys is not None:
            # first: in the background this stops the command again, with nothing drawn
            tty.setcbreak(keys)
        _draw(_ENTER)

    def leave() -> None:
        _draw(_LEAVE)
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    def stop(number: int, frame: object) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
        enter()

    suspend = signal.getsignal(signal.SIGTSTP)
    enter()
    try:
        if suspend is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, stop)
        yield keys
    finally:
        signal.signal(signal.SIGTSTP, suspend)
        leave()


def _look(reading: Reading, history: History, most_groups: int = 5) -> dict[str, Any]:
    from penstock.actors.monitor import at_once, list_groups, overview, page_of
    from penstock.shared.errors import PenstockError

    now_ms = reading.clock.monotonic_ms()
    history.look(reading.positions, now_ms)
    wall_ms, messages = reading.clock.now_ms(), reading.queues.message_count
    history.sample(reading.positions, messages, now_ms, wall_ms)
    found = overview(reading, history)
    try:
        most = list_groups(
            reading, page_of({"order": "lag", "rows": str(min(most_groups, MOST_GROUPS))})
        )
        found["most_lag"] = at_once(most)["rows"]
    except (PenstockError, OSError):
        found["most_lag"] = None
    return found | _beside(reading, history)


def _beside(reading: Reading, history: History) -> dict[str, Any]:
    """What the page has in views of its own, and somebody who looks at a broker has to know."""
    import msgspec

    from penstock.actors.monitor import count_dead_letters, full_in_s
    from penstock.shared.errors import StoreDamaged
    from penstock.shared.process.disk_full import used_percent
    from penstock.shared.recovery.history import load_recoveries

    try:
        recoveries = msgspec.to_builtins(load_recoveries(reading.paths))
    except (StoreDamaged, OSError):
        recoveries = None
    return {
        "disk_used_percent": used_percent(reading.positions["disk_used"]),
        "full_in_s": full_in_s(reading, history),
        "dead_letters": count_dead_letters(reading),
        "recoveries": recoveries,
    }


def _frame(found: dict[str, Any], width: int = WIDTH, height: int = LINES) -> list[str]:
    """At most this many columns, and a line less: the cursor is below the last one."""
    rates = found["rates"] or {}
    wrong = "; ".join(found["problems"])
    lines = [
        f"{found['broker']}  {found['store']}",
        f"not healthy: {wrong}" if wrong else "healthy",
        f"{_count(rates.get('messages_s'))} messages/s, {_bytes(rates.get('bytes_s'))}/s; "
        f"{_count(found['messages'])} messages, {_count(found['topics'])} topics, "
        f"{_count(found['groups'])} groups",
        f"acknowledge p50 {_ms(rates.get('acknowledge_p50_ms'))}, "
        f"p99 {_ms(rates.get('acknowledge_p99_ms'))}; flush p50 {_ms(rates.get('flush_p50_ms'))}, "
        f"p99 {_ms(rates.get('flush_p99_ms'))}",
        _disk_line(found),
        "",
    ]
    columns = ("actor", "state", "pid", "restarts", "moved", "log offset", "behind", "late")
    lines += _table(columns, [_actor(each) for each in found["actors"] if each["state"] != "off"])
    if found["most_lag"] is None:
        lines += ["", "groups: unknown"]
    elif found["most_lag"]:
        # a blank line and the heading come before them
        most = found["most_lag"][: max(0, height - 1 - len(lines) - 2)]
        groups = [(g["group"], _count(g["lag"]), _ms(g["lag_ms"])) for g in most]
        lines += ["", *_table(("group", "lag", "oldest"), groups)]
    return [line[:width] for line in map(printable, lines[: height - 1])]


def _disk_line(found: dict[str, Any]) -> str:
    used, full_s, rows = (found[key] for key in ("disk_used_percent", "full_in_s", "recoveries"))
    disk = f"disk {UNKNOWN if used is None else f'{used} %'} used"
    full = UNKNOWN if full_s is None else f"in {_ms(full_s * 1000)}"
    recovered = "no start had to recover"
    if rows is None:
        recovered = f"recoveries {UNKNOWN}"
    elif rows:
        recovered = f"recovered {_ms(max(0, found['now_ms'] - rows[-1]['at_ms']))} ago"
    return f"{disk}, full {full}; {_count(found['dead_letters'])} dead letters; {recovered}"


def _actor(actor: dict[str, Any]) -> tuple[object, ...]:
    place: tuple[object, ...] = (None, None, None)
    if actor["position"]:
        place = (actor["at"], _bytes(actor["behind_bytes"]), _ms(actor["behind_ms"]))
    moved = _ms(actor["heartbeat_age_ms"])
    life = actor["state"], actor["pid"] or None, max(0, actor["restarts"])
    return actor["name"], *life, moved, *place


def _table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> list[str]:
    layout = lay_out(columns, rows, None)
    return [layout.head(), *(line for row in rows for line in layout.row(cells_of(row)))]


def _count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"


def _bytes(number: float | None) -> str:
    return UNKNOWN if number is None else shown_bytes(number)


def _ms(ms: float | None) -> str:
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{ms:.3g} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"
