"""What all messages between clients and the broker are made of: an array, and numbers in it."""

from __future__ import annotations

from typing import Annotated

import msgspec

# A number or count from a client. One may be added to it: an answer with number + 1 must still
# encode, and MessagePack ends at 64 bits.
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class WireMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all: an array on the wire, the type's name first."""
