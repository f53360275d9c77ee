"""penstock/groups: changes of consumer groups since config/consumerOffset.json. Two codecs.

    "PSGROUP1", then blocks: length (u32), CRC-32 of the entries (u32), entries as MessagePack
    the first entry is a Head; each later one replaces what an earlier one said of the same thing

A block is written with one call before any request in it is answered. So it outlives any kill of
processes, and no request in a block that a crash has cut was answered. The Head names the file of
offsets by its digest, and so does a Saving before that file is replaced. If the file on disk has no
such digest, another broker has used the store since, and the file counts.

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
# A length above this means damage. One entry is no longer than a request, which has 1 MiB at most.
MAX_BLOCK_BYTES = 64 << 20


class Head(msgspec.Struct, frozen=True, array_like=True, tag="head"):
    """`digests` are those of the file of offsets and its copy; epochs below `next_epoch` are used.

    `heartbeat_ms` is the longest interval at which members were told to show up. Times in other
    entries count from the machine's start, which `boot` names.
    """

    digests: tuple[str, ...]
    next_epoch: int
    heartbeat_ms: int = 0
    boot: str = ""


class Saving(msgspec.Struct, frozen=True, array_like=True, tag="saving"):
    """The file of offsets is about to be replaced by one with this digest."""

    digest: str


class Row(msgspec.Struct, frozen=True, array_like=True, tag="row"):
    """A queue of a group as it is now. -1: no offset; epoch 0: no claim yet; "": no owner.
    `is_moved`: an operator has set the offset, and no claim has committed since."""

    group: str
    topic: str
    queue_id: int
    offset: int
    epoch: int
    owner: str
    is_moved: bool = False


class MemberRow(msgspec.Struct, frozen=True, array_like=True, tag="member"):
    """A member as it joined. `unheard_ms` is when its silence began, by the first coordinator that
    has not heard it; 0: it was heard. For a `carried` member a gateway speaks."""

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
    """A member that has gone; without a `client_id` the whole group with its offsets. Until
    `keep_ms` nobody else may have its queues; 0: they are free."""

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
    """One block, which is read whole or not at all; several where one would be too long."""
    payload = _encoder.encode(entries)
    if len(payload) > MAX_BLOCK_BYTES:
        half = len(entries) // 2
        return encode_blocks(entries[:half]) + encode_blocks(entries[half:])
    return _BLOCK.pack(len(payload), zlib.crc32(payload)) + payload


def encode_journal(head: Head, entries: Iterable[Entry]) -> bytes:
    """A whole file."""
    return MAGIC + encode_blocks([head]) + encode_blocks(list(entries))


def decode_journal(raw: bytes) -> tuple[list[Entry], int]:
    """The entries of all whole blocks, and the length of these and of what stands before them.

    The bytes of another file have no entries: ([], 0). Raises nothing.
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
        # perhaps of another version: handled like a block that is not whole
        except (msgspec.MsgspecError, ValueError, RecursionError):
            break
        at += _BLOCK.size + length
    if not found or not isinstance(found[0], Head):
        return [], 0
    return found, at
