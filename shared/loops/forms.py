"""What the loops take and return: the types and sizes that both of their forms share.

`active` has the loops; this file has what a caller needs to call them and to read their results, so
that only `active` has to know that there are two forms. The compiled module builds and reads these
bytes itself: a change of a struct here is a change of INTERFACE.

Between the walk and the files an entry of a consume queue is a row: its queue, its offset there,
and its 20 bytes.

    off  field             type
      0  queue's number    i32   as a QueueNumbers gave it
      4  queue offset      i64
     12  entry             20 bytes, as in the file

Words are native-endian and not aligned: rows never leave the process that made them. A queue's
window is three words (`first`, `stop`, `at`): the entries from `first` to below `stop` have a place
in it, the first one at byte `at` of the area; (0, 0, 0) is no window.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.shared.formats.properties import DELAY
from penstock.shared.formats.record_crc import PROP_CRC
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.messaging.delayed import TIMER_PROPERTIES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.shared.formats.index_chains import Entries

# What a producer sends

# A frame is filled up to this size; a larger message or batch travels alone.
FRAME_BYTES = 256 << 10
# Tags and keys of this size fit with every broker, whatever else it puts into the properties.
PLAIN_PROPERTIES_BYTES = 16 << 10
# Returned for a plain message that fits into an empty frame, but not into the open one.
NO_ROOM: Any = "no room"

# One message to be made a record: body, properties encoded without UNIQ_KEY, flag, sysFlag. If
# there is only a body, the body itself is the draft.
# A plain tuple, because making a named one takes longer than making the record.
Draft = bytes | tuple[bytes, bytes, int, int]

# Messages of one queue: the topic after its length, as in a record, queue id, drafts, and for each
# the number of its UNIQ_KEY, which also says when it was sent (see message_id.py).
DraftRun = tuple[bytes, int, Sequence[Draft], "array[int]"]


# The number of fields that `record_fields` finds in each record.
FIELDS = 8


class Rows(NamedTuple):
    """Messages as the columns of a table: Arrow's buffers, of 32-bit words.

    `body_ends` has one word more than there are messages: where the first one begins in `bodies`,
    and where each ends. So has `own_ends`, for properties that are encoded without UNIQ_KEY.
    """

    # topics after their lengths, as in records; `topics` has the number of each message's topic
    names: Sequence[bytes]
    topics: Buffer
    queues: Buffer
    # the numbers of the messages' UNIQ_KEYs
    keys: array[int]
    body_ends: Buffer
    bodies: Buffer
    own_ends: Buffer
    own: Buffer


# A column of texts, each of which becomes one property: its name, and ends and bytes as in Rows.
# Without a name the texts are properties already.
TextColumn = tuple[bytes, "Buffer", "Buffer"]

# What RocketMQ's clients send

# A plain message is SEND_MESSAGE_V2 in Java's spelling, and a plain batch SEND_BATCH_MESSAGE; one
# in another spelling goes the general way.
PLAIN_LEADS = {b'{"code":310,': 310, b'{"code":320,': 320}
BATCH_CODE = 320
# A plain message has none of these properties: the broker acts on them, drops them, or sets them.
PLAIN_MEANT = TIMER_PROPERTIES | {DELAY, PROP_CRC, "TRAN_MSG", "POP_CK", "INNER_NUM"}
PLAIN_MEANT |= {"MSG_REGION", "TRACE_ON", "CLUSTER"}
# A frame with this many records is full, however small they are.
MOST_IN_FRAME = 1000


class PlainRules(NamedTuple):
    """What a broker does with all plain messages.

    `added` goes after the properties of a message, with the room for its checksum if `prop_crc`.
    With a `most_body` of -1 no message is plain.
    """

    added: bytes
    prop_crc: bool
    most_body: int
    most_bytes: int = FRAME_BYTES
    most_records: int = MOST_IN_FRAME


class PlainSent(NamedTuple):
    """What a plain message, or a batch, becomes: its records, and the size of each."""

    opaque: int
    is_oneway: bool
    topic: str
    queue_id: int
    key: str
    records: bytes
    sizes: Sequence[int]
    is_batch: bool


# From record `first` of a frame on, queue offsets and log bytes are consecutive.
Place = tuple[int, int, int]


class Limit(Protocol):
    """The broker's limit for the size of bodies; 0 until it has told it."""

    max_message_bytes: int


class Numbers(Protocol):
    """The source of UNIQ_KEYs' numbers: a KeyNumbers."""

    def next(self, now_ms: int) -> int: ...

    def several(self, now_ms: int, count: int) -> array[int]: ...


class Plain(NamedTuple):
    """What a producer's plain messages have in common."""

    # an Outcome, extended by the client
    outcome: type[Any]
    sender: Any
    # the kind of acknowledgement if none is asked for
    ack: str
    numbers: Numbers
    limit: Limit
    # size of a record without its topic, body and own properties
    fixed_bytes: int
    # a body from this size on is not plain: it is compressed
    compressed_bytes: int


# What the writer checks and stamps

# The queue of a frame's next records: topic, queue id, and how many records.
RunOf = tuple[bytes, int, int]


class Stamp(NamedTuple):
    """What the broker puts into all records of a frame.

    They have room for `host`, and, if `prop_crc`, for the checksum at their ends.
    """

    stored_ms: int
    host: bytes
    prop_crc: bool = False


# What the walk tells queues and index

ROW = struct.Struct(f"=iq{CQ_ENTRY_BYTES}s")
WINDOW_WORDS = 3

# (topic, queue id) -> runs of consecutive entries, each with the offset of its first entry
Runs = dict[tuple[bytes, int], list[tuple[int, bytearray]]]


class Dispatched(NamedTuple):
    """What the whole records at the beginning of a piece of the log tell."""

    size: int  # of those records, in bytes
    records: int
    last: int  # the log offset of the last one; -1 without any
    rows: bytes  # their entries, in the log's order
    keys: Entries | None  # for the index, where they were asked for


def rows_of(number: int, first: int, entries: bytes) -> bytes:
    """The rows of consecutive entries of one queue."""
    pieces = range(0, len(entries), CQ_ENTRY_BYTES)
    return b"".join(
        [
            ROW.pack(number, first + at // CQ_ENTRY_BYTES, entries[at : at + CQ_ENTRY_BYTES])
            for at in pieces
        ]
    )


# What the reader looks up

# From a log offset to below another one. Scattered records are many, so ranges are kept packed.
RANGE = struct.Struct("=qq")


class Ranges(NamedTuple):
    """Where the records of a queue are: in one segment, in queue order, adjoining ones joined."""

    base: int  # the log offset at which the segment begins; -1 without any record
    ranges: bytes  # one RANGE after the other
    size: int  # of all ranges, in bytes
    taken: int  # the number of entries that were covered


# What the scheduler keeps of a timed message: when it is due, its record's log offset and size, and
# its kind. It is also kept in files, so its words are little-endian on every machine.
TIMER = struct.Struct("<QQII")
MESSAGE, RECALL = 0, 1


# What tables are made of


class Properties(NamedTuple):
    """The entries of many records, in order: Arrow's buffers of a map, of 32-bit words.

    `firsts` is where each record's entries begin, one word more than there are records; `key_ends`
    and `value_ends` are where each key ends in `keys`, and each value in `values`. For each name
    that was asked for, `places` has the index of each record's entry with that name, or -1.
    """

    firsts: bytes
    key_ends: bytes
    keys: bytes
    value_ends: bytes
    values: bytes
    places: tuple[bytes, ...]
