"""What producers of transactions and the transactions actor say to each other, as structs.

    producer -> RegisterProducer    answer Registered; repeated each `heartbeat_ms`
    producer -> EndTransaction      answer Ended, once it is durable
    actor -> CheckTransaction       pushed with the half message's record: how did it end?

The half message itself goes to the log like any message, through the produce endpoint. Its receipt
has the two offsets that name it here. For encoding and errors see messages.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from penstock.shared.wire.messages import Number, Refused, WireMessage, decode_header

# Limit of a group's or a client's name, in characters.
MOST_NAME = 255
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)]
Outcome = Literal["commit", "rollback", "unknown"]


class RegisterProducer(WireMessage, frozen=True):
    """I am alive, and can say how transactions of this group ended."""

    request: Number
    group: Name
    client_id: Name
    run: str = ""


class EndTransaction(WireMessage, frozen=True):
    """How a transaction ended. Repeating it is safe: it takes effect once.

    `queue_offset` is the half message's in the half topic, `physical_offset` its place in the log.
    An empty `unique_key` is not compared.
    """

    request: Number
    group: Name
    unique_key: str
    queue_offset: Number
    physical_offset: Number
    outcome: Outcome
    from_check: bool = False
    run: str = ""


class Registered(WireMessage, frozen=True):
    request: int
    group: str
    heartbeat_ms: int


class Ended(WireMessage, frozen=True):
    """It is done and durable. `outcome` is how it ended, which may have been decided earlier; for a
    commit, the other fields are the receipt of the visible message."""

    request: int
    outcome: str
    queue_id: int = -1
    queue_offset: int = -1
    physical_offset: int = -1


class CheckTransaction(WireMessage, frozen=True):
    """Pushed. Answered with an EndTransaction that has `from_check` and these offsets."""

    request: int  # always 0
    group: str
    unique_key: str
    queue_offset: int
    physical_offset: int


TransactionRequest = RegisterProducer | EndTransaction
TransactionAnswer = Registered | Ended | CheckTransaction | Refused

_REQUEST: msgspec.msgpack.Decoder[TransactionRequest] = msgspec.msgpack.Decoder(TransactionRequest)
_ANSWER: msgspec.msgpack.Decoder[TransactionAnswer] = msgspec.msgpack.Decoder(TransactionAnswer)


def decode_transaction_request(header: bytes) -> TransactionRequest:
    """Raises ProtocolError."""
    return decode_header(_REQUEST, header)


def decode_transaction_answer(header: bytes) -> TransactionAnswer:
    """Raises ProtocolError."""
    return decode_header(_ANSWER, header)
