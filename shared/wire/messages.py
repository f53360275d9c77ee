"""Every message between clients and the broker, as a struct. (Between actors: doorbells.)

Clients talk to two endpoints. A request is one multipart message: [header] or [header, payload];
the answer has the same form. Headers are MessagePack, and a payload is raw records of the log.

A producer numbers its frames in a session, which belongs to one connection. The writer accepts the
frames of a session in order and without gaps. To anything else it answers OutOfStep; then the
producer opens a new session with Hello, and sends what is unanswered again, marked as a retry. So
frames that a dead connection still delivers cannot overtake or repeat others.

Requests that begin something name the `run` of the broker they are meant for, or "" for whichever
is there (see shared/process/reception.py). Raise introduction.PROTOCOL when a message changes.
Decoding raises only ProtocolError: headers come from outside, and an exception that nobody expects
would end an actor.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from penstock.shared.errors import (
    PUT_OK,
    BrokerBusy,
    PenstockError,
    ProtocolError,
    error_from_status,
)
from penstock.shared.wire.header import Number as Number
from penstock.shared.wire.header import WireMessage as WireMessage
from penstock.shared.wire.pulled_parts import Place, UnreadableQueue
from penstock.shared.wire.queue_messages import Describe as Describe
from penstock.shared.wire.queue_messages import Described as Described
from penstock.shared.wire.queue_messages import ListQueues as ListQueues
from penstock.shared.wire.queue_messages import QueueList as QueueList
from penstock.shared.wire.queue_messages import QueueRange as QueueRange
from penstock.shared.wire.topic_messages import CreateTopic as CreateTopic
from penstock.shared.wire.topic_messages import DeleteTopic as DeleteTopic
from penstock.shared.wire.topic_messages import DescribeTopic as DescribeTopic
from penstock.shared.wire.topic_messages import ListTopics as ListTopics
from penstock.shared.wire.topic_messages import TopicDescribed as TopicDescribed
from penstock.shared.wire.topic_messages import TopicList as TopicList
from penstock.shared.wire.topic_messages import UpdateTopic as UpdateTopic

# More than a frame of 256 KiB, which is what a producer packs, has messages.
MAX_RUNS = 4096
# A pull may ask for this many answers. No more wait for one consumer: it would not get the others,
# and ask again only after a while.
MOST_CREDIT = 8

# An address and a port: IPv4 or IPv6.
HostBytes = Literal[8, 20]


# --- the produce endpoint: requests -----------------------------------------------------------


class Hello(WireMessage, frozen=True):
    """Open a session, whose first frame is `next_seq`.

    `stored_after` is a log offset before which no copy of an unanswered frame can lie. The writer
    looks for copies from there on, so that a retry is not stored twice.
    """

    producer: Number
    session: Number
    next_seq: Number
    stored_after: Number
    run: str = ""


class QueueRun(msgspec.Struct, frozen=True, array_like=True):
    """The next `count` records of a frame are for this queue.

    Those of a batch get consecutive queue offsets and are stored in one segment.
    """

    topic: str
    queue_id: int
    count: Number
    batch: bool = False


class RingSpan(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the ring that the broker has given to this producer."""

    ring: Number
    offset: Number
    length: Number


class Append(WireMessage, frozen=True):
    """Store the payload's records, all or none. `ack` is durable, written, or "": the broker's own.

    `runs` say whose the records are, in the order of the payload. The records are whole, with queue
    offset, physical offset, store time and store host blank. In a `retry` the first records may be
    stored already, in a `scattered` one any of them. With a `span` the records stand in the ring
    until the frame is answered or another session is open, and the payload is empty. The records
    that are `staged` at these log offsets go between its two records: see
    shared/messaging/staged_records.py.
    """

    producer: Number
    session: Number
    seq: Number
    runs: Annotated[tuple[QueueRun, ...], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]
    ack: str
    retry: bool
    span: RingSpan | None = None
    scattered: bool = False
    staged: tuple[Number, ...] = ()


class OpenRing(WireMessage, frozen=True):
    """A producer with an open session asks for a ring in shared memory, and gives back a ring that
    it already has."""

    request: Number
    producer: Number


class Route(WireMessage, frozen=True):
    """How many queues of the topic can be written? Refused where its permission forbids writing.

    With `create` the topic is created if the broker allows it, with `queues` at most, and with the
    `sys_flag` of a topic (see topic_rules.py).
    """

    request: Number
    topic: str
    create: bool
    run: str = ""
    queues: Number = 4
    sys_flag: Number = 0


# --- the produce endpoint: answers ------------------------------------------------------------


class Welcome(WireMessage, frozen=True):
    """The session is open. `wrote` is the log's end; `next_seq` is the next frame to be accepted.

    Records leave `store_host_bytes` for the broker's address, and with `prop_crc` end in 20 bytes
    for their checksum. A client that sends much from the same machine may ask for a ring, if there
    are `rings`; each belongs to the writer of this `generation`.
    """

    producer: int
    session: int
    next_seq: int
    wrote: int
    max_message_bytes: int
    max_frame_bytes: int
    generation: int
    store_host_bytes: HostBytes = 8
    prop_crc: bool = False
    rings: bool = False


class RingOpened(WireMessage, frozen=True):
    """A ring of `size` bytes is there for this producer to fill, if it finds its file.

    The file begins with `token`: on another machine, a client may find another broker's file under
    the same name. See shared/memory/ring_file.py.
    """

    request: Number
    run_id: str
    ring: Number
    size: Number
    token: bytes


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """From record `first` of the frame on, queue offsets and log bytes are consecutive."""

    first: int
    queue_offset: int
    physical_offset: int


class Appended(WireMessage, frozen=True):
    """The frame is stored. `status` is PUT_OK, or FLUSH_DISK_TIMEOUT: perhaps not on disk yet."""

    producer: int
    session: int
    seq: int
    runs: tuple[StoredRun, ...]
    store_timestamp_ms: int
    store_host: bytes
    status: str = PUT_OK


class OutOfStep(WireMessage, frozen=True):
    """The frame, or Hello, does not fit a session that this writer knows; nothing is stored."""

    producer: int
    session: int
    seq: int


class Routed(WireMessage, frozen=True):
    request: int
    topic: str
    queues: int


class Refused(WireMessage, frozen=True):
    """A request failed, as a typed error. For a frame, `request` is its seq.

    A busy broker says in how many ms another try makes sense. Then the frame's session has ended:
    if later frames of it were stored, they would overtake this one. A session also ends when one of
    several runs is wrong: the producer may send the others again in a frame without it.
    """

    request: int
    session: int
    status: str
    what: str
    value: str
    hint: str
    retry_after_ms: int = 0


# --- the consume endpoint ---------------------------------------------------------------------


class Subscription(WireMessage, frozen=True):
    """Which messages a pull is for: `expression` is of type TAG or SQL92.

    Tags are compared by their hash codes, so a few that do not match may come. A queue is read up
    to its offset in `ends`, if it has one; when that is reached the pull is answered. The SQL92
    filters of a `group` are saved; of two filters that with the later `version` counts.
    """

    expression_type: str
    expression: str
    ends: dict[int, int]
    group: str
    version: Number


class Pull(WireMessage, frozen=True):
    """Records of some queues of a topic from these offsets on; waits up to `wait_ms` for one.

    It is also answered when more than `known_queues` queues of the topic have messages, or if an
    offset is not in its queue. With `direct` the answer may say where the records are, instead of
    having them. With a `credit` of more than one answer, the pull may wait again after a short one.
    """

    request: Number
    topic: str
    cursors: dict[int, int]
    known_queues: int
    max_bytes: int
    wait_ms: int
    subscription: Subscription | None = None
    direct: bool = False
    run: str = ""
    credit: Number = 1


class QueueSlice(WireMessage, frozen=True):
    """What the payload has of one queue: `size` bytes of records. Their offsets begin at `offset`,
    where the consumer is said to be, and end before `next_offset`.

    If an `offset` below `min_offset` was asked for, the messages up to there have expired or are
    lost. If one above `max_offset` was, `next_offset` is `max_offset`.
    """

    queue_id: int
    offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    size: int


class Pulled(WireMessage, frozen=True):
    """Slices in the order of the payload. `queue_ids` are all queues of the topic by now; in those
    that are `unreadable` the consumer stays where it is. `credit` is how many more answers the pull
    has left: it waits on from where these slices end, and its time starts again.

    With places the payload has no records, but the ranges of this run's log in which they are,
    packed as `loops.forms.RANGE`, for a consumer that can read the files itself.
    """

    request: int
    slices: tuple[QueueSlice, ...]
    queue_ids: tuple[int, ...]
    run_id: str
    places: tuple[Place, ...] = ()
    unreadable: tuple[UnreadableQueue, ...] = ()
    credit: int = 0


class Query(WireMessage, frozen=True):
    """The newest `max_num` messages of a topic with this key, stored in [begin_ms, end_ms].

    With `unique` only UNIQ_KEYs count, and the broker chooses how many. At most 8 MiB come.
    """

    request: Number
    topic: str
    key: str
    max_num: int
    begin_ms: int
    end_ms: int
    unique: bool
    run: str = ""


class QueryById(WireMessage, frozen=True):
    """The message that an offsetMsgId names."""

    request: Number
    message_id: str
    run: str = ""


class Queried(WireMessage, frozen=True):
    """The payload has the records that were found, in log order."""

    request: int


TopicRequest = Route | CreateTopic | ListTopics | UpdateTopic | DeleteTopic | DescribeTopic
ProduceRequest = Hello | Append | OpenRing | TopicRequest
TopicAnswer = Routed | TopicList | TopicDescribed
ProduceAnswer = Welcome | RingOpened | Appended | OutOfStep | TopicAnswer | Refused
ConsumeRequest = Pull | Describe | ListQueues | Query | QueryById
ConsumeAnswer = Pulled | Described | QueueList | Queried | Refused

_Form = TypeVar("_Form")

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

_PRODUCE_REQUEST: msgspec.msgpack.Decoder[ProduceRequest] = msgspec.msgpack.Decoder(ProduceRequest)
_PRODUCE_ANSWER: msgspec.msgpack.Decoder[ProduceAnswer] = msgspec.msgpack.Decoder(ProduceAnswer)
_CONSUME_REQUEST: msgspec.msgpack.Decoder[ConsumeRequest] = msgspec.msgpack.Decoder(ConsumeRequest)
_CONSUME_ANSWER: msgspec.msgpack.Decoder[ConsumeAnswer] = msgspec.msgpack.Decoder(ConsumeAnswer)


def decode_header(decoder: msgspec.msgpack.Decoder[_Form], header: bytes) -> _Form:
    """A header as one of the decoder's structs. Raises ProtocolError, and nothing else."""
    try:
        return decoder.decode(header)
    # besides its own errors msgspec raises UnicodeDecodeError and RecursionError
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(
            "a header is no message of this protocol",
            str(error)[:200],
            "use the same version at both ends: penstock version",
        ) from None


def decode_produce_request(header: bytes) -> ProduceRequest:
    return decode_header(_PRODUCE_REQUEST, header)


def decode_produce_answer(header: bytes) -> ProduceAnswer:
    return decode_header(_PRODUCE_ANSWER, header)


def decode_consume_request(header: bytes) -> ConsumeRequest:
    return decode_header(_CONSUME_REQUEST, header)


def decode_consume_answer(header: bytes) -> ConsumeAnswer:
    return decode_header(_CONSUME_ANSWER, header)


def refusal(error: PenstockError, request: int, session: int = 0) -> Refused:
    """An error as an answer."""
    after_ms = error.retry_after_ms if isinstance(error, BrokerBusy) else 0
    return Refused(request, session, error.status, *error_words(error), after_ms)


def error_words(error: PenstockError) -> tuple[str, str, str]:
    """What, value and hint of an error."""
    return error.what, "" if error.value is None else str(error.value)[:500], error.hint


def error_from_refusal(answer: Refused) -> PenstockError:
    """An answer as an error."""
    words = answer.what, answer.value, answer.hint, answer.retry_after_ms
    return error_from_status(answer.status, *words)
