"""The messages between a program, its launcher and its brokers. A codec, without sockets.

program -> launcher    Launch, with one end of the broker's channel, and a file for its log
broker  -> program     Ready or Failed, on the channel
program -> broker      nothing: the end of the channel says that the program no longer needs it
launcher -> program    nothing: the end of the channel says that nothing of the broker is left
"""

from __future__ import annotations

import msgspec

from penstock import errors
from penstock.shared.errors import PenstockError


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start a broker."""

    flags: dict[str, str | int | bool]  # keys of the configuration
    environment: dict[str, str]
    temporary: str = ""  # a directory that is removed with the broker


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The broker serves; `pid` is its supervisor's. With `damaged` it takes no messages."""

    pid: int
    endpoints: dict[str, str]
    damaged: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The broker did not start: the error as it was raised."""

    error: str  # its class
    what: str
    value: str
    hint: str
    status: str


def failure(error: PenstockError) -> Failed:
    """The message that reports an error to the program."""
    value = "" if error.value is None else str(error.value)
    return Failed(type(error).__name__, error.what, value, error.hint, error.status)


def as_error(failed: Failed) -> PenstockError:
    """The error as an exception; a class that users do not know becomes PenstockError."""
    kind = getattr(errors, failed.error, PenstockError)
    found: PenstockError = kind(failed.what, failed.value or None, failed.hint, failed.status)
    return found
