"""Who are you? The first words between a client and whoever listens at an endpoint, as a codec.

    client -> Greet       which protocol I speak
    broker -> Greeted     which one I speak, whom I serve here, where the others go, on which store

Both endpoints answer it. These two messages stay as they are in every version of the protocol, so
that two versions can tell each other so: fields are only ever added behind the last one, and what
is behind the last one that is known is left alone. This file knows no sockets.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

# What must be equal on both sides: shared/wire/messages.py, the rings, and the layout of records.
PROTOCOL = 1

Serves = Literal["producers", "consumers"]


class Greet(msgspec.Struct, frozen=True, tag="Greet", array_like=True):
    """A client that speaks this protocol asks who is there."""

    protocol: int


class Greeted(msgspec.Struct, frozen=True, tag="Greeted", array_like=True):
    """A broker: the `run_id` of its run on `store`, and both of its TCP endpoints.

    It listens on the endpoints in its own words: 0.0.0.0 is no address for a client. Path, pid and
    run are those of the broker's machine.
    """

    protocol: int
    version: str
    serves: str
    produce: str
    consume: str
    run_id: str
    store: str
    pid: int


_encoder = msgspec.msgpack.Encoder()
_Form = TypeVar("_Form")

_GREET: msgspec.msgpack.Decoder[Greet] = msgspec.msgpack.Decoder(Greet)
_GREETED: msgspec.msgpack.Decoder[Greeted] = msgspec.msgpack.Decoder(Greeted)


def encode(message: Greet | Greeted) -> bytes:
    return _encoder.encode(message)


def decode_greet(header: bytes) -> Greet | None:
    """The question; None for anything else."""
    return _decode(_GREET, header)


def decode_greeted(header: bytes) -> Greeted | None:
    """The answer; None for anything else."""
    return _decode(_GREETED, header)


def _decode(decoder: msgspec.msgpack.Decoder[_Form], header: bytes) -> _Form | None:
    try:
        return decoder.decode(header)
    # besides its own errors msgspec lets UnicodeDecodeError and RecursionError through
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
