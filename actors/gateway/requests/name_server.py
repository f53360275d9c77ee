"""What a name server is asked: where a topic is, which brokers there are, which topics."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRoute,
    bare_keys,
    write_body,
)
from penstock.remoting.codes import FIRST_STANDARD_JSON
from penstock.remoting.fields import RouteFields, read_fields
from penstock.shared.config import Config

# A master's, in a group of brokers with one name.
MASTER_ID = 0


def route(services: Services, call: Call) -> Reply:
    """The broker that has a topic, and how many queues. Raises TopicNotFound."""
    wanted = read_fields(call.command, RouteFields)
    found, config = services.topics.routed(wanted.topic), services.config
    queues = QueueData(
        config.broker_name, found.perm, found.read_queues, found.sys_flag, found.write_queues
    )
    body = write_body(TopicRoute([_broker(config, services.address)], {}, [queues]))
    is_standard = wanted.accept_standard_json_only or call.command.version >= FIRST_STANDARD_JSON
    return Reply(body=body if is_standard else bare_keys(body))


def cluster(services: Services, call: Call) -> Reply:
    config = services.config
    brokers = {config.broker_name: _broker(config, services.address)}
    return Reply(body=write_body(ClusterInfo(brokers, {config.cluster_name: [*brokers]})))


def all_topics(services: Services, call: Call) -> Reply:
    return Reply(body=write_body(TopicList(services.topics.names())))


def _broker(config: Config, address: str) -> BrokerData:
    return BrokerData({MASTER_ID: address}, config.broker_name, config.cluster_name)
