"""Makes records of what a producer sends; what the broker stamps is blank. In pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. Sizes of bodies and names of topics are not checked here: the client
has checked them when it took the message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.message_id import KeyOrigin, make_unique_key, sent_ms
from penstock.shared.formats.record_crc import PROP_CRC_ROOM, body_crc
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BODY_LENGTH_V4,
    AT_BORN_HOST,
    AT_BORN_TIMESTAMP,
    AT_FLAG,
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_SYS_FLAG,
    AT_TOTAL_SIZE,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    Shape,
    fields_at,
    v6_extra_bytes,
)
from penstock.shared.loops.forms import Draft, DraftRun, Rows, TextColumn
from penstock.shared.names import MAX_TOPIC_BYTES
from penstock.shared.wire.produce_rules import check_properties_size

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RecordMaker:
    """Makes the records of one producer.

    Records get their final layout here, so that the broker only checks and copies, and never
    encodes. The fields that only the broker knows are zeros until it stamps them: both offsets,
    store time and store host, and the digits of the checksum if there is room for one.
    """

    def __init__(self, born_host: bytes, origin: KeyOrigin, shape: Shape) -> None:
        """`born_host`: address and port as records store them, 8 or 20 bytes.

        Raises ValueError for another length, here or in `shape`.
        """
        if len(born_host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise ValueError("a host has 8 or 20 bytes")
        self._born_host = born_host
        self._origin = origin
        self.take_shape(shape)

    def take_shape(self, shape: Shape) -> None:
        """Leave the room of this shape in records from now on.

        The next broker may want another: messages wait as drafts, and become records when their
        frame leaves. Raises ValueError for a host of unknown length.
        """
        born_bytes, store_bytes = len(self._born_host), shape.store_host_bytes
        if store_bytes not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise ValueError("a host has 8 or 20 bytes")
        self._host_bits = SYS_BORN_HOST_V6 if born_bytes == HOST_V6_BYTES else 0
        if store_bytes == HOST_V6_BYTES:
            self._host_bits |= SYS_STORE_HOST_V6
        # The body's length comes after both hosts, so its place depends on them. What is skipped
        # is the broker's to fill in: offsets, store time and host.
        self._head = fields_at(
            (AT_TOTAL_SIZE, "i"),
            (AT_MAGIC, "I"),
            (AT_BODY_CRC, "i"),
            (AT_QUEUE_ID, "i"),
            (AT_FLAG, "i"),
            (AT_SYS_FLAG, "i"),
            (AT_BORN_TIMESTAMP, "q"),
            (AT_BORN_HOST, f"{born_bytes}s"),
            (AT_BODY_LENGTH_V4 + v6_extra_bytes(self._host_bits), "i"),
        )
        self._fixed_bytes = self._head.size + PROPERTIES_LENGTH_BYTES
        self._end = PROP_CRC_ROOM if shape.prop_crc else b""

    def pack(self, into: bytearray | memoryview, runs: Iterable[DraftRun]) -> array[int]:
        """Put the records of some runs there. Returns where each begins, and the end of the last.

        Raises ValueError where `into` is too short, or a run's keys and drafts differ in number,
        and PropertiesTooLarge; then the contents of `into` are undefined.
        """
        starts, at = array("q"), 0
        for name, queue_id, drafts, keys in runs:
            # strict: without a key, a record could not be recognised when it is sent again
            for draft, key in zip(drafts, keys, strict=True):
                record = self._record(name, queue_id, draft, key)
                if at + len(record) > len(into):
                    raise ValueError(f"a record of {len(record)} bytes has {len(into) - at}")
                into[at : at + len(record)] = record
                starts.append(at)
                at += len(record)
        starts.append(at)
        return starts

    def pack_rows(self, into: bytearray | memoryview, rows: Rows, order: Buffer) -> int:
        """Put the records of some rows there. Returns where the last one ends.

        `order` has the numbers of the rows, as 64-bit words. Raises ValueError where `into` is too
        short or a row is not there, and PropertiesTooLarge; then the contents of `into` are
        undefined.
        """
        topics, queues = _words("i", rows.topics), _words("i", rows.queues)
        bodies, own = _pieces(rows.body_ends, rows.bodies), _pieces(rows.own_ends, rows.own)
        if len({len(each) for each in (topics, queues, rows.keys, bodies, own)}) > 1:
            raise ValueError("columns of one table have different lengths")
        runs = []
        for row in _words("q", order):
            if not 0 <= row < len(bodies) or not 0 <= topics[row] < len(rows.names):
                raise ValueError(f"there is no row {row}, or it has no topic")
            draft = bodies[row], own[row], 0, 0
            runs.append((rows.names[topics[row]], queues[row], [draft], rows.keys[row : row + 1]))
        return self.pack(into, runs)[-1]

    def _record(self, name: bytes, queue_id: int, draft: Draft, key: int) -> bytes:
        """One record. One number, `key`, makes its UNIQ_KEY and its born timestamp. So a retry
        makes the same record again, by which the broker recognises it.
        """
        whole = (draft, b"", 0, 0) if isinstance(draft, bytes) else draft
        body, properties, flag, sys_flag = whole
        raw = b"%sUNIQ_KEY\x01%s\x02%s" % (
            properties,
            # the last of the sender's own: a later duplicate wins, so nobody can forge it
            make_unique_key(self._origin, key).encode(),
            self._end,
        )
        check_properties_size(len(raw))
        length = len(body)
        head = self._head.pack(
            self._fixed_bytes + length + len(name) + len(raw),
            # `name` begins with its length byte; a length of two bytes needs version 2
            MAGIC_V1 if len(name) <= MAX_TOPIC_BYTES + 1 else MAGIC_V2,
            # of the stored body, which may be compressed: the store never looks inside
            body_crc(body),
            queue_id,
            flag,
            sys_flag | self._host_bits,
            sent_ms(self._origin, key),
            self._born_host,
            length,
        )
        return b"".join((head, body, name, len(raw).to_bytes(PROPERTIES_LENGTH_BYTES, "big"), raw))


def properties_of(tags: str | None, keys: str | None, shard: str | None, end: bytes) -> bytes:
    """The properties of a message, followed by `end` as it is. Raises InvalidMessage.

    None and "" make no entry: to RocketMQ a property without a value does not exist. `end` is
    encoded already, and is not checked.
    """
    text, entries = "", 0
    for name, value in (("TAGS", tags), ("__SHARDINGKEY", shard), ("KEYS", keys)):
        if value:
            text += f"{name}\x01{value}\x02"
            entries += 1
    # Each entry has one of each separator. Any more came out of a value, and would let a sender
    # forge properties that it may not set.
    if text.count("\x01") != entries or text.count("\x02") != entries:
        raise InvalidMessage(
            "tags, keys or shard contain the separator 0x01 or 0x02",
            repr((tags, keys, shard)),
            "remove those characters",
        )
    try:
        return text.encode() + end
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            "tags, keys or shard are not valid Unicode",
            repr(error.object[error.start : error.end]),
            "remove lone surrogates",
        ) from error


def join_properties(texts: Sequence[TextColumn]) -> tuple[bytes, bytes] | int:
    """The properties of each message, one after the other, and their ends, as in Rows.

    `texts` are in the order of the properties; an empty text makes no entry. If a message has a
    text that cannot be a property's value, returns the index of the first such message. Raises
    ValueError for a piece that is not in its data.
    """
    columns = [(name, _pieces(ends, data)) for name, ends, data in texts]
    ends, joined = array("i", [0]), bytearray()
    for index, pieces in enumerate(zip(*(each for _, each in columns), strict=True)):
        for (name, _), piece in zip(columns, pieces, strict=True):
            if not name:
                joined += piece
            elif b"\x01" in piece or b"\x02" in piece:
                return index
            elif piece:
                joined += b"%s\x01%s\x02" % (name, piece)
        ends.append(len(joined))
    return ends.tobytes(), bytes(joined)


def _pieces(ends: Buffer, data: Buffer) -> list[bytes]:
    """The pieces of the data between these words. Raises ValueError for one that is not in it."""
    words, raw = _words("i", ends), memoryview(data)
    pieces = []
    for start, stop in zip(words, words[1:], strict=False):
        if not 0 <= start <= stop <= len(raw):
            raise ValueError(f"{start} to {stop} is not in a buffer of {len(raw)}")
        pieces.append(bytes(raw[start:stop]))
    return pieces


def _words(kind: str, numbers: Buffer) -> array[int]:
    return array(kind, bytes(memoryview(numbers)))
