"""The topics and groups that RocketMQ keeps for itself, by name.

    SCHEDULE_TOPIC_XXXX           waits until its delay level is over, level n in queue n - 1
    rmq_sys_wheel_timer           waits until any time
    RMQ_SYS_TRANS_HALF_TOPIC      half messages: stored, and not visible before their commit
    RMQ_SYS_TRANS_OP_HALF_TOPIC   which half messages are done
    TRANS_CHECK_MAX_TIME_TOPIC    half messages whose producer was asked too often
    %RETRY%group, %DLQ%group      a group's messages that come again, and those that came too often

A client may send delayed and half messages into the first three: it makes their records itself, in
the form that the functions of this room give them.
"""

from __future__ import annotations

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from penstock.shared.names import DLQ_PREFIX, RETRY_PREFIX

__all__ = ["SCHEDULE_TOPIC"]

TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# The offsets of groups that read, work and write exactly once; Penstock's own.
OFFSETS_TOPIC = "rmq_sys_penstock_offsets"
# Rows that Spark's tasks have written and that no driver has committed yet; Penstock's own.
STAGING_TOPIC = "rmq_sys_penstock_staging"
# How many queues each of Penstock's own has: a first use makes them, whatever is configured.
OWN_QUEUES = {OFFSETS_TOPIC: 1, STAGING_TOPIC: 8}
# Whose row in consumerOffset.json says how far that was looked through.
OFFSETS_GROUP = "CID_RMQ_SYS_PENSTOCK_OFFSETS"
# Its row there counts deletions of topics: those that groups have forgotten their offsets for.
DELETIONS_GROUP, DELETIONS_TOPIC = "CID_RMQ_SYS_PENSTOCK_DELETIONS", "rmq_sys_penstock_deletions"
# Groups of the broker's own begin with this; nobody is shown them.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
# By which RocketMQ's tools read.
_TOOL_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)

# Those that records are sent to which have the form that this room gives them, and how many queues
# each has. No user makes, changes or lists them.
QUEUES = {
    SCHEDULE_TOPIC: len(DELAY_LEVELS_MS),
    TIMER_TOPIC: 1,
    HALF_TOPIC: 1,
    OP_TOPIC: 1,
    TRANS_CHECK_MAX_TIME_TOPIC: 1,
}
# Whose permission and queues a topic gets that is made by a first message: RocketMQ's template.
TEMPLATE_TOPIC = "TBW102"

TRACE_TOPIC, BENCHMARK_TOPIC = "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest"
# Those of the broker's own that have messages which somebody may want when they have expired.
WORTH_KEEPING = frozenset({TRANS_CHECK_MAX_TIME_TOPIC, TRACE_TOPIC, BENCHMARK_TOPIC})

# RocketMQ's set. It lets nobody change or delete these, nor whatever has its prefix.
_SYSTEM_TOPICS = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        BENCHMARK_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
_SYSTEM_PREFIX = "rmq_sys_"
# All whose names are known before a store has them.
NAMED_TOPICS = _SYSTEM_TOPICS | QUEUES.keys() | OWN_QUEUES.keys()

# What RocketMQ's clients may send to by name neither here nor there; and Penstock's own, which are
# written by those that own them.
NOT_SENT_TO = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        *OWN_QUEUES,
    }
)

# Whose rows in consumerOffset.json say how far half messages and their marks were looked through.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"


def is_system_topic(topic: str) -> bool:
    """Whether a topic is the broker's own, and not to be changed or deleted by a user."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


def is_built_in_group(group: str) -> bool:
    """Whether RocketMQ's broker knows a group without being told of it."""
    return group in _TOOL_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Where a group's messages go that are to come again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where a group's messages go that came too often: dead letters."""
    return DLQ_PREFIX + group
