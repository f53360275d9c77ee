"""The offsets of an exactly-once group, as records of the log: one topic, one queue.

    frame of a block:  begin | outputs ... | offsets         all in one frame
                       {"records": n}        {"group": g, "topics": {t: {"0": [from, to]}}}

The outputs are ordinary messages of any topics. Two records of OFFSETS_TOPIC around them make one
frame of the outputs and the offsets of their inputs. The last one moves the group's offsets: `to`
counts if the present value is `from`; otherwise the writer stores nothing of the frame. A power
failure may cut a frame that was not acknowledged yet. So the first record says how many records
belong together, itself included, and a start cuts a frame whose records are not all there. Without
outputs there is nothing to cut apart, and the offsets stand alone.

    from, to   NONE  there is no value; as `to` it ends one
    from       ANY   whatever it is: an operator's word

To RocketMQ both are messages like any other: KEYS is the group, TAGS says which of the two it is.
Pure functions. Bodies come from outside, so they are checked strictly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, check_group, is_stored_topic

BEGIN_TAG, MOVE_TAG = "begin", "offsets"
# The only queue: its order is the order in which offsets moved.
OFFSETS_QUEUE = 0

NONE, ANY = -1, -2
# Limits of one record: a block may have any number of inputs, but their queues must fit into these.
MAX_TOPICS, MAX_BODY_BYTES = 256, 256 << 10

_From = Annotated[int, msgspec.Meta(ge=ANY, lt=1 << 62)]
_To = Annotated[int, msgspec.Meta(ge=NONE, lt=1 << 62)]
_Queue = Annotated[int, msgspec.Meta(ge=0, lt=MAX_QUEUES_PER_TOPIC)]
_Queues = Annotated[
    dict[_Queue, tuple[_From, _To]],
    msgspec.Meta(min_length=1, max_length=MAX_QUEUES_PER_TOPIC),
]


class OffsetsMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group's offsets go from one value to another: topic -> queue -> (from, to)."""

    group: str
    topics: Annotated[dict[str, _Queues], msgspec.Meta(min_length=1, max_length=MAX_TOPICS)]


class _Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: Annotated[int, msgspec.Meta(ge=3, lt=1 << 31)]


_MOVE = msgspec.json.Decoder(OffsetsMove)
_BEGIN = msgspec.json.Decoder(_Begin)


def move_of(
    group: str, topics: Mapping[str, Mapping[int, tuple[int, int]]]
) -> tuple[bytes, dict[str, str]]:
    """Body and properties of a record that moves these offsets. Raises InvalidMessage."""
    body = msgspec.json.encode({"group": group, "topics": topics})
    decode_move(body)
    return body, {"TAGS": MOVE_TAG, "KEYS": group}


def begin_of(group: str, records: int) -> tuple[bytes, dict[str, str]]:
    """Body and properties of the record before a frame's outputs. `records` is the number of all
    records in the frame, 3 or more. Raises InvalidMessage."""
    body = msgspec.json.encode(_Begin(records))
    decode_begin(body)
    return body, {"TAGS": BEGIN_TAG, "KEYS": group}


def decode_move(body: bytes | memoryview) -> OffsetsMove:
    """The move in a record. Raises InvalidMessage for a body that is not exactly of this form."""
    if len(body) > MAX_BODY_BYTES:
        raise InvalidMessage(
            f"an offsets record is larger than {MAX_BODY_BYTES} bytes",
            len(body),
            "end a block more often, so that it has inputs of fewer queues",
        )
    try:
        move = _MOVE.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidMessage("the body is not that of an offsets record", error) from error
    try:
        check_group(move.group)
    except InvalidArgument as error:
        raise InvalidMessage("an offsets record names no group", repr(move.group[:80])) from error
    for topic in move.topics:
        if not is_stored_topic(topic):
            raise InvalidMessage("an offsets record names no topic", repr(topic[:80]))
    return move


def read_body(body: bytes | memoryview) -> OffsetsMove | None:
    """The move in a record of the topic; None if it begins a frame. Raises InvalidMessage.

    The body decides, not the tags, which any sender can choose.
    """
    try:
        return decode_move(body)
    except InvalidMessage:
        decode_begin(body)
        return None


def decode_begin(body: bytes | memoryview) -> int:
    """How many records the frame has, this one included. Raises InvalidMessage."""
    try:
        return _BEGIN.decode(body).records
    except msgspec.MsgspecError as error:
        raise InvalidMessage("the body is not that of a frame's begin", error) from error
