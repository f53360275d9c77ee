"""Errors without tracebacks, for the authors of queries: Spark would show the traceback first.

An error of Penstock's says what happened, with what, and what to do, so its traceback is removed.
All other errors are unforeseen and keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.shared.errors import PenstockError

P = ParamSpec("P")
Result = TypeVar("Result")


def plainly(call: Callable[P, Result]) -> Callable[P, Result]:
    """Wrap a function that Spark calls, so that it raises such errors."""

    @wraps(call)
    def told(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return told


def rows_plainly(call: Callable[P, Iterator[Result]]) -> Callable[P, Iterator[Result]]:
    """Like `plainly`, for a generator whose rows are made while Spark takes them."""

    @wraps(call)
    def told(*args: P.args, **kwargs: P.kwargs) -> Iterator[Result]:
        try:
            yield from call(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return told
