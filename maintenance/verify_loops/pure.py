"""The check of usual records, in Python: the reference of `compiled`, and what runs without it.

It shares nothing with the code that writes stores. Where a record's fields are, what its queue
entry and its index items must say, and Java's hash are written here a second time, so that a
mistake in either place shows. CRC-32 is zlib's here and Intel's in `compiled`; the broker's loops
use Intel's in Python, and their own when compiled.

Anything unusual ends a walk: filler, zeros, damage, inner batches. The caller handles that with
`scan`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

# Which checksums are compared: of bodies, of whole records that have one, or both. OWN alone
# compares a body if the record has none of its own, and counts that.
BODY, OWN = 1, 2
# queue, its offset, log offset, size, code of the entry, hash of UNIQ_KEY or 0, store time in ms
ROW_NUMBERS = 7

# Only these fields are read: size, magic, body's CRC, queue id, queue offset, log offset, flags;
# the store time, here for an IPv4 born host; and the length just before the body.
_HEAD, _STORED, _LENGTH = struct.Struct(">iIii4xqqi"), struct.Struct(">q"), struct.Struct(">i")
_STORED_AT, _BODY_AT, _LEAST = 56, 88, 91
_TOPIC_LENGTH_BYTES = {0xDAA320A7: 1, 0xDAA320AB: 2}
_BORN_V6, _STORE_V6, _V6_MORE = 0x10, 0x20, 12
_TRANSACTION, _PREPARED, _ROLLED_BACK, _INNER_BATCH = 0xC, 0x4, 0xC, 0x80
_MOST_SLOTS, _LONGEST_TOPIC = 1 << 58, 255
_LETTERS = b"%|-_.:0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OWN_LEAD, _OWN_BYTES = b"__CRC32#\x01", 20
_WANTED = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY")
_DELAYED = b"SCHEDULE_TOPIC_XXXX"
_ITEM = struct.Struct(">i16x")
_ODD, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Checked(NamedTuple):
    """What records say, as 64-bit numbers: `rows` has ROW_NUMBERS for each, with queue -1 for one
    that is in no queue; `items` has hash and log offset for each key of the index.

    The records take `stop` bytes. It `is_cut` if the window may end within the next record.
    """

    stop: int
    is_cut: bool
    without_crc: int
    rows: bytes
    items: bytes


def check(
    window: memoryview,
    position: int,
    limit: int,
    checksums: int,
    levels_ms: array[int],
    queues: dict[bytes, int],
    keyed: bool,
) -> Checked:
    """Check the whole records at the beginning of `window`, which stands at log offset `position`:
    those that begin in its first `limit` bytes.

    `queues` maps a queue's topic and its id, in four bytes, to its number, and gets new queues.
    `levels_ms` are the delays of the levels. Items are made only if it is `keyed`.
    """
    at, without_crc, is_cut = 0, 0, False
    rows, items = array("q"), array("q")
    while at < limit:
        size, is_cut = _size_of(window, at, position)
        if not size:
            break
        record = bytes(window[at : at + size])
        _, magic, crc, queue_id, slot, _, flags = _HEAD.unpack_from(record)
        parts = _parts(record, _TOPIC_LENGTH_BYTES[magic], flags)
        if parts is None or flags & _INNER_BATCH or queue_id < 0 or not 0 <= slot < _MOST_SLOTS:
            break
        stored_ms, body, topic, properties = parts
        has_own = _has_own(record)
        if not _is_topic(topic):
            break
        if not _holds(record, body, crc, checksums, has_own, properties):
            break
        values = _values(properties)
        without_crc += checksums == OWN and not has_own
        kind = flags & _TRANSACTION
        number = -1
        if kind not in (_PREPARED, _ROLLED_BACK):
            number = queues.setdefault(topic + record[12:16], len(queues))
        code = tags_code(values.get(b"TAGS", b""))
        if topic == _DELAYED:
            code = _due_ms(values.get(b"DELAY", b""), stored_ms, code, levels_ms)
        unique_key = values.get(b"UNIQ_KEY", b"")
        place = position + at
        rows.extend((number, slot, place, size, code, key_hash(unique_key), stored_ms))
        if keyed and kind != _ROLLED_BACK:
            items.extend(index_items(topic, unique_key, values.get(b"KEYS", b""), place))
        at += size
    return Checked(at, is_cut, without_crc, rows.tobytes(), items.tobytes())


def _size_of(window: memoryview, at: int, position: int) -> tuple[int, bool]:
    """The size of the record there, 0 if no whole one is in the window; and whether a record may
    extend past the window's end."""
    left = len(window) - at
    if left < _LEAST:
        return 0, True
    size, magic, _, _, _, own_position, _ = _HEAD.unpack_from(window, at)
    # a copy of a record in a body names another place
    if magic not in _TOPIC_LENGTH_BYTES or own_position != position + at or size < _LEAST:
        return 0, False
    return (size, False) if size <= left else (0, True)


def _parts(record: bytes, lead: int, flags: int) -> tuple[int, bytes, bytes, bytes] | None:
    """Store time, body, topic and properties; None if the lengths do not fit the record. `lead` is
    the size of the topic's length in bytes."""
    born_more = _V6_MORE if flags & _BORN_V6 else 0
    body_at = _BODY_AT + born_more + (_V6_MORE if flags & _STORE_V6 else 0)
    topic_at = body_at + lead
    if topic_at + 2 > len(record):
        return None
    body_bytes = int.from_bytes(record[body_at - 4 : body_at], signed=True)
    topic_at += body_bytes
    if body_bytes < 0 or topic_at + 2 > len(record):
        return None
    topic_bytes = int.from_bytes(record[topic_at - lead : topic_at], signed=True)
    properties_at = topic_at + topic_bytes + 2
    if topic_bytes < 0 or properties_at > len(record):
        return None
    if properties_at + int.from_bytes(record[properties_at - 2 : properties_at]) != len(record):
        return None
    if record[properties_at - 2] > 0x7F:  # lengths are signed, so it is negative
        return None
    (stored_ms,) = _STORED.unpack_from(record, _STORED_AT + born_more)
    return (
        stored_ms,
        record[body_at : topic_at - lead],
        record[topic_at : properties_at - 2],
        record[properties_at:],
    )


def _values(properties: bytes) -> dict[bytes, bytes]:
    """The wanted properties. If one comes twice, the last one that has a value counts."""
    found = {}
    for each in properties.split(b"\x02"):
        name, _, value = each.partition(b"\x01")
        if value and name in _WANTED:
            found[name] = value
    return found


def _is_topic(topic: bytes) -> bool:
    is_short = 0 < len(topic) <= _LONGEST_TOPIC
    return is_short and topic not in (b".", b"..") and not topic.translate(None, _LETTERS)


def _has_own(record: bytes) -> bool:
    return record.startswith(_OWN_LEAD, len(record) - _OWN_BYTES) and record[-1] == 2


def _holds(
    record: bytes, body: bytes, crc: int, checksums: int, has_own: bool, properties: bytes
) -> bool:
    if checksums == OWN and not has_own and properties.endswith(b"\0"):
        return False  # a torn write has left zeros instead of the checksum
    # the checksum of an empty body does not count
    is_compared = body and (checksums & BODY or checksums and not has_own)
    if is_compared and crc32(body) & 0x7FFFFFFF != crc:
        return False
    if checksums & OWN and has_own:
        digits = b"%010d" % (crc32(record[:-_OWN_BYTES]) & 0x7FFFFFFF)
        return record[-11:-1] == digits[::-1]
    return True


def java_hash(text: bytes, code: int = 0) -> int:
    """Java's String.hashCode, as an unsigned number, continued from `code` with this UTF-8 text.
    Bytes that are not UTF-8 count as U+FFFD, as in Java."""
    units: Iterable[int] = text
    if not text.isascii():
        raw = text.decode("utf-8", "replace").encode("utf-16-be")
        units = [high << 8 | low for high, low in zip(raw[::2], raw[1::2], strict=True)]
    for unit in units:
        code = 31 * code + unit
    return code & 0xFFFFFFFF


@lru_cache(maxsize=4096)
def _hash_before_key(topic: bytes) -> int:
    return java_hash(topic + b"#")


@lru_cache(maxsize=4096)  # tags recur
def tags_code(tags: bytes) -> int:
    """The code in an ordinary entry: the hash of the tags, 0 without them."""
    code = java_hash(tags)
    return code - (1 << 32) if code >> 31 else code


def _due_ms(level: bytes, stored_ms: int, code: int, levels_ms: array[int]) -> int:
    """An entry of the delay topic has the time when the message is due; without a level, `code`."""
    if not level.isdigit() or len(level) > 9 or int(level) == 0:
        return code
    due = stored_ms + levels_ms[min(int(level), len(levels_ms)) - 1]
    return (due + (1 << 63) & _WORD) - (1 << 63)  # overflows like a Java long


def index_items(topic: bytes, unique_key: bytes, keys: bytes, position: int) -> list[int]:
    """Hash and log offset of a record's items: for its UNIQ_KEY, then for each word of its KEYS."""
    found: list[int] = []
    for key in [unique_key, *keys.split(b" ")]:
        if key:
            code = java_hash(key, _hash_before_key(topic))
            # Java's absolute value, which -2**31 does not have
            found += (code if code < 1 << 31 else -code & 0x7FFFFFFF), position
    return found


def key_hash(key: bytes) -> int:
    """63 bits that recognise a repeated UNIQ_KEY; 0 for none.

    Each word is mixed into all of them: keys differ in a few digits, which must not cancel out.
    """
    if not key:
        return 0
    code, words = len(key), key.ljust(-len(key) // 8 * -8, b"\0")
    for (word,) in struct.iter_unpack("<Q", words):
        code = (code ^ word) * _ODD & _WORD
        code ^= code >> 32
    return code >> 1 or 1


def chain(items: bytes | memoryview, first: int, slots: array[int]) -> bytes:
    """The predecessor that each of an index file's items must name, as 32-bit numbers. Each slot
    gets the number of its last item.

    `first` is the number of the first item; `slots` has the newest item of each slot before it.
    """
    previous = array("i")
    for number, (code,) in enumerate(_ITEM.iter_unpack(items), first):
        slot = code % len(slots)
        previous.append(slots[slot])
        slots[slot] = number
    return previous.tobytes()
