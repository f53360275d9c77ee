"""Fields of the requests of operators' tools, and which request has which."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.remoting.codes import AUTHORITY, Request
from penstock.remoting.command import Int32, Int64


class Nothing(msgspec.Struct, frozen=True):
    """No fields: the body, or the code alone, says what is asked for."""


class TopicName(msgspec.Struct, frozen=True):
    topic: str


class DeleteGroupFields(msgspec.Struct, frozen=True, rename="camel"):
    group_name: str
    clean_offset: bool = False


class GroupName(msgspec.Struct, frozen=True):
    group: str


class GroupTopicFields(msgspec.Struct, frozen=True):
    group: str
    topic: str


class ConsumerGroupName(msgspec.Struct, frozen=True, rename="camel"):
    consumer_group: str


class ProducerGroupName(msgspec.Struct, frozen=True, rename="camel"):
    producer_group: str


class ResetFields(msgspec.Struct, frozen=True, rename="camel"):
    """Set a group's offsets by a time (below 0: to the queues' ends), or one queue's to an
    offset."""

    group: str
    topic: str
    timestamp: Int64
    queue_id: Int32 = -1
    offset: Int64 | None = None


class CloneFields(msgspec.Struct, frozen=True, rename="camel"):
    """Give a group the offsets of another one; without a topic, those of all topics."""

    src_group: str
    dest_group: str
    topic: str = ""


class ClientFields(msgspec.Struct, frozen=True, rename="camel"):
    """What a member is asked by way of the broker; `msg_id` is a message that it is to handle."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""


class StatsFields(msgspec.Struct, frozen=True, rename="camel"):
    stats_name: str
    stats_key: str


class InBrokerFields(msgspec.Struct, frozen=True, rename="camel"):
    is_order: bool = False


class EntriesFields(msgspec.Struct, frozen=True, rename="camel"):
    """Entries of a consume queue."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str = ""


class ReadAheadFields(msgspec.Struct, frozen=True):
    """0: the kernel reads ahead. 1: it does not."""

    mode: Int32 = msgspec.field(name="READ_AHEAD_MODE")


class ResetFlushFields(msgspec.Struct, frozen=True, rename="camel"):
    master_flush_offset: Int64


FIELDS: Mapping[int, type[msgspec.Struct]] = {
    Request.UPDATE_AND_CREATE_TOPIC_LIST: Nothing,
    Request.UPDATE_AND_CREATE_STATIC_TOPIC: Nothing,
    Request.DELETE_TOPIC_IN_BROKER: TopicName,
    Request.GET_ALL_TOPIC_CONFIG: Nothing,
    Request.UPDATE_BROKER_CONFIG: Nothing,
    Request.GET_BROKER_CONFIG: Nothing,
    Request.GET_BROKER_RUNTIME_INFO: Nothing,
    Request.GET_ALL_CONSUMER_OFFSET: Nothing,
    Request.GET_ALL_DELAY_OFFSET: Nothing,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Nothing,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Nothing,
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Nothing,
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: GroupName,
    Request.DELETE_SUBSCRIPTIONGROUP: DeleteGroupFields,
    Request.GET_CONSUMER_CONNECTION_LIST: ConsumerGroupName,
    Request.GET_PRODUCER_CONNECTION_LIST: ProducerGroupName,
    Request.GET_ALL_PRODUCER_INFO: Nothing,
    Request.INVOKE_BROKER_TO_RESET_OFFSET: ResetFields,
    Request.QUERY_TOPIC_CONSUME_BY_WHO: TopicName,
    Request.QUERY_TOPICS_BY_CONSUMER: GroupName,
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: GroupTopicFields,
    Request.QUERY_CONSUME_TIME_SPAN: GroupTopicFields,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Nothing,
    Request.CLEAN_EXPIRED_CONSUMEQUEUE: Nothing,
    Request.CLEAN_UNUSED_TOPIC: Nothing,
    Request.DELETE_EXPIRED_COMMITLOG: Nothing,
    Request.GET_CONSUMER_RUNNING_INFO: ClientFields,
    Request.CONSUME_MESSAGE_DIRECTLY: ClientFields,
    Request.CLONE_GROUP_OFFSET: CloneFields,
    Request.VIEW_BROKER_STATS_DATA: StatsFields,
    Request.GET_BROKER_CONSUME_STATS: InBrokerFields,
    Request.QUERY_CONSUME_QUEUE: EntriesFields,
    Request.GET_BROKER_HA_STATUS: Nothing,
    Request.GET_TIMER_CHECK_POINT: Nothing,
    Request.GET_TIMER_METRICS: Nothing,
    Request.GET_ALL_MESSAGE_REQUEST_MODE: Nothing,
    Request.GET_BROKER_EPOCH_CACHE: Nothing,
    Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Nothing,
    Request.EXPORT_ROCKSDB_CONFIG_TO_JSON: Nothing,
    Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Nothing,
    Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Nothing,
    Request.GET_COLD_DATA_FLOW_CTR_INFO: Nothing,
    **dict.fromkeys(AUTHORITY, Nothing),
    Request.RESET_MASTER_FLUSH_OFFSET: ResetFlushFields,
    Request.SET_COMMITLOG_READ_MODE: ReadAheadFields,
}
