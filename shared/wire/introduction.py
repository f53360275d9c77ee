"""The first words between a client and whatever listens at an endpoint, as a codec.

    client -> Greet       which protocol I speak
    broker -> Greeted     which one I speak, whom I serve here, where the others go, on which store

Every endpoint answers Greet. These two messages keep their form in every version of the protocol,
so that two versions that cannot talk can at least say so: fields are only ever appended, and a
reader ignores those past the last one that it knows.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

# Counts the versions of what both sides must agree on: shared/wire/messages.py, rings, and records.
PROTOCOL = 2

Serves = Literal["producers", "consumers", "members", "transactions"]
# The field of Greeted and of run.json with the endpoint for each kind of client.
ENDPOINT_OF: dict[Serves, str] = {
    "producers": "produce",
    "consumers": "consume",
    "members": "group",
    "transactions": "transaction",
}


class Greet(msgspec.Struct, frozen=True, tag="Greet", array_like=True):
    """A client of this protocol asks what is there."""

    protocol: int


class Greeted(msgspec.Struct, frozen=True, tag="Greeted", array_like=True):
    """A broker: the `run_id` of its run on `store`, and its TCP endpoints.

    The endpoints are those on which it listens, as configured: 0.0.0.0 in one is not an address for
    a client, see `endpoint.at_port`. One is "" where nobody serves it. Path and pid mean something
    only on the broker's machine.
    """

    protocol: int
    version: str
    serves: str
    produce: str
    consume: str
    run_id: str
    store: str
    pid: int
    group: str = ""
    transaction: str = ""


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
    # besides its own errors msgspec raises UnicodeDecodeError and RecursionError
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
