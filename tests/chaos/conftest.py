"""Brokers as real processes, and load whose history is kept to be compared with what is stored.

`broker` makes brokers; each goes away at the end of its test, which fails when a process or shared
memory is left. `load` makes producers that send numbered messages and remember what was
acknowledged; `follow` makes consumers that remember what they saw. All of them are chaos/'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos import load as chaos_load
from penstock.chaos.broker import Broker
from penstock.chaos.history import Stored, check_acknowledged, check_order
from penstock.chaos.load import Follower, Load
from penstock.chaos.stepped.replay import check_index, check_whole


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Make a broker that is not started yet: broker(flush_disk_type="async", ...)."""
    made: list[Broker] = []

    def make(wrap: tuple[str, ...] = (), **settings: object) -> Broker:
        made.append(Broker(tmp_path / f"broker-{len(made)}", settings, wrap=wrap))
        return made[-1]

    yield make
    for each in made:
        each.clear()


@pytest.fixture
def load() -> Iterator[Callable[..., Load]]:
    """Start a producer: load("p1", broker.produce)."""
    made: list[Load] = []

    def make(name: str, endpoint: str, **options: Any) -> Load:
        made.append(Load(name, endpoint, **options))
        return made[-1]

    yield make
    for each in made:
        each.abandon()


@pytest.fixture
def follow() -> Iterator[Callable[[str], Follower]]:
    """Start a consumer that follows the topic: follow(broker.consume)."""
    made: list[Follower] = []

    def make(endpoint: str) -> Follower:
        made.append(Follower(endpoint))
        return made[-1]

    yield make
    for each in made:
        each.abandon()


@pytest.fixture
def read_all() -> Callable[[str], Stored]:
    """Everything the topic holds, read from the start: queue -> bodies."""
    return chaos_load.read_all


@pytest.fixture
def check_history() -> Callable[..., None]:
    """Hold what producers were told against what is stored: nothing lost, twice, or disordered.

    With `all_acked` no message may have had another outcome than an acknowledgement.
    """

    def check(loads: list[Load], stored: Stored, *, all_acked: bool = True) -> None:
        assert check_order(stored) == []
        for each in loads:
            assert each.acked, f"{each.name} had no message acknowledged"
            assert check_acknowledged(each.acked, stored, f"which {each.name} was told of") == []
            if all_acked:
                assert each.failed == [], each.failed[:3]

    return check


@pytest.fixture
def check_store() -> Callable[[Broker], None]:
    """The checker of store directories finds nothing wrong in a stopped store, and its index is the
    one that the log gives."""

    def check(broker: Broker) -> None:
        assert check_whole(broker.store, broker.config) == []
        assert check_index(broker.store, broker.config) == []

    return check
