"""The two ids of a message, as upper-case hex text.

offsetMsgId: store host (ip, port i32), physical offset i64: 32 characters, 56 with IPv6.
UNIQ_KEY:    client ip, pid (2 bytes), a constant of the process (4), ms since the month began (4),
             a counter (2). To the store it is an opaque string.
"""

from __future__ import annotations

import os
import struct
import time
from typing import NamedTuple

from penstock.shared.errors import InvalidArgument


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id in the broker's answer; it says where the message is."""
    return (store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def parse_message_id(text: str) -> tuple[bytes, int]:
    """(store host, physical offset) of an offsetMsgId. Raises InvalidArgument."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    # fromhex skips spaces, so the text's length has to match, too
    if len(raw) not in (16, 28) or len(text) != 2 * len(raw):
        raise InvalidArgument(
            "this is no message id",
            repr(text[:80]),
            "one is 32 or 56 hex digits, as penstock produce -o json prints it",
        )
    return raw[:-8], int.from_bytes(raw[-8:], "big")


class KeyOrigin(NamedTuple):
    """What all UNIQ_KEYs of one client have in common."""

    prefix: str
    month_start_ms: int


def key_origin(ip: bytes, now_ms: int) -> KeyOrigin:
    """The origin of a new client. RocketMQ's constant of the process is random here, so that two
    clients never make the same key: two clients in one process share its pid, and two containers
    with one address may have equal pids.
    """
    prefix = ip + struct.pack(">H", os.getpid() & 0xFFFF) + os.urandom(4)
    return KeyOrigin(prefix.hex().upper(), _month_start_ms(now_ms))


def key_number(origin: KeyOrigin, now_ms: int, count: int) -> int:
    """The number of a UNIQ_KEY: its creation time and a 16-bit counter, so up to 65,536 keys per
    millisecond are distinct.
    """
    return (now_ms - origin.month_start_ms) << 16 | count & 0xFFFF


def make_unique_key(origin: KeyOrigin, number: int) -> str:
    """The UNIQ_KEY with this number."""
    return f"{origin.prefix}{number >> 16 & 0xFFFFFFFF:08X}{number & 0xFFFF:04X}"


def sent_ms(origin: KeyOrigin, number: int) -> int:
    """When the message with this number in its key was sent."""
    return origin.month_start_ms + (number >> 16)


def _month_start_ms(now_ms: int) -> int:
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
