"""The numbers of the remoting protocol: requests, responses, languages, versions.

Only requests that something here reads or writes have a name. Any other number is still a command,
and is answered REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from enum import IntEnum

from penstock.shared.errors import PenstockError, ProtocolError


class Request(IntEnum):
    """What is asked for. Those from 39 and 40 also go from the broker to clients."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUME_STATS = 208
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    GET_TOPIC_CONFIG = 351
    LITE_PULL_MESSAGE = 361


class Response(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29


class Language(IntEnum):
    """In what a peer is written. A header of text has the name, a binary one the number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


# What peers know each other's versions by. With a lower one a client refuses SQL92 filters.
VERSION = 479
# From here on a route's brokers are keyed by text in the answer; before, by bare numbers.
FIRST_STANDARD_JSON = 401

# What a refusal of Penstock's is in the protocol. A status that is not here is SYSTEM_ERROR.
RESPONSE_OF_STATUS = {
    "INVALID_ARGUMENT": Response.INVALID_PARAMETER,
    "MESSAGE_ILLEGAL": Response.MESSAGE_ILLEGAL,
    "PROPERTIES_SIZE_EXCEEDED": Response.MESSAGE_ILLEGAL,
    "SUBSCRIPTION_PARSE_FAILED": Response.SUBSCRIPTION_PARSE_FAILED,
    "TOPIC_NOT_EXIST": Response.TOPIC_NOT_EXIST,
    "QUEUE_NOT_EXIST": Response.INVALID_PARAMETER,
    "SUBSCRIPTION_GROUP_NOT_EXIST": Response.SUBSCRIPTION_GROUP_NOT_EXIST,
    "NO_PERMISSION": Response.NO_PERMISSION,
    "QUERY_NOT_FOUND": Response.QUERY_NOT_FOUND,
    "SERVICE_NOT_AVAILABLE": Response.SERVICE_NOT_AVAILABLE,
    "CREATE_MAPPED_FILE_FAILED": Response.SERVICE_NOT_AVAILABLE,
    "SYSTEM_BUSY": Response.SYSTEM_BUSY,
    "OS_PAGE_CACHE_BUSY": Response.SYSTEM_BUSY,
    "PULL_OFFSET_MOVED": Response.PULL_OFFSET_MOVED,
    "FLUSH_DISK_TIMEOUT": Response.FLUSH_DISK_TIMEOUT,
}


def response_of(error: PenstockError) -> Response:
    """The code by which a client is told of an error."""
    if isinstance(error, ProtocolError):
        # a field or a body that cannot be read; its status is that of a message that is wrong
        return Response.SYSTEM_ERROR
    return RESPONSE_OF_STATUS.get(error.status, Response.SYSTEM_ERROR)
