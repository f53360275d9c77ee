"""The addresses and their answers. Every answer is made here, and no request changes anything.

A view's error is an answer too: its status, and what, value and hint as JSON, as a command with
`-o json` prints them. A bug of the monitor's own is answered with 500 and reported on the broker's
standard error: a page that fails is no reason for the process to end. A view that takes long is
made in slices, so that the actor beats and others are answered meanwhile.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from penstock.actors.monitor import exposition, overview
from penstock.actors.monitor.history import History
from penstock.actors.monitor.http_messages import HTML, JSON, Answer, Request, plain
from penstock.actors.monitor.looks import looks
from penstock.actors.monitor.reading import Reading, Steps
from penstock.shared.errors import (
    BrokerTimeout,
    GroupNotFound,
    InvalidArgument,
    InvalidMessage,
    MessageNotFound,
    PenstockError,
    QueueNotFound,
    TopicNotFound,
)

_PAGE = Path(__file__).parent / "page"
# The page's own files; no other name reaches the disk.
FILES = {
    "/": ("index.html", HTML),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_NOT_FOUND = (TopicNotFound, QueueNotFound, GroupNotFound, MessageNotFound)
_BAD = (InvalidArgument, InvalidMessage)

# How long a view goes on before others have a turn: a pause costs a cycle of the actor.
SLICE_MS = 20

Answering = Generator[None, None, Answer]


class Routes:
    """Answers requests about one run."""

    def __init__(self, reading: Reading, history: History, report: Callable[[str], None]) -> None:
        self._reading = reading
        self._history = history
        self._report = report
        self.requests: Callable[[], int] = lambda: 0
        self._looks = {f"/api/{name}": look for name, look in looks(reading, history).items()}
        self._others: dict[str, Callable[[], Answer]] = {
            "/metrics": self._metrics,
            "/health": lambda: self._state([]),
            "/ready": lambda: self._state(overview.refusals(reading)),
        }

    def answer(self, request: Request) -> Answering:
        """The answer, after any number of pauses."""
        try:
            if request.path in FILES:
                name, content_type = FILES[request.path]
                return Answer(200, content_type, (_PAGE / name).read_bytes(), "no-cache")
            if request.path in self._others:
                return self._others[request.path]()
            look = self._looks.get(request.path)
            if look is None:
                return plain(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            found = look(request.query)
            if isinstance(found, Generator):
                found = yield from self._in_slices(found)
            return _json(HTTPStatus.OK, found)
        except PenstockError as error:
            return _refused(error)
        except OSError as error:  # a file that has gone, or cannot be read
            found = {"code": "StoreUnavailable", "what": "a file cannot be read"}
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, found | {"value": str(error), "hint": ""})
        except Exception:
            self._report(f"{request.path} failed:\n{traceback.format_exc()}")
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "the monitor failed; its log says how")

    def _in_slices(self, steps: Steps) -> Steps:
        """Pass on a pause only after each slice, with as many steps as it has time for."""
        now_ms = self._reading.clock.monotonic_ms
        with closing(steps):
            until_ms = now_ms() + SLICE_MS
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    found: dict[str, Any] = end.value
                    return found
                if now_ms() >= until_ms:
                    yield
                    until_ms = now_ms() + SLICE_MS

    def _metrics(self) -> Answer:
        body = exposition.render(self._reading, self._history, self.requests())
        return Answer(HTTPStatus.OK, exposition.CONTENT_TYPE, body)

    def _state(self, refusals: list[str]) -> Answer:
        wrong = overview.problems(self._reading, self._reading.clock.monotonic_ms()) + refusals
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        return _json(status, {"ok": not wrong, "problems": wrong})


def _json(status: int, found: Any) -> Answer:
    return Answer(status, JSON, msgspec.json.encode(found))


def _refused(error: PenstockError) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, _NOT_FOUND):
        status = HTTPStatus.NOT_FOUND
    elif isinstance(error, _BAD):
        status = HTTPStatus.BAD_REQUEST
    elif isinstance(error, BrokerTimeout):
        status = HTTPStatus.GATEWAY_TIMEOUT
    value = None if error.value is None else str(error.value)
    found = {"code": error.status, "what": error.what, "value": value, "hint": error.hint}
    return _json(status, found)
