"""Parts of the answer to a pull that are not messages of their own."""

from __future__ import annotations

import msgspec

from penstock.shared.wire.header import Number


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The next `ranges` ranges of the payload are in the log's segment that begins at `base`."""

    base: Number
    ranges: Number


class UnreadableQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue that cannot be read at the consumer's offset, and the words of the error."""

    queue_id: int
    what: str
    value: str
    hint: str
