"""In which request's name work is done: at once, and later when others have answered.

Whatever a client sends, it ends at most its own connection, however late it fails: a callback that
a request leaves for the answer of an actor, a disk or another client runs in its name as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.shared.errors import PenstockError

Then = Callable[[Any], None]
_Found = TypeVar("_Found")


class Serving:
    """Which request is at work."""

    def __init__(
        self, answer: Callable[[Call, Reply], None], fail: Callable[[Call, Exception], None]
    ) -> None:
        """`answer` gets refusals; `fail` gets bugs, and ends the connection."""
        self._answer, self._fail = answer, fail
        self._call: Call | None = None

    def do(self, call: Call, work: Callable[[], _Found]) -> _Found | None:
        """Do this in the name of a request; returns None if it was refused or has failed."""
        before, self._call = self._call, call
        try:
            return work()
        except PenstockError as error:
            self._answer(call, refusal(error))
        except Exception as error:
            self._fail(call, error)
        finally:
            self._call = before
        return None

    def later(self, then: Then) -> Then:
        """A callback for an answer that runs in the name of the request that is at work now."""
        call = self._call
        return then if call is None else lambda answer: self.do(call, partial(then, answer))
