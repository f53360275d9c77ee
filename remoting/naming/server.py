"""A name server's requests, and what is answered to each: one table. A state without I/O.

A broker's gateway has one for its name server port, and `penstock namesrv` has one: so both tell a
client the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import UNSET

from penstock.remoting.bodies import (
    TopicList,
    TopicRoute,
    bare_keys,
    read_body,
    write_body,
)
from penstock.remoting.codes import FIRST_STANDARD_JSON, Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import RouteFields, read_fields
from penstock.remoting.naming.registration import decode_registration
from penstock.remoting.naming.routes import Routes
from penstock.remoting.naming.words import (
    AddedAnswer,
    BrokerFields,
    ClusterFields,
    DataVersion,
    KeyFields,
    KeyTable,
    MemberGroup,
    MemberGroupBody,
    MembersFields,
    NamespaceFields,
    PermFields,
    QueueDatas,
    RegisterFields,
    SettingFields,
    TopicRouteFields,
    ValueAnswer,
    VersionAnswer,
    WipedAnswer,
)
from penstock.remoting.replies import Reply
from penstock.shared.errors import (
    InvalidArgument,
    ProtocolError,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.messaging.topic_rules import UNIT, UNIT_SUB

# The namespace of ordered topics: TOPIC -> BROKER:QUEUES;BROKER:QUEUES
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
# Settings are for operators, and all of them are written at each change.
MOST_SETTINGS_BYTES = 1 << 20

Settings = dict[str, dict[str, str]]


class Asked(NamedTuple):
    """A request, and the connection that it came by. `now_ms` is monotonic."""

    command: Command
    asker: object
    now_ms: int


class NameServer:
    """What a name server knows. `settings` are those of KV, by namespace and key."""

    def __init__(
        self,
        not_found: Callable[[str], TopicNotFound],
        save: Callable[[Settings], None],
        settings: Settings,
        config: Mapping[str, object],
        orders_in_routes: bool = False,
    ) -> None:
        """`save` makes settings durable before they count, and raises OSError; `config` is what a
        client that asks for the configuration is told. `not_found` makes the error for a topic.
        With `orders_in_routes` a topic's order is in its route, else only brokers are told of
        it."""
        self.routes = Routes()
        self.settings = settings
        self._not_found, self._save = not_found, save
        self._orders_in_routes = orders_in_routes
        self._config = {**config, "orderMessageEnable": str(orders_in_routes).lower()}

    def answer(self, command: Command, asker: object, now_ms: int) -> Reply:
        """Raises PenstockError for what is refused."""
        return NAMING[command.code](self, Asked(command, asker, now_ms))

    # --- topics ---

    def route(self, asked: Asked) -> Reply:
        wanted = read_fields(asked.command, RouteFields)
        brokers, queues = self.routes.topic(wanted.topic)
        if not brokers:
            raise self._not_found(wanted.topic)
        orders = self.settings.get(ORDER_NAMESPACE, {}) if self._orders_in_routes else {}
        order = orders.get(wanted.topic, UNSET)
        body = write_body(TopicRoute(brokers, {}, queues, order))
        is_new = asked.command.version >= FIRST_STANDARD_JSON
        return Reply(body=body if is_new or wanted.accept_standard_json_only else bare_keys(body))

    def all_topics(self, asked: Asked) -> Reply:
        return _names(self.routes.topics())

    def topics_of(self, asked: Asked) -> Reply:
        return _names(self.routes.topics(read_fields(asked.command, ClusterFields).cluster))

    def system_topics(self, asked: Asked) -> Reply:
        """Names of clusters and brokers, each of which is also a topic's, and a broker to ask for
        more."""
        info = self.routes.cluster_info()
        names = [name for each in info.cluster_addr_table.items() for name in (each[0], *each[1])]
        first = next(iter(info.broker_addr_table.values()), None)
        address = UNSET if first is None else next(iter(first.broker_addrs.values()))
        return Reply(body=write_body(TopicList(names, address)))

    def unit_topics(self, asked: Asked) -> Reply:
        return _names(self.routes.with_sys_flag(UNIT))

    def unit_sub_topics(self, asked: Asked) -> Reply:
        return _names(self.routes.with_sys_flag(UNIT_SUB))

    def unit_sub_other_topics(self, asked: Asked) -> Reply:
        return _names(self.routes.with_sys_flag(UNIT_SUB, UNIT))

    def delete_topic(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, TopicRouteFields)
        self.routes.delete_topic(fields.topic, fields.cluster_name)
        return Reply()

    def register_topic(self, asked: Asked) -> Reply:
        topic = read_fields(asked.command, TopicRouteFields).topic
        if asked.command.body:
            self.routes.register_topic(topic, read_body(asked.command.body, QueueDatas).queue_datas)
        return Reply()

    # --- brokers ---

    def register(self, asked: Asked) -> Reply:
        fields, command = read_fields(asked.command, RegisterFields), asked.command
        if fields.body_crc32 and fields.body_crc32 != zlib.crc32(command.body) & 0x7FFFFFFF:
            raise ProtocolError("a broker's registration has another checksum than it says")
        said = decode_registration(command.body, fields.compressed, command.version)
        answer = self.routes.register(fields, said, asked.asker, asked.now_ms)
        if answer is None:
            remark = "register all topics of a broker before a change of one"
            return Reply(code=Response.SYSTEM_ERROR, remark=remark)
        order = self.settings.get(ORDER_NAMESPACE)
        return Reply(answer, write_body(KeyTable(order)) if order is not None else b"")

    def unregister(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, BrokerFields)
        self.routes.unregister(fields.cluster_name, fields.broker_addr, fields.broker_name)
        return Reply()

    def heartbeat(self, asked: Asked) -> Reply:
        self.routes.heard(read_fields(asked.command, BrokerFields), asked.now_ms)
        return Reply()

    def query_version(self, asked: Asked) -> Reply:
        """Whether a broker has to register its topics again. The question also counts as a
        heartbeat."""
        known = self.routes.heard(read_fields(asked.command, BrokerFields), asked.now_ms)
        own = read_body(asked.command.body, DataVersion)
        body = write_body(known) if known is not None else b""
        return Reply(VersionAnswer(known != own), body)

    def cluster_info(self, asked: Asked) -> Reply:
        return Reply(body=write_body(self.routes.cluster_info()))

    def members(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, MembersFields)
        addresses = self.routes.addresses(fields.broker_name)
        group = MemberGroup(addresses, fields.broker_name, fields.cluster_name)
        return Reply(body=write_body(MemberGroupBody(group)))

    def wipe_write_perm(self, asked: Asked) -> Reply:
        broker = read_fields(asked.command, PermFields).broker_name
        return Reply(WipedAnswer(self.routes.set_write_perm(broker, False)))

    def add_write_perm(self, asked: Asked) -> Reply:
        broker = read_fields(asked.command, PermFields).broker_name
        return Reply(AddedAnswer(self.routes.set_write_perm(broker, True)))

    # --- settings ---

    def put(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, SettingFields)
        table = self.settings.get(fields.namespace, {}) | {fields.key: fields.value}
        size = _size(self.settings | {fields.namespace: table})
        if size > MOST_SETTINGS_BYTES:
            what = f"the settings would take more than {MOST_SETTINGS_BYTES} bytes"
            hint = "delete some: mqadmin deleteKvConfig"
            raise InvalidArgument(what, size, hint)
        self._set(fields.namespace, table)
        return Reply()

    def get(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, KeyFields)
        value = self.settings.get(fields.namespace, {}).get(fields.key)
        if value is None:
            return _no_setting(f"{fields.namespace}, {fields.key}")
        return Reply(ValueAnswer(value))

    def delete(self, asked: Asked) -> Reply:
        fields = read_fields(asked.command, KeyFields)
        table = dict(self.settings.get(fields.namespace, {}))
        if table.pop(fields.key, None) is not None:
            self._set(fields.namespace, table)
        return Reply()

    def list_settings(self, asked: Asked) -> Reply:
        namespace = read_fields(asked.command, NamespaceFields).namespace
        table = self.settings.get(namespace)
        if table is None:
            return _no_setting(namespace)
        return Reply(body=write_body(KeyTable(table)))

    def _set(self, namespace: str, table: dict[str, str]) -> None:
        settings = self.settings | {namespace: table}
        try:
            self._save(settings)
        except OSError as error:
            raise StoreUnavailable(
                "the settings of the name server cannot be written", error, "look at the disk"
            ) from None
        self.settings = settings

    def config(self, asked: Asked) -> Reply:
        lines = "".join(f"{key}={value}\n" for key, value in sorted(self._config.items()))
        return Reply(body=lines.encode())

    def update_config(self, asked: Asked) -> Reply:
        raise InvalidArgument(
            "a name server's configuration is fixed while it runs",
            bytes(asked.command.body).decode("utf-8", "replace")[:200],
            "start it with other options: penstock namesrv --help",
        )


def _size(settings: Settings) -> int:
    """The size of all names and values, in characters."""
    return sum(
        len(namespace) + sum(len(key) + len(value) for key, value in table.items())
        for namespace, table in settings.items()
    )


def _names(names: list[str]) -> Reply:
    return Reply(body=write_body(TopicList(names)))


def _no_setting(what: str) -> Reply:
    return Reply(code=Response.QUERY_NOT_FOUND, remark=f"there is no such setting: {what}")


NAMING: Mapping[int, Callable[[NameServer, Asked], Reply]] = {
    Request.GET_ROUTEINFO_BY_TOPIC: NameServer.route,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NameServer.all_topics,
    Request.GET_TOPICS_BY_CLUSTER: NameServer.topics_of,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: NameServer.system_topics,
    Request.GET_UNIT_TOPIC_LIST: NameServer.unit_topics,
    Request.GET_HAS_UNIT_SUB_TOPIC_LIST: NameServer.unit_sub_topics,
    Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NameServer.unit_sub_other_topics,
    Request.DELETE_TOPIC_IN_NAMESRV: NameServer.delete_topic,
    Request.REGISTER_TOPIC_IN_NAMESRV: NameServer.register_topic,
    Request.REGISTER_BROKER: NameServer.register,
    Request.UNREGISTER_BROKER: NameServer.unregister,
    Request.BROKER_HEARTBEAT: NameServer.heartbeat,
    Request.QUERY_DATA_VERSION: NameServer.query_version,
    Request.GET_BROKER_CLUSTER_INFO: NameServer.cluster_info,
    Request.GET_BROKER_MEMBER_GROUP: NameServer.members,
    Request.WIPE_WRITE_PERM_OF_BROKER: NameServer.wipe_write_perm,
    Request.ADD_WRITE_PERM_OF_BROKER: NameServer.add_write_perm,
    Request.PUT_KV_CONFIG: NameServer.put,
    Request.GET_KV_CONFIG: NameServer.get,
    Request.DELETE_KV_CONFIG: NameServer.delete,
    Request.GET_KVLIST_BY_NAMESPACE: NameServer.list_settings,
    Request.GET_NAMESRV_CONFIG: NameServer.config,
    Request.UPDATE_NAMESRV_CONFIG: NameServer.update_config,
}
