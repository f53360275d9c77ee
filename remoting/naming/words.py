"""The fields and bodies of a name server's requests. They are read like those of a broker."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.remoting.bodies import QueueData
from penstock.remoting.codes import Request
from penstock.remoting.command import Int64

_EXPIRY_MS = 120_000


class RegisterFields(msgspec.Struct, frozen=True, rename="camel"):
    """A broker registers, again and again. `broker_id` 0 is a master; `zone_name` is where the
    broker is, in its operator's words."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str = ""
    heartbeat_timeout_millis: Int64 = _EXPIRY_MS
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int64 = 0
    zone_name: str | msgspec.UnsetType = msgspec.field(name="__ZONE_NAME", default=msgspec.UNSET)


class RegisterAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """For a slave: where its master is."""

    ha_server_addr: str = ""
    master_addr: str = ""


class BrokerFields(msgspec.Struct, frozen=True, rename="camel"):
    """One broker, by all its names."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class MembersFields(msgspec.Struct, frozen=True, rename="camel"):
    cluster_name: str
    broker_name: str


class VersionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    changed: bool


class PermFields(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str


class WipedAnswer(msgspec.Struct, frozen=True, rename="camel"):
    wipe_topic_count: int


class AddedAnswer(msgspec.Struct, frozen=True, rename="camel"):
    add_topic_count: int


class TopicRouteFields(msgspec.Struct, frozen=True, rename="camel"):
    """A topic, of one cluster or of all."""

    topic: str
    cluster_name: str = ""


class ClusterFields(msgspec.Struct, frozen=True):
    cluster: str


class KeyFields(msgspec.Struct, frozen=True):
    namespace: str
    key: str


class SettingFields(msgspec.Struct, frozen=True):
    namespace: str
    key: str
    value: str


class NamespaceFields(msgspec.Struct, frozen=True):
    namespace: str


class ValueAnswer(msgspec.Struct, frozen=True):
    value: str


class Nothing(msgspec.Struct, frozen=True):
    """No fields: the body, or the code alone, says what is asked for."""


FIELDS: Mapping[int, type[msgspec.Struct]] = {
    Request.PUT_KV_CONFIG: SettingFields,
    Request.GET_KV_CONFIG: KeyFields,
    Request.DELETE_KV_CONFIG: KeyFields,
    Request.REGISTER_BROKER: RegisterFields,
    Request.UNREGISTER_BROKER: BrokerFields,
    Request.WIPE_WRITE_PERM_OF_BROKER: PermFields,
    Request.ADD_WRITE_PERM_OF_BROKER: PermFields,
    Request.DELETE_TOPIC_IN_NAMESRV: TopicRouteFields,
    Request.REGISTER_TOPIC_IN_NAMESRV: TopicRouteFields,
    Request.GET_KVLIST_BY_NAMESPACE: NamespaceFields,
    Request.GET_TOPICS_BY_CLUSTER: ClusterFields,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: Nothing,
    Request.GET_UNIT_TOPIC_LIST: Nothing,
    Request.GET_HAS_UNIT_SUB_TOPIC_LIST: Nothing,
    Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Nothing,
    Request.UPDATE_NAMESRV_CONFIG: Nothing,
    Request.GET_NAMESRV_CONFIG: Nothing,
    Request.QUERY_DATA_VERSION: BrokerFields,
    Request.GET_BROKER_MEMBER_GROUP: MembersFields,
    Request.BROKER_HEARTBEAT: BrokerFields,
}


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Which state of its topics a broker has registered."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0


class QueueDatas(msgspec.Struct, frozen=True, rename="camel"):
    """The only part that counts of a route that somebody registers."""

    queue_datas: list[QueueData] = []


class KeyTable(msgspec.Struct, frozen=True):
    table: dict[str, str]


class MemberGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The brokers of one name: id -> HOST:PORT."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class MemberGroupBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_member_group: MemberGroup
