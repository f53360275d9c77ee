"""Arguments of a wrong type are found before anything is sent, and named. Pure.

A bool is not a number here, although it is one in Python. Anything else that implements __index__,
such as numpy's integers, is accepted as a whole number.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from penstock.shared.errors import InvalidArgument, InvalidMessage, PenstockError

_MOST_SHOWN = 60
# The longest time that may be given, 31 years: the calls that wait cannot count much further.
MOST_MS = 10**12
# More than any machine has, and still within what ZeroMQ accepts.
MOST_BODY_BYTES = 1 << 48
_Error = TypeVar("_Error", bound=PenstockError)


def wrong_type(
    kind: type[_Error], name: str, value: object, expected: str, hint: str = ""
) -> _Error:
    """The error for an argument that is not what was `expected`."""
    found = "None" if value is None else f"{type(value).__name__} {shown(value)}"
    return kind(f"{name} is not {expected}", found, hint)


def shown(value: object) -> str:
    """The value's repr, cut to a length that fits an error message."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def check_text(name: str, value: Any, kind: type[PenstockError] = InvalidArgument) -> str:
    """The text. Raises `kind`."""
    if not isinstance(value, str):
        raise wrong_type(kind, name, value, "a str")
    # a member of a str enum becomes its value
    return value if type(value) is str else str.__str__(value)


def check_bool(name: str, value: Any, kind: type[PenstockError] = InvalidArgument) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(kind, name, value, "True or False")
    return value


def check_whole(name: str, value: Any, kind: type[PenstockError] = InvalidArgument) -> int:
    """The whole number. Raises `kind`."""
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass  # it is not a number: the error below says so, as it does for a bool
    raise wrong_type(kind, name, value, "a whole number (int)")


def check_at_least(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number that is not less, and not above `most`. Raises InvalidArgument."""
    number = check_whole(name, value)
    if number < least:
        raise InvalidArgument(f"{name} is less than {least}", number)
    if most is not None and number > most:
        raise InvalidArgument(f"{name} is more than {most}", number)
    return number


def check_ms(name: str, value: Any, least: int = 1) -> int:
    """A time in ms. Raises InvalidArgument."""
    return check_at_least(name, value, least, MOST_MS)


def check_body_bytes(value: Any) -> int:
    """The limit of a decompressed body, in bytes. Raises InvalidArgument."""
    return check_at_least("max_body_bytes", value, 0, MOST_BODY_BYTES)


def check_queues(queues: Any, name: str = "queues") -> frozenset[int]:
    """Queue ids. Raises InvalidArgument."""
    if isinstance(queues, str | bytes | Mapping) or not isinstance(queues, Iterable):
        hint = f"pass a list of one: {name}=[...]"
        raise wrong_type(InvalidArgument, name, queues, "a list of whole numbers", hint)
    return frozenset(
        check_at_least(f"{name}[{place}]", queue, 0) for place, queue in enumerate(queues)
    )


def check_timeout(value: Any, name: str = "timeout") -> float | None:
    """Seconds to wait; None waits without limit. Raises InvalidArgument."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise wrong_type(InvalidArgument, name, value, "a number of seconds, or None")
    seconds = float(value)
    if math.isnan(seconds):
        raise InvalidArgument(f"{name} is not a number", seconds)
    return min(seconds, threading.TIMEOUT_MAX)


def check_keys(name: str, keys: Any) -> str:
    """The keys as they are stored, separated by blanks. Raises InvalidMessage."""
    if isinstance(keys, str):
        return check_text(name, keys)
    if not isinstance(keys, list | tuple | set | frozenset):
        expected = "a str, or a list, tuple or set of such"
        raise wrong_type(InvalidMessage, name, keys, expected)
    found = list(_single_keys(name, keys))
    return " ".join(sorted(found) if isinstance(keys, set | frozenset) else found)


def _single_keys(name: str, keys: Iterable[Any]) -> Iterable[str]:
    for number, key in enumerate(keys):
        one = check_text(f"{name}[{number}]", key, InvalidMessage)
        if not one:
            raise InvalidMessage(f"{name}[{number}] is empty", "''", "leave it out")
        if " " in one:
            raise InvalidMessage(
                f"{name}[{number}] has a blank in it, which separates keys",
                shown(one),
                "replace the blank, or pass both parts as keys of their own",
            )
        yield one
