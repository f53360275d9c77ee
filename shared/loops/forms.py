"""What the loops take and give: the types and sizes that both forms of them share.

`active` has the loops; here is what a caller needs to call them and to read what they return, so
that nobody but `active` has to know that there are two forms. The compiled module builds and reads
these bytes itself: a change of a struct here is a change of INTERFACE.

Between the walk and the files an entry of a consume queue is a row: whose it is, its place there,
and its 20 bytes.

    off  field             type
      0  queue's number    i32   as a QueueNumbers gave it
      4  queue offset      i64
     12  entry             20 bytes, as in the file

Words are native-endian and not aligned: rows never leave the process that made them. A queue's
window is three words: its entries `first` to below `stop` have a place there, the first one at byte
`at` of the area; (0, 0, 0) is no window.
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

# No frame is packed fuller than this; a larger message or batch travels alone.
FRAME_BYTES = 256 << 10
# Tags and keys of this size fit with every broker, whatever it wants in the properties besides.
PLAIN_PROPERTIES_BYTES = 16 << 10
# The answer for a plain message that fits into an empty frame, but not into the open one.
NO_ROOM: Any = "no room"

# One message to be made a record: body, properties encoded but for UNIQ_KEY, flag, sysFlag. Where
# there is nothing but a body, the body itself is the draft.
# A plain tuple: making a named one takes longer than making the record.
Draft = bytes | tuple[bytes, bytes, int, int]

# Messages of one queue: the topic after its length, as a record has it, queue id, drafts, and for
# each the number of its UNIQ_KEY, which also says when it was sent (see message_id.py).
DraftRun = tuple[bytes, int, Sequence[Draft], "array[int]"]


# Of each record that `record_fields` finds.
FIELDS = 8


class Rows(NamedTuple):
    """Messages as the columns of a table: Arrow's buffers, of 32-bit words.

    `body_ends` has one word more than there are messages: where in `bodies` the first one begins,
    and where each ends. So has `own_ends`, of their properties, encoded but for UNIQ_KEY.
    """

    # topics after their lengths, as records have them; `topics` says which is each message's
    names: Sequence[bytes]
    topics: Buffer
    queues: Buffer
    # the numbers of their UNIQ_KEYs
    keys: array[int]
    body_ends: Buffer
    bodies: Buffer
    own_ends: Buffer
    own: Buffer


# A column of texts, which become one property: its name, ends and bytes as those of Rows. Without a
# name they are properties already.
TextColumn = tuple[bytes, "Buffer", "Buffer"]

# What RocketMQ's clients send

# A plain message is SEND_MESSAGE_V2 as Java writes it, and a plain batch SEND_BATCH_MESSAGE; one
# that is written otherwise goes the general way.
PLAIN_LEADS = {b'{"code":310,': 310, b'{"code":320,': 320}
BATCH_CODE = 320
# The properties that a message is without: what the broker acts on, leaves out, or puts in itself.
PLAIN_MEANT = TIMER_PROPERTIES | {DELAY, PROP_CRC, "TRAN_MSG", "POP_CK", "INNER_NUM"}
PLAIN_MEANT |= {"MSG_REGION", "TRACE_ON", "CLUSTER"}
# A frame of this many records is full, however small they are.
MOST_IN_FRAME = 1000


class PlainRules(NamedTuple):
    """What a broker makes of all plain messages.

    `added` stands after the properties of a message, with the room for its checksum where
    `prop_crc` says that there is one. With a `most_body` of -1 nothing is plain.
    """

    added: bytes
    prop_crc: bool
    most_body: int
    most_bytes: int = FRAME_BYTES
    most_records: int = MOST_IN_FRAME


class PlainSent(NamedTuple):
    """What is made of a plain message, or of a batch: its records, and the size of each."""

    opaque: int
    is_oneway: bool
    topic: str
    queue_id: int
    key: str
    records: bytes
    sizes: Sequence[int]
    is_batch: bool


# From record `first` of a frame on: consecutive queue offsets and log bytes.
Place = tuple[int, int, int]


class Limit(Protocol):
    """What the broker has said of the size of bodies; 0 until it has."""

    max_message_bytes: int


class Numbers(Protocol):
    """Where the numbers of UNIQ_KEYs come from: a KeyNumbers."""

    def next(self, now_ms: int) -> int: ...

    def several(self, now_ms: int, count: int) -> array[int]: ...


class Plain(NamedTuple):
    """What a producer's plain messages have in common."""

    # an Outcome, extended by the client
    outcome: type[Any]
    sender: Any
    # the kind of acknowledgement where none is asked for
    ack: str
    numbers: Numbers
    limit: Limit
    # what a record has besides topic, body and properties of its own
    fixed_bytes: int
    # a body of this size is not plain any more: it is compressed
    compressed_bytes: int


# What the writer checks and stamps

# Whose the next records of a frame are: topic, queue id, and how many.
RunOf = tuple[bytes, int, int]


class Stamp(NamedTuple):
    """What the broker puts into all records of a frame.

    They have room for `host`, and at their ends for the checksum where `prop_crc` says so.
    """

    stored_ms: int
    host: bytes
    prop_crc: bool = False


# What the walk says to queues and index

ROW = struct.Struct(f"=iq{CQ_ENTRY_BYTES}s")
WINDOW_WORDS = 3

# (topic, queue id) -> entries that follow each other, each run with the offset of its first one
Runs = dict[tuple[bytes, int], list[tuple[int, bytearray]]]


class Dispatched(NamedTuple):
    """What the whole records at the beginning of a piece of the log say."""

    size: int  # of those records, in bytes
    records: int
    last: int  # the log offset of the last one; -1 without any
    rows: bytes  # their entries, in the log's order
    keys: Entries | None  # for the index, where they were asked for


def rows_of(number: int, first: int, entries: bytes) -> bytes:
    """The rows of entries that follow each other in one queue."""
    pieces = range(0, len(entries), CQ_ENTRY_BYTES)
    return b"".join(
        [
            ROW.pack(number, first + at // CQ_ENTRY_BYTES, entries[at : at + CQ_ENTRY_BYTES])
            for at in pieces
        ]
    )


# What the reader looks up

# From a log offset on to below another. Scattered records are many, so ranges are kept packed.
RANGE = struct.Struct("=qq")


class Ranges(NamedTuple):
    """Where the records of a queue are: in one segment, in the queue's order, neighbours joined."""

    base: int  # the log offset at which the segment begins; -1 without any record
    ranges: bytes  # one RANGE after the other
    size: int  # of all ranges, in bytes
    taken: int  # how many entries that were


# What the scheduler keeps of a message for any time: when it is due, its record's log offset and
# size, and what it is. Files have it too, so here words are little-endian on every machine.
TIMER = struct.Struct("<QQII")
MESSAGE, RECALL = 0, 1


# What tables are made of


class Properties(NamedTuple):
    """The entries of many records, in their order: Arrow's buffers of a map, of 32-bit words.

    `firsts` is where each record's entries begin, one more than there are records; `key_ends` and
    `value_ends` are where each key ends in `keys`, and each value in `values`. `places` has, for
    each name that was asked for, which entry of it each record has, -1 for none.
    """

    firsts: bytes
    key_ends: bytes
    keys: bytes
    value_ends: bytes
    values: bytes
    places: tuple[bytes, ...]
