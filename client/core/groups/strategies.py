"""How the members of a group divide a topic's queues: RocketMQ's strategies, with the same results.

Each member divides for itself, from the same sorted queues and client ids, and takes its own share.
So a strategy must give the same answer in every language and process: it may not use Python's hash
or the order of a set. If two members take a queue for their own, the claim decides.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from penstock.client.core.arguments import wrong_type
from penstock.shared.errors import InvalidArgument
from penstock.shared.wire.group_messages import Joined

VIRTUAL_NODES = 10
_Any = TypeVar("_Any")


class QueueName(NamedTuple):
    """A queue as RocketMQ's MessageQueue; its order is RocketMQ's too."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # CONSISTENT_HASH hashes this text, so each character counts
        return f"MessageQueue [topic={self[0]}, brokerName={self[1]}, queueId={self[2]}]"


Queues = Sequence[QueueName]


class Strategy(Protocol):
    """One way to divide. `name` is RocketMQ's."""

    @property
    def name(self) -> str: ...

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        """The share of `me`, one of the `clients`. Queues and clients are sorted and not empty."""


class Averagely(NamedTuple):
    """AVG, RocketMQ's default: contiguous shares; the first ones have one queue more."""

    name: str = "AVG"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        at, (each, left) = clients.index(me), divmod(len(queues), len(clients))
        size = each + (at < left)
        start = at * size + (0 if at < left else left)
        return list(queues[start : start + size])


class AveragelyByCircle(NamedTuple):
    """AVG_BY_CIRCLE: dealt out like cards."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        return list(queues[clients.index(me) :: len(clients)])


class ByConfig(NamedTuple):
    """CONFIG: always the queues that are named, whoever else is there."""

    queue_ids: Collection[int]
    name: str = "CONFIG"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        return [queue for queue in queues if queue.queue_id in self.queue_ids]


class ByMachineRoom(NamedTuple):
    """MACHINE_ROOM: only queues of brokers called `room@name` with a room of `rooms`."""

    rooms: Collection[str]
    name: str = "MACHINE_ROOM"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        at, (each, left) = clients.index(me), divmod(len(near), len(clients))
        part = near[at * each : (at + 1) * each]
        return part + ([near[each * len(clients) + at]] if at < left else [])

    def _is_near(self, broker_name: str) -> bool:
        # Java's split drops empty strings at the end
        parts = broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self.rooms


class MachineRoomNearby(NamedTuple):
    """MACHINE_ROOM_NEARBY: a room's queues go to the members in that room, or to all members if the
    room has none. Either way the `inner` strategy divides them."""

    inner: Strategy
    room_of_queue: Callable[[QueueName], str]
    room_of_client: Callable[[str], str]

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        of_queues = _by_room(queues, self.room_of_queue)
        of_clients = _by_room(clients, self.room_of_client)
        here = self.room_of_client(me)
        near = of_queues.pop(here, [])
        part = divide(self.inner, near, of_clients[here], me)
        for room in sorted(of_queues.keys() - of_clients.keys()):
            part += divide(self.inner, of_queues[room], clients, me)
        return part


class ConsistentHash(NamedTuple):
    """CONSISTENT_HASH: few queues move when a member comes or goes."""

    virtual_nodes: int = VIRTUAL_NODES
    name: str = "CONSISTENT_HASH"

    def allocate(self, queues: Queues, clients: Sequence[str], me: str) -> list[QueueName]:
        # of two nodes with one hash the later one counts, as in Java's map
        ring = {
            _hash(f"{client}-{number}"): client
            for client in clients
            for number in range(self.virtual_nodes)
        }
        nodes = sorted(ring)
        if not nodes:
            return []

        def owner(queue: QueueName) -> str:
            return ring[nodes[bisect_left(nodes, _hash(str(queue))) % len(nodes)]]

        return [queue for queue in queues if owner(queue) == me]


BY_NAME: dict[str, Strategy] = {
    each.name: each for each in (Averagely(), AveragelyByCircle(), ConsistentHash())
}


def strategy_of(strategy: str | Strategy) -> Strategy:
    """The strategy of this name, or the one that is passed. Raises InvalidArgument."""
    if not isinstance(strategy, str):
        if not callable(getattr(strategy, "allocate", None)):
            expected = "a name, or an object with `name` and `allocate`"
            raise wrong_type(InvalidArgument, "strategy", strategy, expected)
        return strategy
    if strategy not in BY_NAME:
        raise InvalidArgument(
            "there is no strategy of this name",
            repr(strategy[:40]),
            f"one of {', '.join(BY_NAME)}; or pass ByConfig(...), ByMachineRoom(...)",
        )
    return BY_NAME[strategy]


def divide(
    strategy: Strategy, queues: Iterable[QueueName], clients: Iterable[str], me: str
) -> list[QueueName]:
    """The share of `me`; [] if it is not among the clients, or if there are no queues."""
    queues, clients = sorted(queues), sorted(clients)
    if not queues or me not in clients:
        return []
    return strategy.allocate(queues, clients, me)


def part_of(
    strategy: Strategy, joined: Joined, me: str, assigned: Mapping[str, frozenset[int]] | None
) -> set[tuple[str, int]]:
    """The queues that a member should have: those `assigned` to it, its share of other topics."""
    found: set[tuple[str, int]] = set()
    for topic, read_queues in [(each.topic, each.read_queues) for each in joined.topics]:
        queues = [QueueName(topic, joined.broker_name, number) for number in range(read_queues)]
        if assigned is not None and topic in assigned:
            part = [queue for queue in queues if queue.queue_id in assigned[topic]]
        else:
            part = divide(strategy, queues, joined.members, me)
        found |= {(topic, queue.queue_id) for queue in part}
    return found


def divide_all(
    strategy: Strategy, queues: Iterable[QueueName], clients: Iterable[str]
) -> dict[str, list[QueueName]]:
    """Everybody's share, to be compared with another implementation case by case."""
    queues, clients = list(queues), list(clients)
    return {client: divide(strategy, queues, clients, client) for client in clients}


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _by_room(things: Iterable[_Any], room_of: Callable[[_Any], str]) -> dict[str, list[_Any]]:
    found: dict[str, list[_Any]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise InvalidArgument("this is in no machine room", str(thing), "name one for it")
        found.setdefault(room, []).append(thing)
    return found
