"""The topics and groups that RocketMQ keeps for itself, by name.

    SCHEDULE_TOPIC_XXXX           waits until its delay level is over, level n in queue n - 1
    rmq_sys_wheel_timer           waits until any time
    RMQ_SYS_TRANS_HALF_TOPIC      half messages: stored, and not visible before their commit
    RMQ_SYS_TRANS_OP_HALF_TOPIC   which half messages are done
    TRANS_CHECK_MAX_TIME_TOPIC    half messages whose producer was asked too often
    %RETRY%group, %DLQ%group      a group's messages that come again, and those that came too often

A client may send delayed and half messages into the first three: it makes their records itself, in
the form that this room's functions give them.
"""

from __future__ import annotations

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from penstock.shared.names import DLQ_PREFIX, RETRY_PREFIX

__all__ = ["SCHEDULE_TOPIC"]

TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# The offsets of exactly-once groups; Penstock's own.
OFFSETS_TOPIC = "rmq_sys_penstock_offsets"
# Rows that Spark's tasks have written and that no driver has committed yet; Penstock's own.
STAGING_TOPIC = "rmq_sys_penstock_staging"
# Queues of each of Penstock's own topics: a first use makes them, whatever is configured.
OWN_QUEUES = {OFFSETS_TOPIC: 1, STAGING_TOPIC: 8}
# Its row in consumerOffset.json says how far OFFSETS_TOPIC was read.
OFFSETS_GROUP = "CID_RMQ_SYS_PENSTOCK_OFFSETS"
# Its row there counts deletions of topics: those for which groups have dropped their offsets.
DELETIONS_GROUP, DELETIONS_TOPIC = "CID_RMQ_SYS_PENSTOCK_DELETIONS", "rmq_sys_penstock_deletions"
# The broker's own groups begin with this; they are not shown to anybody.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
# The groups as which RocketMQ's tools read.
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

# Topics whose records have the form that this room gives them, and the number of queues of each. No
# user makes, changes or lists them.
QUEUES = {
    SCHEDULE_TOPIC: len(DELAY_LEVELS_MS),
    TIMER_TOPIC: 1,
    HALF_TOPIC: 1,
    OP_TOPIC: 1,
    TRANS_CHECK_MAX_TIME_TOPIC: 1,
}
# RocketMQ's template: a topic that a first message makes gets its permission and queues.
TEMPLATE_TOPIC = "TBW102"

TRACE_TOPIC, BENCHMARK_TOPIC = "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest"
# The broker's own topics with messages that somebody may still want once they have expired.
WORTH_KEEPING = frozenset({TRANS_CHECK_MAX_TIME_TOPIC, TRACE_TOPIC, BENCHMARK_TOPIC})

# RocketMQ's set. Nobody may change or delete these, nor any topic with its prefix.
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
# All system topics whose names are known before a store has them.
NAMED_TOPICS = _SYSTEM_TOPICS | QUEUES.keys() | OWN_QUEUES.keys()

# Topics to which RocketMQ's clients may not send by name, neither there nor here; and Penstock's
# own, to which only their owners write.
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

# Its rows in consumerOffset.json say how far half messages and op records were read.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"


def is_system_topic(topic: str) -> bool:
    """Whether a topic is the broker's own, which users may not change or delete."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


def is_built_in_group(group: str) -> bool:
    """Whether a group exists for RocketMQ's broker without having been made."""
    return group in _TOOL_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The topic for a group's messages that come again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic for a group's messages that came too often: dead letters."""
    return DLQ_PREFIX + group
