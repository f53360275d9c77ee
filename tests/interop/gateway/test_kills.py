"""Twenty Java clients of RocketMQ go on by themselves when what they talk to is killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.chaos.running.official import run_official

pytestmark = pytest.mark.takes(15)


def test_twenty_clients_go_on_when_gateway_coordinator_and_broker_are_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    struck = ("gateway", "coordinator", "broker")
    found = run_official(tmp_path, {}, struck, random.Random(0))
    assert found.wrong == []
    assert [name for name, *_ in found.went_on] == [*struck]
    assert found.acknowledged > 100 and found.handled >= found.acknowledged
    record_property("messages", found.acknowledged)
