"""Bodies of operators' requests and their answers. See remoting/bodies for how they are written."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.remoting.bodies import ConsumeStats, QueueBody, TopicConfigBody
from penstock.remoting.command import Int32
from penstock.remoting.naming.words import DataVersion
from penstock.shared.wire.topic_messages import FilterType


class TopicConfigs(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_table: dict[str, TopicConfigBody]
    data_version: DataVersion


class NewTopic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic as it should be; `attributes` has changes: +KEY to a value, or -KEY."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    order: bool = False
    attributes: dict[str, str] = {}
    topic_filter_type: FilterType = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0


class NewTopics(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_list: list[NewTopic] = []


class GroupConfigs(msgspec.Struct, frozen=True, rename="camel"):
    """Groups with their settings, in the words of subscriptionGroup.json."""

    subscription_group_table: dict[str, dict[str, Any]]
    data_version: DataVersion = DataVersion()


class ConnectionBody(msgspec.Struct, frozen=True, rename="camel"):
    """A client, and the language that it is written in."""

    client_id: str
    client_addr: str
    language: str
    version: int


class Connections(msgspec.Struct, frozen=True, rename="camel"):
    connection_set: list[ConnectionBody]


class SubscriptionRow(msgspec.Struct, frozen=True, rename="camel"):
    """What members of a group want of a topic."""

    topic: str
    sub_string: str
    sub_version: int
    expression_type: str
    tags_set: list[str]
    code_set: list[int]
    class_filter_mode: bool = False


class GroupConnections(msgspec.Struct, frozen=True, rename="camel"):
    connection_set: list[ConnectionBody]
    subscription_table: dict[str, SubscriptionRow]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerRow(msgspec.Struct, frozen=True, rename="camel"):
    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class Producers(msgspec.Struct, frozen=True):
    data: dict[str, list[ProducerRow]]


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    group_list: list[str]


class SubscriptionOf(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    group: str
    topic: str
    subscription_data: SubscriptionRow | None = None


class TimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """Store times of a queue's first and last message, and of the last one that a group has
    consumed; and how late the group is. In ms."""

    message_queue: QueueBody
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class TimeSpans(msgspec.Struct, frozen=True, rename="camel"):
    consume_time_span_set: list[TimeSpan]


class Offsets(msgspec.Struct, frozen=True, rename="camel"):
    """The keys are queues: see `queue_key`."""

    offset_table: dict[str, int]


class BrokerConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    broker_addr: str
    total_diff: int
    total_inflight_diff: int


class StatsItem(msgspec.Struct, frozen=True):
    sum: int
    tps: float
    avgpt: float = 0.0


class Stats(msgspec.Struct, frozen=True, rename="camel"):
    stats_minute: StatsItem
    stats_hour: StatsItem
    stats_day: StatsItem


class Table(msgspec.Struct, frozen=True):
    table: dict[str, str]


class EntryRow(msgspec.Struct, frozen=True, rename="camel"):
    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


class Entries(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    queue_data: list[EntryRow]
    max_queue_index: int
    min_queue_index: int
    subscription_data: SubscriptionRow | None = None
    filter_data: str | None = None


class HaStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A broker without slaves."""

    master_commit_log_max_offset: int
    master: bool = True
    in_sync_slave_nums: int = 0
    ha_connection_info: list[str] = []


class ColdData(msgspec.Struct, frozen=True, rename="camel"):
    """Thresholds of groups, in bytes, and how much was read: see `switched_off`. The last three are
    the defaults of RocketMQ's broker."""

    config_table: dict[str, int]
    runtime_table: dict[str, int] = {}
    cg_cold_read_threshold: int = 3 << 20
    global_cold_read_threshold: int = 100 << 20
    global_acc: int = 0


class CqCheck(msgspec.Struct, frozen=True, rename="camel"):
    """Whether RocksDB's consume queues equal those in files. Status 2: the check is still
    running."""

    check_result: str
    check_status: int = 2


class RequestModes(msgspec.Struct, frozen=True, rename="camel"):
    """Topic -> group -> how the group gets its messages, where that is set."""

    message_request_mode_map: dict[str, dict[str, str]]
