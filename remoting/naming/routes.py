"""The brokers that have registered, and where each topic is: what a name server knows. No I/O.

A broker has a name, which a group shares, and an id in the group: 0 is the master, the others are
its slaves. The master says which topics the group has; if there is none, a slave does. A broker is
forgotten when it says so, when its connection ends, or when it is silent for its timeout. A group's
topics are forgotten when none of its brokers is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from penstock.remoting.bodies import BrokerData, ClusterInfo, QueueData
from penstock.remoting.naming.registration import Registration
from penstock.remoting.naming.words import BrokerFields, DataVersion, RegisterAnswer, RegisterFields
from penstock.shared.messaging.topic_rules import PERM_DEFAULT, PERM_WRITE, TopicConfig

MASTER_ID = 0


class _Live(NamedTuple):
    """One broker. `asker` is the connection that registered it; None if it is always there."""

    name: str
    broker_id: int
    heard_ms: int
    timeout_ms: int
    version: DataVersion
    asker: object | None
    ha_server: str


class _Group:
    """The brokers that share one name."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.addresses: dict[int, str] = {}
        self.enable_acting_master = False
        self.zone: str | msgspec.UnsetType = msgspec.UNSET


class Routes:
    """All that is registered. Times are monotonic, in ms."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        # by cluster and address, which identify a broker whatever names it takes
        self._live: dict[tuple[str, str], _Live] = {}
        # those that are always there, name -> address: no connection takes their place
        self._own: dict[str, str] = {}

    # --- brokers ---

    def register(
        self, said: RegisterFields, registration: Registration, asker: object | None, now_ms: int
    ) -> RegisterAnswer | None:
        """Register a broker with these topics; returns None if that cannot be accepted.

        A new broker has to register all its topics. If two claim the same id, the one with the
        older state of topics is ignored. So is one that claims to be a broker that is always there.
        """
        if asker is None:
            self._own[said.broker_name] = said.broker_addr
        elif self._is_own(said.broker_addr) or (
            said.broker_name in self._own and said.broker_id <= MASTER_ID
        ):
            return RegisterAnswer()
        group = self._groups.get(said.broker_name) or _Group(said.cluster_name)
        before = group.addresses.get(said.broker_id)
        if before not in (None, said.broker_addr) and self._is_older(group, before, registration):
            return RegisterAnswer()
        if before is None and len(registration.topics) == 1:
            # a change of one topic, from a broker that this name server does not know yet
            return None
        self._groups[said.broker_name] = group
        group.enable_acting_master = bool(said.enable_acting_master)
        group.zone = said.zone_name
        for number, address in list(group.addresses.items()):
            if address == said.broker_addr and number != said.broker_id:
                del group.addresses[number]  # the broker has another id now
        group.addresses[said.broker_id] = said.broker_addr
        key = said.cluster_name, said.broker_addr
        known = self._live.get(key)
        is_new = before != said.broker_addr or known is None
        speaks = said.broker_id == min(group.addresses) and (
            said.broker_id == MASTER_ID or said.enable_acting_master is not None
        )
        if speaks:
            changed = is_new or known is None or known.version != registration.version
            self._take_topics(said.broker_name, registration.topics, changed)
        self._live[key] = _Live(
            said.broker_name, said.broker_id, now_ms, said.heartbeat_timeout_millis,
            registration.version, asker, said.ha_server_addr,
        )  # fmt: skip
        return self._master_of(group, said.broker_id)

    def _is_own(self, address: str) -> bool:
        return address in self._own.values()

    def _is_older(self, group: _Group, address: str | None, said: Registration) -> bool:
        there = self._live.get((group.cluster, address or ""))
        return there is not None and there.version.state_version > said.version.state_version

    def _take_topics(self, broker: str, topics: Mapping[str, TopicConfig], changed: bool) -> None:
        for topic, config in topics.items():
            brokers = self._topics.setdefault(topic, {})
            if changed or broker not in brokers:
                brokers[broker] = _queues(broker, config)

    def _master_of(self, group: _Group, broker_id: int) -> RegisterAnswer:
        master = group.addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return RegisterAnswer()
        live = self._live.get((group.cluster, master))
        return RegisterAnswer(live.ha_server if live is not None else "", master)

    def set_topics(self, broker: str, topics: dict[str, TopicConfig]) -> None:
        """Set all topics of a broker in this process; those that it no longer has are removed."""
        for topic in [name for name, brokers in self._topics.items() if broker in brokers]:
            if topic not in topics:
                self._forget_topic(topic, {broker})
        self._take_topics(broker, topics, True)

    def heard(self, said: BrokerFields, now_ms: int) -> DataVersion | None:
        """A broker shows that it is there. Returns the version of its registered topics, None if it
        is not known."""
        key = said.cluster_name, said.broker_addr
        known = self._live.get(key)
        if known is None:
            return None
        self._live[key] = known._replace(heard_ms=now_ms)
        return known.version

    def unregister(self, cluster: str, address: str, name: str) -> None:
        """Forget a broker, unless it is one that is always there."""
        if self._is_own(address):
            return
        self._live.pop((cluster, address), None)
        group = self._groups.get(name)
        if group is None:
            return
        group.addresses = {at: each for at, each in group.addresses.items() if each != address}
        if not group.addresses:
            del self._groups[name]
            for topic in list(self._topics):
                self._forget_topic(topic, {name})

    def gone(self, asker: object) -> list[str]:
        """A connection has ended: forget its brokers. Returns their addresses."""
        return self._forget(key for key, live in self._live.items() if live.asker is asker)

    def expire(self, now_ms: int) -> list[str]:
        """Forget brokers that have been silent for their timeouts. Returns their addresses."""
        return self._forget(
            key
            for key, live in self._live.items()
            if live.asker is not None and now_ms - live.heard_ms > live.timeout_ms
        )

    def _forget(self, keys: Iterator[tuple[str, str]]) -> list[str]:
        found = list(keys)
        for cluster, address in found:
            self.unregister(cluster, address, self._live[cluster, address].name)
        return [address for _, address in found]

    # --- topics ---

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Somebody says where a topic is. It is ignored if a broker in it is not known."""
        if all(each.broker_name in self._groups for each in queues):
            for each in queues:
                self._topics.setdefault(topic, {})[each.broker_name] = each

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic of one cluster, or of all."""
        brokers = self._topics.get(topic, {})
        if not cluster:
            self._forget_topic(topic, set(brokers))
            return
        there = {name for name in brokers if (g := self._groups.get(name)) and g.cluster == cluster}
        self._forget_topic(topic, there)

    def _forget_topic(self, topic: str, brokers: set[str]) -> None:
        left = self._topics.get(topic, {})
        for name in brokers & left.keys():
            del left[name]
        if not left:
            self._topics.pop(topic, None)

    def set_write_perm(self, broker: str, may_write: bool) -> int:
        """Have producers leave a broker, or come back. Returns for how many topics."""
        count = 0
        for brokers in self._topics.values():
            found = brokers.get(broker)
            if found is not None:
                perm = PERM_DEFAULT if may_write else found.perm & ~PERM_WRITE
                brokers[broker] = QueueData(
                    broker, perm, found.read_queue_nums, found.topic_sys_flag,
                    found.write_queue_nums,
                )  # fmt: skip
                count += 1
        return count

    # --- looking ---

    def topic(self, topic: str) -> tuple[list[BrokerData], list[QueueData]]:
        """Where a topic is; empty lists where nobody has it."""
        queues = self._topics.get(topic, {})
        return [self._data(name) for name in queues if name in self._groups], [*queues.values()]

    def topics(self, cluster: str = "") -> list[str]:
        """The names of all topics, or of those that a cluster has."""
        if not cluster:
            return sorted(self._topics)
        names = {name for name, group in self._groups.items() if group.cluster == cluster}
        return sorted(topic for topic, brokers in self._topics.items() if names & brokers.keys())

    def with_sys_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose first broker has these bits of the flag, and not those."""
        found = []
        for topic, brokers in sorted(self._topics.items()):
            flag = next(iter(brokers.values())).topic_sys_flag
            if flag & wanted and not flag & unwanted:
                found.append(topic)
        return found

    def cluster_info(self) -> ClusterInfo:
        clusters: dict[str, list[str]] = {}
        for name, group in self._groups.items():
            clusters.setdefault(group.cluster, []).append(name)
        return ClusterInfo({name: self._data(name) for name in self._groups}, clusters)

    def addresses(self, broker: str) -> dict[int, str]:
        group = self._groups.get(broker)
        return dict(group.addresses) if group is not None else {}

    def _data(self, name: str) -> BrokerData:
        group = self._groups[name]
        addresses = dict(sorted(group.addresses.items()))
        return BrokerData(addresses, name, group.cluster, group.enable_acting_master, group.zone)


def _queues(broker: str, config: TopicConfig) -> QueueData:
    return QueueData(broker, config.perm, config.read_queues, config.sys_flag, config.write_queues)
