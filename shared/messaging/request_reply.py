"""Request and reply in RocketMQ's form: a message that wants an answer, and the answer.

    request -> its topic                   CORRELATION_ID, REPLY_TO_CLIENT, TTL, CLUSTER
    reply   -> <CLUSTER>_REPLY_TOPIC       CORRELATION_ID, REPLY_TO_CLIENT, TTL, MSG_TYPE=reply

Both are ordinary messages. RocketMQ's broker writes CLUSTER into every message, and pushes a reply
to the client that the reply names before it stores it. Here the requester sets CLUSTER itself, and
reads the replies that name it from the topic where they are stored. So either side may be a client
of either kind. Pure.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from penstock.shared.errors import InvalidMessage

# RocketMQ's default for brokerClusterName
DEFAULT_CLUSTER = "DefaultCluster"
# Properties, with RocketMQ's names.
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
CLUSTER = "CLUSTER"
MSG_TYPE, REPLY = "MSG_TYPE", "reply"
_OF_BOTH = (CORRELATION_ID, REPLY_TO_CLIENT, TTL)


def reply_topic(cluster: str = DEFAULT_CLUSTER) -> str:
    """The topic for a cluster's replies; RocketMQ makes it with one queue."""
    return f"{cluster}_REPLY_TOPIC"


def new_client_id(ip: bytes) -> str:
    """A requester's unique id: as RocketMQ's, but with random bits instead of nanoseconds."""
    import socket  # here, as most clients make no request

    text = socket.inet_ntop(socket.AF_INET if len(ip) == 4 else socket.AF_INET6, ip)
    return f"{text}@{os.getpid()}#{os.urandom(8).hex()}"


def new_correlation_id() -> str:
    return str(uuid.uuid4())


def request_properties(correlation_id: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """The properties that make a message a request of this client, which waits for `timeout_ms`."""
    return {
        CORRELATION_ID: correlation_id,
        REPLY_TO_CLIENT: client_id,
        TTL: str(timeout_ms),
        CLUSTER: DEFAULT_CLUSTER,
    }


def replies_to(client_id: str) -> str:
    """The SQL92 filter of the replies to a client."""
    return f"{REPLY_TO_CLIENT} = '{client_id}'"


def reply_to(request: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The topic and the properties of the reply to a message with these properties.

    Raises InvalidMessage if that is not a request. The topic's name comes from outside: it is
    checked when the reply is sent.
    """
    if missing := [name for name in (CORRELATION_ID, REPLY_TO_CLIENT) if name not in request]:
        raise InvalidMessage(
            "the message asks for no reply: it lacks properties that a request has",
            ", ".join(missing),
            "a request is sent by producer.request(topic, body)",
        )
    own = {name: request[name] for name in _OF_BOTH if name in request}
    return reply_topic(request.get(CLUSTER, DEFAULT_CLUSTER)), own | {MSG_TYPE: REPLY}
