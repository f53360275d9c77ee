"""The properties string of a record: `key 0x01 value 0x02` for each entry, in UTF-8.

Order has no meaning; if a key comes twice its last value counts. RocketMQ 4.9.1 to 5.1.4 omit the
final 0x02, so the parser accepts both forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.record_crc import PROP_CRC

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"
# In a record that waits in one of RocketMQ's own topics: where it belongs.
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
# In a tombstone, which stands in the place of a lost message.
LOST = "PENSTOCK_LOST"
# A record without these bytes in its properties is not a tombstone; so they need not be decoded.
LOST_MARK = LOST.encode()

# A sender may not set these as properties of its own: the client sets them from its arguments.
RESERVED = frozenset({KEYS, TAGS, UNIQ_KEY, SHARDING_KEY, DELAY, WAIT, PROP_CRC})

MAX_DIGITS = 18
_BETWEEN = "\x01"
_END = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The string as bytes. Raises InvalidMessage for what the format cannot carry.

    Raises TypeError where a key or a value is not text.
    """
    parts = []
    for key, value in properties.items():
        if type(key) is not str or type(value) is not str:
            key, value = str.__str__(key), str.__str__(value)  # an enum's member is its value
        # The parser skips such an entry, so it would be lost silently.
        if not key or not value:
            raise InvalidMessage(
                "a property has an empty key or an empty value",
                f"{key!r}={value!r}",
                "leave the property out",
            )
        if _BETWEEN in key or _END in key or _BETWEEN in value or _END in value:
            raise InvalidMessage(
                "a property contains the separator 0x01 or 0x02",
                f"{key!r}={value[:40]!r}",
                "remove those characters",
            )
        # the final separator too, as RocketMQ before 4.9.1 and since 5.2
        parts.append(f"{key}{_BETWEEN}{value}{_END}")
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            "a property is not valid Unicode",
            repr(error.object[error.start : error.end]),
            "remove lone surrogates",
        ) from error


def decode_properties(raw: bytes | memoryview) -> dict[str, str]:
    """The entries. Segments without a key, a value or the separator are skipped, as in RocketMQ.

    Bytes that are not UTF-8 become U+FFFD, as in Java.
    """
    found: dict[str, str] = {}
    for segment in bytes(raw).decode("utf-8", "replace").split(_END):
        # Split at the first separator, as in RocketMQ: a value may contain another one.
        key, _, value = segment.partition(_BETWEEN)
        if key and value:
            found[key] = value
    return found


def whole_number(text: str) -> int:
    """The number in a property, from 0 on; -1 for anything else."""
    # isdigit alone accepts characters that int refuses, and int refuses thousands of digits
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    return int(text) if is_number else -1


def find_property(raw: bytes, key: bytes) -> bytes:
    """One value without decoding the rest; b"" when absent. For the hot path, which reads tags and
    keys. A test checks that it is the value that `decode_properties` has, still as bytes.
    """
    lead = key + b"\x01"
    at = raw.rfind(b"\x02" + lead) + 1  # a later duplicate wins, as in the parser
    if at == 0 and not raw.startswith(lead):
        return b""
    start = at + len(lead)
    stop = raw.find(b"\x02", start)
    value = raw[start:] if stop < 0 else raw[start:stop]
    # an empty value does not count, so an earlier duplicate may
    return value or decode_properties(raw).get(key.decode(), "").encode()


def without(raw: bytes, names: Iterable[str]) -> bytes:
    """The string without these entries; all others stay byte for byte, each with its end."""
    leads = tuple(f"{name}{_BETWEEN}".encode() for name in names)
    entries = raw.split(_END.encode())
    return b"".join(each + b"\x02" for each in entries if each and not each.startswith(leads))


def is_tombstone(properties: Mapping[str, str]) -> bool:
    """Whether a record with these properties stands in the place of a lost message.

    A tombstone without room for the property cannot be told from an empty message.
    """
    return LOST in properties
