"""Which request is served by what: one table.

A processor takes the services and the call, and returns a reply; None where it replies later. It
raises PenstockError for what it refuses. A new code is a member of `Request`, a row of `FIELDS`
(remoting/fields.py, or words.py in admin/ or naming/), one function, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.requests import (
    admin,
    broker,
    clients,
    forwards,
    groups,
    name_server,
    queues,
    readers,
    rebalancing,
    replies,
    sending,
    switched_off,
    topics,
    transactions,
)
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import AUTHORITY, POP, Request, Response
from penstock.remoting.naming.server import NAMING

Processor = Callable[[Services, Call], Reply | None]

PROCESSORS: Mapping[int, Processor] = {
    **dict.fromkeys(NAMING, name_server.ask),
    Request.SEND_MESSAGE: sending.send,
    Request.SEND_MESSAGE_V2: sending.send,
    Request.SEND_BATCH_MESSAGE: sending.send,
    Request.SEND_REPLY_MESSAGE: replies.reply,
    Request.SEND_REPLY_MESSAGE_V2: replies.reply,
    Request.RECALL_MESSAGE: sending.recall,
    Request.CONSUMER_SEND_MSG_BACK: sending.send_back,
    Request.END_TRANSACTION: transactions.end,
    Request.PULL_MESSAGE: queues.pull,
    Request.LITE_PULL_MESSAGE: queues.pull,
    Request.QUERY_CONSUMER_OFFSET: queues.query_offset,
    Request.UPDATE_CONSUMER_OFFSET: queues.update_offset,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: queues.offset_by_time,
    Request.GET_MAX_OFFSET: queues.max_offset,
    Request.GET_MIN_OFFSET: queues.min_offset,
    Request.GET_EARLIEST_MSG_STORETIME: queues.earliest_time,
    Request.HEART_BEAT: clients.heartbeat,
    Request.UNREGISTER_CLIENT: clients.unregister,
    Request.GET_CONSUMER_LIST_BY_GROUP: clients.list_members,
    Request.LOCK_BATCH_MQ: clients.lock,
    Request.UNLOCK_BATCH_MQ: clients.unlock,
    Request.UPDATE_AND_CREATE_TOPIC: topics.update,
    Request.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_all,
    Request.DELETE_TOPIC_IN_BROKER: topics.delete,
    Request.GET_TOPIC_CONFIG: topics.describe,
    Request.GET_ALL_TOPIC_CONFIG: topics.describe_all,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.list_system,
    Request.GET_TOPIC_STATS_INFO: admin.topic_stats,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.set_group,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.set_groups,
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: groups.describe,
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.describe_all,
    Request.DELETE_SUBSCRIPTIONGROUP: groups.delete,
    Request.GET_ALL_CONSUMER_OFFSET: groups.all_offsets,
    Request.GET_ALL_DELAY_OFFSET: groups.all_delay_offsets,
    Request.INVOKE_BROKER_TO_RESET_OFFSET: groups.reset,
    Request.CLONE_GROUP_OFFSET: groups.clone,
    Request.GET_CONSUMER_CONNECTION_LIST: readers.consumers,
    Request.GET_PRODUCER_CONNECTION_LIST: readers.producers,
    Request.GET_ALL_PRODUCER_INFO: readers.all_producers,
    Request.QUERY_TOPIC_CONSUME_BY_WHO: readers.groups_of_topic,
    Request.QUERY_TOPICS_BY_CONSUMER: readers.topics_of_group,
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: readers.subscription,
    Request.QUERY_CONSUME_TIME_SPAN: readers.time_spans,
    Request.GET_CONSUME_STATS: readers.stats,
    Request.GET_BROKER_CONSUME_STATS: readers.stats_of_all,
    Request.GET_CONSUMER_RUNNING_INFO: forwards.running_info,
    Request.CONSUME_MESSAGE_DIRECTLY: forwards.consume_directly,
    Request.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
    Request.GET_BROKER_CONFIG: broker.config,
    Request.UPDATE_BROKER_CONFIG: broker.update_config,
    Request.CLEAN_EXPIRED_CONSUMEQUEUE: broker.clean,
    Request.CLEAN_UNUSED_TOPIC: broker.clean,
    Request.DELETE_EXPIRED_COMMITLOG: broker.clean,
    Request.VIEW_BROKER_STATS_DATA: broker.stats,
    Request.QUERY_CONSUME_QUEUE: broker.queue_entries,
    Request.GET_BROKER_HA_STATUS: broker.ha_status,
    Request.VIEW_MESSAGE_BY_ID: queues.view,
    Request.QUERY_MESSAGE: queues.query,
    Request.CHECK_CLIENT_CONFIG: rebalancing.check_config,
    Request.QUERY_ASSIGNMENT: rebalancing.assign,
    Request.SET_MESSAGE_REQUEST_MODE: rebalancing.set_mode,
    Request.GET_ALL_MESSAGE_REQUEST_MODE: switched_off.request_modes,
    Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: switched_off.set_thresholds,
    Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: switched_off.forget_threshold,
    Request.GET_COLD_DATA_FLOW_CTR_INFO: switched_off.cold_data,
    Request.SET_COMMITLOG_READ_MODE: switched_off.set_read_ahead,
    Request.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: switched_off.check_rocksdb_queues,
    Request.EXPORT_ROCKSDB_CONFIG_TO_JSON: switched_off.export_rocksdb,
    Request.RESET_MASTER_FLUSH_OFFSET: switched_off.reset_flush_offset,
    Request.UPDATE_AND_CREATE_STATIC_TOPIC: switched_off.static_topic,
    Request.GET_TIMER_CHECK_POINT: switched_off.for_slaves,
    Request.GET_TIMER_METRICS: switched_off.for_slaves,
    Request.GET_BROKER_EPOCH_CACHE: switched_off.epochs,
    **dict.fromkeys(AUTHORITY, switched_off.authority),
}


def unsupported(code: int) -> Reply:
    """What RocketMQ answers to a code that it does not have."""
    if code in POP:
        return rebalancing.not_by("POP")
    return Reply(
        code=Response.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"there is no request of code {code} here",
    )
