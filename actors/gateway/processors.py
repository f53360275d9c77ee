"""Which request is served by what: one table.

A processor takes the services and the call, and returns a reply; None where it replies later. It
raises PenstockError for what it refuses. A new code is one function, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.requests import (
    admin,
    clients,
    name_server,
    queues,
    sending,
    topics,
)
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request, Response

Processor = Callable[[Services, Call], Reply | None]

PROCESSORS: Mapping[int, Processor] = {
    Request.GET_ROUTEINFO_BY_TOPIC: name_server.route,
    Request.GET_BROKER_CLUSTER_INFO: name_server.cluster,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: name_server.all_topics,
    Request.SEND_MESSAGE: sending.send,
    Request.SEND_MESSAGE_V2: sending.send,
    Request.SEND_BATCH_MESSAGE: sending.send,
    Request.CONSUMER_SEND_MSG_BACK: sending.send_back,
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
    Request.GET_CONSUME_STATS: admin.consume_stats,
    Request.GET_TOPIC_STATS_INFO: admin.topic_stats,
    Request.GET_TOPIC_CONFIG: admin.topic_config,
    Request.VIEW_MESSAGE_BY_ID: queues.view,
}


def unsupported(code: int) -> Reply:
    """What RocketMQ answers to a code that it does not have."""
    return Reply(
        code=Response.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"there is no request of code {code} here",
    )
