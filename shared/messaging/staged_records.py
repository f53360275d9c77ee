"""Records that are made before they are stored in their topics, and the form in which they wait.

    messages of STAGING_TOPIC, whose bodies together are   store host bytes | CRC? | runs | records

A Spark task stages them, and a frame names them later (see `Append` in wire/messages.py). Pure
functions. What is staged comes from outside, so it is checked strictly; its records are checked
where they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.record_layout import Shape

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Records(NamedTuple):
    """Whole records, in which what the broker stamps is blank."""

    shape: Shape
    # topic, queue id, and number of records, in order
    runs: Sequence[tuple[str, int, int]]
    payload: memoryview

    @property
    def total(self) -> int:
        return sum(count for _, _, count in self.runs)


class _Staged(msgspec.Struct, frozen=True, array_like=True):
    """The fields of Records."""

    store_host_bytes: Literal[8, 20]
    prop_crc: bool
    runs: list[tuple[str, _Count, _Count]]
    payload: memoryview


_DECODER = msgspec.msgpack.Decoder(_Staged)


def encode_records(records: Records) -> bytes:
    """The bytes that are staged."""
    return msgspec.msgpack.encode((*records.shape, records.runs, records.payload))


def decode_records(raw: bytes | memoryview) -> Records:
    """What `raw` has, as a view of it. Raises InvalidMessage."""
    try:
        staged = _DECODER.decode(raw)
    # besides its own errors msgspec raises UnicodeDecodeError and RecursionError
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidMessage("what was staged cannot be read", error) from error
    return Records(Shape(staged.store_host_bytes, staged.prop_crc), staged.runs, staged.payload)
