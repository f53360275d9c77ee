"""The strategies that divide queues: the official classes and ours give every member the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.groups.strategies import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    QueueName,
    Strategy,
    divide,
)

CASES = 1000
MOST_QUEUES, MOST_MEMBERS = 40, 12
ROOMS = ("r1", "r2", "room-3")


def _room(name: str) -> str:
    return name.split("@")[0]


def _fixed(case: dict[str, Any]) -> Strategy:
    return ByConfig(frozenset(queue[2] for queue in case["fixed"]))


def _near(case: dict[str, Any]) -> Strategy:
    return MachineRoomNearby(Averagely(), lambda queue: _room(queue.broker_name), _room)


STRATEGIES: dict[str, Callable[[dict[str, Any]], Strategy]] = {
    "AVG": lambda case: Averagely(),
    "AVG_BY_CIRCLE": lambda case: AveragelyByCircle(),
    "CONFIG": _fixed,
    "MACHINE_ROOM": lambda case: ByMachineRoom(frozenset(case["rooms"])),
    "MACHINE_ROOM_NEARBY": _near,
    "CONSISTENT_HASH": lambda case: ConsistentHash(),
}


def _case(strategy: str, dice: random.Random) -> dict[str, Any]:
    """Sorted queues and members, as RocketMQ's client passes them."""
    brokers = [f"{room}@{name}" for room in ROOMS for name in ("a", "b10", "b9")] + ["plain"]
    used = dice.sample(brokers, dice.randint(1, len(brokers)))
    topic = dice.choice(["T", "orders", "%RETRY%g"])
    queues = sorted(
        {
            QueueName(topic, dice.choice(used), dice.randrange(120))
            for _ in range(dice.randint(1, MOST_QUEUES))
        }
    )
    members = sorted(
        {
            f"{dice.choice(ROOMS)}@10.0.{dice.randrange(256)}.{dice.randrange(256)}#{dice.random()}"
            for _ in range(dice.randint(1, MOST_MEMBERS))
        }
    )
    return {
        "strategy": strategy,
        "queues": queues,
        "members": members,
        "me": dice.choice(members),
        "rooms": dice.sample(ROOMS, dice.randint(1, len(ROOMS))),
        "fixed": _all_of_some_ids(queues, dice),
    }


def _all_of_some_ids(queues: list[QueueName], dice: random.Random) -> list[QueueName]:
    ids = sorted({queue.queue_id for queue in queues})
    chosen = set(dice.sample(ids, dice.randint(1, len(ids))))
    return [queue for queue in queues if queue.queue_id in chosen]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_divides_queues_as_the_official_class_does(
    name: str, place: Any, client: Any
) -> None:
    dice = random.Random(f"strategies {name}")
    cases = [_case(name, dice) for _ in range(CASES)]
    asked, told = place.file("cases.jsonl"), place.file("divided.jsonl")
    asked.write_text("".join(json.dumps(case) + "\n" for case in cases))
    assert client.ask("strategies", cases=asked, out=told) == CASES
    theirs = [json.loads(line) for line in told.read_text().splitlines()]
    for case, expected in zip(cases, theirs, strict=True):
        ours = divide(STRATEGIES[name](case), case["queues"], case["members"], case["me"])
        assert [list(queue) for queue in ours] == expected, case
