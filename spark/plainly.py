"""Errors for those who wrote the query: what Spark shows of one begins with its traceback.

An error of Penstock's says what happened, with what, and what to do, so the files through which it
came are left away. All others, which nobody has foreseen, keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.shared.errors import PenstockError

P = ParamSpec("P")
Result = TypeVar("Result")


def plainly(call: Callable[P, Result]) -> Callable[P, Result]:
    """What Spark calls, with such errors."""

    @wraps(call)
    def told(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return told


def rows_plainly(call: Callable[P, Iterator[Result]]) -> Callable[P, Iterator[Result]]:
    """The same of a call whose rows are made while Spark takes them."""

    @wraps(call)
    def told(*args: P.args, **kwargs: P.kwargs) -> Iterator[Result]:
        try:
            yield from call(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return told
