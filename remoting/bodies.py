"""Bodies that are JSON: heartbeats, locks, routes. They are read leniently and written strictly.

Clients do not agree on how to write things: C++ has numbers for enums and text for numbers, and
leaves out empty lists. RocketMQ itself writes numbers that are keys of a map without quotes. Here
keys have quotes, which all clients take except old ones of Go; those get `bare_keys`. Nothing is
written with blanks: Go's client parses routes by hand.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from penstock.remoting.command import Int32, Int64
from penstock.shared.errors import ProtocolError
from penstock.shared.wire.group_messages import Model, StartRule

_Body = TypeVar("_Body", bound=msgspec.Struct)
_BARE = re.compile(rb'([{,])"(\d+)":')


# The consume type of a consumer whose messages are pushed.
PASSIVELY = "CONSUME_PASSIVELY"
# The other consume types, which C++ numbers in the order of Java's enum.
_CONSUME_TYPES: dict[str | int, str] = {
    "CONSUME_ACTIVELY": "CONSUME_ACTIVELY",
    0: "CONSUME_ACTIVELY",
    "CONSUME_POP": "CONSUME_POP",
    2: "CONSUME_POP",
}


class SubscriptionBody(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    sub_string: str = "*"
    sub_version: Int64 = 0
    expression_type: str | None = None


class ConsumerBody(msgspec.Struct, frozen=True, rename="camel"):
    """A group that the client is a member of."""

    group_name: str
    consume_type: str | int = PASSIVELY
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionBody] = []
    unit_mode: bool = False

    @property
    def model(self) -> Model:
        return "broadcasting" if self.message_model in ("BROADCASTING", 0) else "clustering"

    @property
    def consume_type_name(self) -> str:
        """How it consumes, in RocketMQ's word; an unknown word counts as by pushes."""
        return _CONSUME_TYPES.get(self.consume_type, PASSIVELY)

    @property
    def start(self) -> StartRule:
        """Where the group begins in a queue in which it has no offset."""
        where = _START.get(self.consume_from_where)
        return where if where is not None else "last"


# C++ numbers these in the order of Java's enum, three of whose members are obsolete.
_START: dict[str | int, StartRule] = {
    "CONSUME_FROM_FIRST_OFFSET": "first",
    4: "first",
    # the client has the time, and looks up the offset itself
    "CONSUME_FROM_TIMESTAMP": "member",
    5: "member",
}


class ProducerBody(msgspec.Struct, frozen=True, rename="camel"):
    group_name: str


class Heartbeat(msgspec.Struct, frozen=True, rename="camel"):
    """The groups that a client belongs to."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerBody] | None = None
    consumer_data_set: list[ConsumerBody] | None = None


class QueueBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    queue_id: Int32
    topic: str


class LockBody(msgspec.Struct, frozen=True, rename="camel"):
    """Queues that a member wants for itself, or gives back."""

    client_id: str
    consumer_group: str
    mq_set: list[QueueBody]


class Locked(msgspec.Struct, frozen=True, rename="camel"):
    lock_ok_mq_set: list[QueueBody] = msgspec.field(name="lockOKMQSet")


class ConsumerList(msgspec.Struct, frozen=True, rename="camel"):
    consumer_id_list: list[str]


class ClientConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription that a client asks about before it joins."""

    subscription_data: SubscriptionBody | None = None


class AssignmentBody(msgspec.Struct, frozen=True, rename="camel"):
    """Asks which queues of a topic are a member's, if the broker divides them."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str | int = "CLUSTERING"


class Assignment(msgspec.Struct, frozen=True, rename="camel"):
    message_queue: QueueBody
    mode: str = "PULL"


class Assignments(msgspec.Struct, frozen=True, rename="camel"):
    message_queue_assignments: list[Assignment]


class RequestModeBody(msgspec.Struct, frozen=True, rename="camel"):
    """How the members of a group are to ask for a topic's messages."""

    topic: str
    consumer_group: str
    mode: str = "PULL"


class BrokerData(msgspec.Struct, frozen=True, rename="camel"):
    """A broker group: id -> HOST:PORT, where id 0 is the master. `zone_name` is the operator's."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool = False
    zone_name: str | msgspec.UnsetType = msgspec.UNSET


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """How many queues of a topic a broker has, from 0 on."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    topic_sys_flag: Int32
    write_queue_nums: Int32


class TopicRoute(msgspec.Struct, frozen=True, rename="camel"):
    """`order_topic_conf` says how many queues of the topic each broker keeps in order."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]]
    queue_datas: list[QueueData]
    order_topic_conf: str | msgspec.UnsetType = msgspec.UNSET


class ClusterInfo(msgspec.Struct, frozen=True, rename="camel"):
    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class TopicList(msgspec.Struct, frozen=True, rename="camel"):
    """`broker_addr` is a broker that knows of more."""

    topic_list: list[str]
    broker_addr: str | msgspec.UnsetType = msgspec.UNSET


class QueueOffsets(msgspec.Struct, frozen=True, rename="camel"):
    """How far a group is in a queue, and when the message before that offset was stored, in ms."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int


class ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """The keys are queues, as JSON within JSON: see `queue_key`."""

    consume_tps: float
    offset_table: dict[str, QueueOffsets]


class TopicOffset(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue holds, and when its last message was stored, in ms."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    """The keys are queues, as above."""

    offset_table: dict[str, TopicOffset]
    topic_put_tps: float = 0.0


class TopicConfigBody(msgspec.Struct, frozen=True, rename="camel"):
    attributes: dict[str, str]
    order: bool
    perm: int
    read_queue_nums: int
    topic_filter_type: str
    topic_name: str
    topic_sys_flag: int
    write_queue_nums: int


def queue_key(queue: QueueBody) -> str:
    """A queue as the key of a map. RocketMQ writes the object itself as the key, and reads this as
    well."""
    return msgspec.json.encode(queue).decode()


def read_body(body: bytes | memoryview, kind: type[_Body]) -> _Body:
    """Raises ProtocolError."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError("the request's body cannot be read", str(error)[:200]) from None


def write_body(body: msgspec.Struct) -> bytes:
    return msgspec.json.encode(body)


def bare_keys(body: bytes) -> bytes:
    """The same body with numeric keys of maps as RocketMQ writes them: without quotes.

    Inside a string every quote has a backslash, so nothing in one is taken for a key.
    """
    return _BARE.sub(rb"\1\2:", body)
