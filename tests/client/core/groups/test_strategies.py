"""The strategies give what RocketMQ's own classes gave, and divide without a rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.groups.strategies import (
    BY_NAME,
    Averagely,
    ByConfig,
    ByMachineRoom,
    MachineRoomNearby,
    QueueName,
    Strategy,
    divide,
    divide_all,
    strategy_of,
)
from penstock.shared.errors import InvalidArgument

# What the classes of RocketMQ 5.3.3 printed: members in order, a dash for a part without queues.
VECTORS = """
AVG 8/3 -> 0 1 2 | 3 4 5 | 6 7
AVG 10/4 -> 0 1 2 | 3 4 5 | 6 7 | 8 9
AVG 4/6 -> 0 | 1 | 2 | 3 | - | -
AVG 5/2 -> 0 1 2 | 3 4
AVG_BY_CIRCLE 8/3 -> 0 3 6 | 1 4 7 | 2 5
AVG_BY_CIRCLE 10/4 -> 0 4 8 | 1 5 9 | 2 6 | 3 7
CONSISTENT_HASH 8/3 -> 4 6 7 | 0 2 3 | 1 5
CONSISTENT_HASH 10/4 -> 4 6 7 9 | 0 3 | 1 5 | 2 8
CONSISTENT_HASH 5/2 -> 1 4 | 0 2 3
CONSISTENT_HASH 4/6 -> - | 0 | - | 2 | - | 1 3
""".strip().splitlines()


def queues(count: int, broker: str = "b") -> list[QueueName]:
    return [QueueName("T", broker, queue_id) for queue_id in range(count)]


def members(count: int) -> list[str]:
    return [f"10.0.0.1@c{number}" for number in range(count)]


def ids(parts: dict[str, list[QueueName]]) -> list[list[int]]:
    return [[queue.queue_id for queue in parts[client]] for client in sorted(parts)]


@pytest.mark.parametrize("line", VECTORS)
def test_the_division_is_that_of_the_java_classes(line: str) -> None:
    case, _, wanted = line.partition(" -> ")
    name, _, sizes = case.partition(" ")
    n, m = map(int, sizes.split("/"))
    parts = [
        [] if part.strip() == "-" else [int(each) for each in part.split()]
        for part in wanted.split("|")
    ]
    assert ids(divide_all(strategy_of(name), queues(n), members(m))) == parts


def test_a_machine_room_divides_only_its_own_queues() -> None:
    mixed = queues(4, "r1@b") + queues(4, "r2@b") + queues(2, "plain") + queues(1, "r1@b@c")
    assert ids(divide_all(ByMachineRoom({"r1"}), mixed, members(3))) == [[0, 3], [1], [2]]


def test_java_drops_what_is_empty_at_the_end_of_a_brokers_name() -> None:
    found = divide(ByMachineRoom({"r1"}), queues(1, "r1@b@"), ["c"], "c")
    assert [queue.broker_name for queue in found] == ["r1@b@"]
    assert divide(ByMachineRoom({"r1"}), queues(1, "r1@"), ["c"], "c") == []


def test_configuration_takes_what_is_named_and_is_there() -> None:
    assert divide(ByConfig((1, 3, 9)), queues(4), members(2), "10.0.0.1@c1") == [
        *queues(4)[1:2],
        *queues(4)[3:],
    ]


def test_rooms_without_a_member_are_shared_by_all() -> None:
    nearby = MachineRoomNearby(
        Averagely(), lambda queue: queue.broker_name, lambda client: client.partition("@")[0]
    )
    everything = queues(2, "a") + queues(4, "lonely")
    parts = divide_all(nearby, everything, ["a@1", "a@2"])
    assert [(q.broker_name, q.queue_id) for q in parts["a@1"]] == [
        *(("a", 0), ("lonely", 0), ("lonely", 1))
    ]
    assert len(parts["a@2"]) == 3


def test_a_name_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match="AVG_BY_CIRCLE"):
        strategy_of("ROUND_ROBIN")


@given(
    strategy=st.sampled_from([*BY_NAME.values(), ByMachineRoom({"r"})]),
    count=st.integers(0, 40),
    clients=st.sets(st.text("abc@.1", min_size=1, max_size=5), max_size=12),
)
def test_each_queue_has_exactly_one_owner(
    strategy: Strategy, count: int, clients: set[str]
) -> None:
    everything = queues(count, "r@b")
    parts = divide_all(strategy, everything, clients)
    given_out = [queue for part in parts.values() for queue in part]
    assert sorted(given_out) == (everything if clients else [])


def test_one_that_is_no_member_gets_nothing() -> None:
    assert divide(Averagely(), queues(3), ["a", "b"], "c") == []
