"""Which request is served by what: one table.

A processor takes the services and the call, and returns a reply; None where it replies later. It
raises PenstockError for what it refuses. A new code is one function, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.actors.gateway import clients, name_server, send_requests
from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request, Response

Processor = Callable[[Services, Call], Reply | None]

PROCESSORS: Mapping[int, Processor] = {
    Request.GET_ROUTEINFO_BY_TOPIC: name_server.route,
    Request.GET_BROKER_CLUSTER_INFO: name_server.cluster,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: name_server.all_topics,
    Request.SEND_MESSAGE: send_requests.send,
    Request.SEND_MESSAGE_V2: send_requests.send,
    Request.SEND_BATCH_MESSAGE: send_requests.send,
    Request.HEART_BEAT: clients.heartbeat,
    Request.UNREGISTER_CLIENT: clients.unregister,
}


def unsupported(code: int) -> Reply:
    """What RocketMQ answers to a code that it does not have."""
    return Reply(
        code=Response.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"there is no request of code {code} here",
    )
