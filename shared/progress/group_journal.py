"""penstock/groups: what of consumer groups is newer than config/consumerOffset.json. Two codecs.

    "PSGROUP1", then blocks: length (u32), CRC-32 of the entries (u32), entries as MessagePack
    the first entry is a Head; each later one replaces what an earlier one said of the same thing

A block is written with one call before anything of it is answered. So it outlives any kill of
processes, and a block that a crash has cut short is of no answered request. The Head names the
offsets' file by its digest, and a Saving does before that file is replaced: where the file on disk
is not one of those, another broker has used the store since, and what it says counts.

Codecs without I/O, and without a clock.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from penstock.shared.wire.group_messages import Model, StartRule, SubscriptionData

MAGIC = b"PSGROUP1"
_BLOCK = struct.Struct(">II")
# A length above it is no block's. One entry is no longer than a request, of 1 MiB at most.
MAX_BLOCK_BYTES = 64 << 20


class Head(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    """`digests` are those of the offsets' file and of its copy; epochs below `next_epoch` are used.

    `heartbeat_ms` is how often members were told to show up, at most. Times of other entries count
    from when the machine was started: `boot` names that start.
    """

    digests: tuple[str, ...]
    next_epoch: int
    heartbeat_ms: int = 0
    boot: str = ""


class Saving(msgspec.Struct, frozen=True, array_like=True, tag="saving"):
    """The offsets' file is about to be replaced by one of this digest."""

    digest: str


class Row(msgspec.Struct, frozen=True, array_like=True, tag="row"):
    """A queue of a group as it is now. -1: no offset; epoch 0: no claim yet; "": no owner. With
    `is_moved` an operator has set the offset, and no claim has committed since."""

    group: str
    topic: str
    queue_id: int
    offset: int
    epoch: int
    owner: str
    is_moved: bool = False


class MemberRow(msgspec.Struct, frozen=True, array_like=True, tag="member"):
    """A member as it joined. `unheard_ms` is since when nobody has heard it: since the first
    coordinator that did not; 0: it was heard. For one that is `carried` a gateway speaks."""

    group: str
    client_id: str
    subscriptions: tuple[SubscriptionData, ...]
    session_timeout_ms: int
    model: Model
    start: StartRule
    start_timestamp_ms: int
    orderly: bool
    unheard_ms: int = 0
    carried: bool = False


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """A member that has gone; with no `client_id` the whole group and its offsets. Until `keep_ms`
    nobody else may have its queues; 0: they are free."""

    group: str
    client_id: str = ""
    keep_ms: int = 0


class TopicGone(msgspec.Struct, frozen=True, array_like=True, tag="topic"):
    """A topic that was deleted: no group has an offset of it."""

    topic: str


Entry = Head | Saving | Row | MemberRow | Gone | TopicGone

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Entry]] = msgspec.msgpack.Decoder(list[Entry])


def encode_blocks(entries: Sequence[Entry]) -> bytes:
    """One block, which is read whole or not at all; more of them where one would be too long."""
    payload = _encoder.encode(entries)
    if len(payload) > MAX_BLOCK_BYTES:
        half = len(entries) // 2
        return encode_blocks(entries[:half]) + encode_blocks(entries[half:])
    return _BLOCK.pack(len(payload), zlib.crc32(payload)) + payload


def encode_journal(head: Head, entries: Iterable[Entry]) -> bytes:
    """A whole file."""
    return MAGIC + encode_blocks([head]) + encode_blocks(list(entries))


def decode_journal(raw: bytes) -> tuple[list[Entry], int]:
    """The entries of all whole blocks, and how many bytes these have with what stands before them.

    Bytes of another file are no entries: ([], 0). Raises nothing.
    """
    if not raw.startswith(MAGIC):
        return [], 0
    found: list[Entry] = []
    at = len(MAGIC)
    while at + _BLOCK.size <= len(raw):
        length, crc = _BLOCK.unpack_from(raw, at)
        payload = raw[at + _BLOCK.size : at + _BLOCK.size + length]
        if length > MAX_BLOCK_BYTES or len(payload) < length or zlib.crc32(payload) != crc:
            break
        try:
            found += _decoder.decode(payload)
        # of another version, perhaps: like a block that is not whole
        except (msgspec.MsgspecError, ValueError, RecursionError):
            break
        at += _BLOCK.size + length
    if not found or not isinstance(found[0], Head):
        return [], 0
    return found, at
