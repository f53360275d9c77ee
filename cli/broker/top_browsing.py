"""Where the user of `penstock top` is, and what a key does there.

Another view's key leaves a view, and Esc goes back. What is typed after `/` becomes words of the
same view, so everything that the page's forms ask can be asked here.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.cli.broker import top_views as views
from penstock.cli.broker.top_pipeline import pipeline
from penstock.cli.broker.top_views import Place, Row, Shown

FORMS = ("json", "text", "hex")


class View(NamedTuple):
    # the name of the page's route
    look: str
    show: Callable[[Any, Any], Shown]
    key: str = ""
    # what `/` asks for; a form of words if it can ask for several
    asks: str = ""
    orders: tuple[str, ...] = ()
    more: str = ""


_WORDS = "topic=T key=K, topic=T queue=Q offset=O, topic=T time=MS, id=I"
VIEWS = {
    "pipeline": View("overview", pipeline, "1", more="K kill"),
    "topics": View("topics", views.topics, "2", "search", ("name", "messages"), "a all"),
    "groups": View("groups", views.groups, "3", "search", ("name", "lag")),
    "message": View("message", views.message, "4", _WORDS, more="f form"),
    "dead-letters": View("dead-letters", views.dead_letters, "5", "search"),
    "files": View("files", views.files, "6"),
    "recoveries": View("recoveries", views.recoveries, "7"),
    "history": View("history", views.history, "8"),
    "topic": View("topic", views.topic, asks="search"),
    "group": View("group", views.group, asks="search", orders=("name", "lag")),
    "messages": View("messages", views.messages, asks="offset"),
}
_BY_KEY = {view.key: name for name, view in VIEWS.items() if view.key}

# What terminals send for keys other than letters.
_SEQUENCES = {
    **{"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"},
    **{"\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left"},
    **{"\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[F": "end"},
}
_SINGLE = {"\r": "enter", "\n": "enter", "\x7f": "erase", "\b": "erase", "\x1b": "escape"}


def keys_of(text: str) -> Iterator[str]:
    """The keys in what came at once; unknown ones are skipped."""
    while text:
        size = next((size for size in (4, 3) if text[:size] in _SEQUENCES), 0)
        if size:
            yield _SEQUENCES[text[:size]]
        elif text[:2] == "\x1b[":
            size = next((at + 1 for at, c in enumerate(text[2:], 2) if "@" <= c <= "~"), len(text))
        else:
            size = 1
            yield _SINGLE.get(text[0], text[0])
        text = text[size:]


def _kill(pid: int) -> None:
    """Kill it like a crash: the supervisor replaces it, and the successor goes on where it was."""
    with suppress(ProcessLookupError):  # it may have just ended by itself
        os.kill(pid, signal.SIGKILL)


class Browsing:
    """The present view, what is chosen in it, and what is being typed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.row = 0
        # the text typed after `/`; None while nothing is typed
        self.typed: str | None = None
        self.wrong = ""
        # an actor to kill once the user confirms
        self.doomed: Row | None = None
        self._came_from: list[tuple[Place, int]] = []

    def press(
        self, key: str, shown: Shown, page_lines: int, kill: Callable[[int], None] = _kill
    ) -> bool:
        """Handle a key. Returns whether to go on."""
        self.wrong = ""
        if self.doomed is not None:
            doomed, self.doomed = self.doomed, None
            if key == "y":
                kill(doomed.pid)
        elif self.typed is not None:
            self._type(key)
        elif key in ("q", "Q"):
            return False
        elif not self._move(key, shown, page_lines):
            self._change(key, shown)
        return True

    def _move(self, key: str, shown: Shown, page_lines: int) -> bool:
        whole = len(shown.rows)
        steps = {
            **{"up": -1, "k": -1, "page up": -page_lines, "home": -whole},
            **{"down": 1, "j": 1, "page down": page_lines, " ": page_lines, "end": whole},
        }
        if key not in steps:
            return False
        self.row = max(0, min(whole - 1, self.row + steps[key]))
        return True

    def _change(self, key: str, shown: Shown) -> None:
        view, words = VIEWS[self.place.view], dict(self.place.words)
        if key in _BY_KEY:
            self._go(Place(_BY_KEY[key]))
        elif key == "enter" and shown.rows and (leads_to := shown.rows[self.row].leads_to):
            self._go(leads_to)
        elif key in ("escape", "erase") and self._came_from:
            self.place, self.row = self._came_from.pop()
        elif key in ("n", "right") and shown.page < shown.pages:
            self._again(page=str(shown.page + 1))
        elif key in ("p", "left") and shown.page > 1:
            self._again(page=str(shown.page - 1))
        elif key == "o" and view.orders:
            now = words.get("order", "name")
            self._again(order=_after(view.orders, now), page=None)
        elif key == "a" and "all" in view.more:
            self._again(all=None if "all" in words else "1", page=None)
        elif key == "f" and "form" in view.more:
            self._again(form=_after(FORMS, words.get("form", FORMS[0])))
        elif key == "K" and shown.rows and shown.rows[self.row].pid:
            self.doomed = shown.rows[self.row]
        elif key == "/" and view.asks:
            self.typed = ""

    def _go(self, to: Place) -> None:
        if to != self.place:
            self._came_from.append((self.place, self.row))
        self.place, self.row = to, 0

    def _again(self, **changed: str | None) -> None:
        self.place, self.row = self.place.but(**changed), 0

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key == "enter":
            typed, self.typed = self.typed, None
            self._ask(typed.strip())
        elif key == "escape":
            self.typed = None
        elif key == "erase":
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def _ask(self, typed: str) -> None:
        word = VIEWS[self.place.view].asks
        if "=" not in word:
            self._again(page=None, **{word: typed or None})
            return
        try:
            self._go(Place(self.place.view, words_of(shlex.split(typed))))
        except ValueError as error:
            self.wrong = str(error)

    def bar(self, width: int) -> str:
        """The last line: the typed text, or the available keys."""
        view = VIEWS[self.place.view]
        if self.typed is not None:
            line = f"{view.asks}: {self.typed}_"
            return line if len(line) <= width else "..." + line[len(line) - width + 3 :]
        if self.doomed is not None:
            name = self.doomed.cells[0]
            return f"kill -9 {self.doomed.pid}, the {name}? y does it, any other key does not"
        if self.wrong:
            return self.wrong
        here = ["Esc back"] if self._came_from else []
        here += [f"/ {'ask' if '=' in view.asks else view.asks}"] if view.asks else []
        here += ["o order"] if view.orders else []
        here += [view.more] if view.more else []
        ways = " ".join(f"{each.key} {name}" for name, each in VIEWS.items() if each.key)
        return "  ".join((*here, ways))


def words_of(given: list[str]) -> tuple[tuple[str, str], ...]:
    """Words as KEY=VALUE. Raises ValueError."""
    pairs = [word.partition("=") for word in given]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise ValueError(f"{name or equals!r} is not KEY=VALUE, such as topic=orders")
    return tuple((name, value) for name, _, value in pairs)


def _after(choices: tuple[str, ...], now: str) -> str:
    return choices[(choices.index(now) + 1) % len(choices)] if now in choices else choices[0]
