"""The fields of each request and answer, declared once with their types.

On the wire all of them are text. `read_fields` reads a request's fields into the struct that
belongs to its code; `write_fields` writes an answer's struct. A field without a default is
mandatory. A field that the struct does not have is ignored: clients send more than is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from penstock.remoting.admin import words as admin_words
from penstock.remoting.codes import Request
from penstock.remoting.command import Command, Int32, Int64
from penstock.remoting.naming import words
from penstock.shared.errors import ProtocolError
from penstock.shared.wire.topic_messages import FilterType

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


class SendFields(msgspec.Struct, frozen=True, rename="camel"):
    """A message, or a batch, for a queue; a negative `queue_id` leaves the choice to the broker."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


# One-letter names, which clients use to send less.
_SHORT = dict(zip("abcdefghijklm", SendFields.__struct_encode_fields__, strict=True))


class SendAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a message is stored. For a batch `msg_id` has all ids, separated by commas, and the
    offset is the first one's.

    `transaction_id` is the message's UNIQ_KEY.
    """

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str = ""


class PushReplyFields(SendFields, frozen=True, rename="camel", kw_only=True):
    """A reply on its way to the client that has asked; the body is the reply's."""

    born_host: str
    store_host: str
    store_timestamp: int


class RouteFields(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    accept_standard_json_only: bool = False


class PullFields(msgspec.Struct, frozen=True, rename="camel"):
    """`sys_flag` says which of the other fields count: see the bits below."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str = ""
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    max_msg_bytes: Int32 | None = None


PULL_COMMITS, PULL_WAITS, PULL_HAS_SUBSCRIPTION = 1, 2, 4


class PullAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Sent with every outcome, with messages or without: some clients pull in an endless loop
    otherwise."""

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0


class QueryOffsetFields(msgspec.Struct, frozen=True, rename="camel"):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool = True


class UpdateOffsetFields(msgspec.Struct, frozen=True, rename="camel"):
    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetFields(msgspec.Struct, frozen=True, rename="camel"):
    """`boundary_type` UPPER asks for the last message of that time, LOWER for the first."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "LOWER"


class QueueFields(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    queue_id: Int32


class OffsetAnswer(msgspec.Struct, frozen=True):
    offset: int


class TimestampAnswer(msgspec.Struct, frozen=True):
    timestamp: int


class UnregisterFields(msgspec.Struct, frozen=True, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str = ""
    consumer_group: str = ""


class GroupFields(msgspec.Struct, frozen=True, rename="camel"):
    consumer_group: str


class SendBackFields(msgspec.Struct, frozen=True, rename="camel"):
    """Give the message at this log offset to the group again, after the delay of a level."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransactionFields(msgspec.Struct, frozen=True, rename="camel"):
    """How the transaction of the half message at these two offsets ended: the bits of sysFlag for
    it, or 0 if that is not known."""

    producer_group: str
    tran_state_table_offset: Offset
    commit_log_offset: Offset
    commit_or_rollback: Int32
    from_transaction_check: bool = False


class CheckTransactionFields(msgspec.Struct, frozen=True, rename="camel"):
    """Asks a producer how a transaction ended; the body is its half message."""

    topic: str
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str
    transaction_id: str
    offset_msg_id: str


class CreateTopicFields(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    order: bool = False
    attributes: str = ""
    topic_filter_type: FilterType = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0


class QueryFields(msgspec.Struct, frozen=True, rename="camel"):
    """The newest messages of a topic with a key, stored between two times in ms; or those whose
    UNIQ_KEY it is."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    is_unique: bool = msgspec.field(name="_UNIQUE_KEY_QUERY", default=False)


class QueryAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """When the index was written last, in ms, and up to which log offset."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class ViewFields(msgspec.Struct, frozen=True):
    offset: Int64


class TopicFields(msgspec.Struct, frozen=True):
    topic: str


class ConsumeStatsFields(msgspec.Struct, frozen=True, rename="camel"):
    """For one topic, for several separated by ;, or for all in which the group has offsets."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""


class NoFields(msgspec.Struct, frozen=True):
    """No fields: the body, or the code alone, says what is asked for."""


FIELDS: Mapping[int, type[msgspec.Struct]] = {
    Request.SEND_MESSAGE: SendFields,
    Request.SEND_MESSAGE_V2: SendFields,
    Request.SEND_BATCH_MESSAGE: SendFields,
    Request.SEND_REPLY_MESSAGE: SendFields,
    Request.SEND_REPLY_MESSAGE_V2: SendFields,
    Request.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyFields,
    Request.QUERY_MESSAGE: QueryFields,
    Request.PULL_MESSAGE: PullFields,
    Request.LITE_PULL_MESSAGE: PullFields,
    Request.QUERY_CONSUMER_OFFSET: QueryOffsetFields,
    Request.UPDATE_CONSUMER_OFFSET: UpdateOffsetFields,
    Request.UPDATE_AND_CREATE_TOPIC: CreateTopicFields,
    Request.VIEW_MESSAGE_BY_ID: ViewFields,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetFields,
    Request.GET_MAX_OFFSET: QueueFields,
    Request.GET_MIN_OFFSET: QueueFields,
    Request.GET_EARLIEST_MSG_STORETIME: QueueFields,
    Request.HEART_BEAT: NoFields,
    Request.UNREGISTER_CLIENT: UnregisterFields,
    Request.CONSUMER_SEND_MSG_BACK: SendBackFields,
    Request.END_TRANSACTION: EndTransactionFields,
    Request.CHECK_TRANSACTION_STATE: CheckTransactionFields,
    Request.GET_CONSUMER_LIST_BY_GROUP: GroupFields,
    Request.NOTIFY_CONSUMER_IDS_CHANGED: GroupFields,
    Request.LOCK_BATCH_MQ: NoFields,
    Request.UNLOCK_BATCH_MQ: NoFields,
    Request.CHECK_CLIENT_CONFIG: NoFields,
    Request.QUERY_ASSIGNMENT: NoFields,
    Request.SET_MESSAGE_REQUEST_MODE: NoFields,
    Request.RECALL_MESSAGE: NoFields,
    Request.GET_TOPIC_STATS_INFO: TopicFields,
    Request.GET_TOPIC_CONFIG: TopicFields,
    Request.GET_CONSUME_STATS: ConsumeStatsFields,
    Request.GET_ROUTEINFO_BY_TOPIC: RouteFields,
    Request.GET_BROKER_CLUSTER_INFO: NoFields,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoFields,
    **words.FIELDS,
    **admin_words.FIELDS,
}
assert FIELDS.keys() == {*Request}, "each request says which fields it has"

# Requests whose fields have one-letter names.
_SHORTENED = (
    Request.SEND_MESSAGE_V2,
    Request.SEND_BATCH_MESSAGE,
    Request.SEND_REPLY_MESSAGE_V2,
)


def read_fields(command: Command, kind: type[_Fields]) -> _Fields:
    """A request's fields as the struct that `FIELDS` has for it, which is `kind`. Raises
    ProtocolError."""
    assert FIELDS[command.code] is kind, f"{command.code} has other fields"
    fields: Mapping[str, str] = command.fields
    if command.code in _SHORTENED:
        fields = {_SHORT[key]: value for key, value in fields.items() if key in _SHORT}
    try:
        # not strict: a number is text here, and C++ writes 1 for true
        return msgspec.convert(fields, kind, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(
            "a field of the request is missing or cannot be read",
            f"{Request(command.code).name}: {error}",
        ) from None


def write_fields(fields: msgspec.Struct) -> dict[str, str]:
    """The fields as text; None is left out."""
    found: dict[str, Any] = msgspec.to_builtins(fields)
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in found.items()
        if value is not None
    }
