"""Each actor that takes connections takes as many as are set, and others once some have gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.process.actor import import_actor
from penstock.shared.process.connection_limit import LOOK_MS

# what the actor itself opens later counts as well
MOST, MANY = 50, 200
FULL = f"{MOST} connections are as many as it takes; others wait"


@pytest.mark.parametrize("name", ["writer", "reader", "coordinator", "transactions"])
def test_whoever_comes_when_there_are_as_many_as_are_set_waits_until_one_has_gone(
    pipeline: Callable[..., Any], capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """What a connection takes of the process is a descriptor, and that is what is looked at."""
    broker = pipeline(max_connections=MOST)
    broker.allocate(1)
    actor = broker.start(import_actor(name))
    came: list[int] = []

    def is_full() -> bool:
        actor.work()
        return FULL in capfd.readouterr().err

    try:
        for _ in range(2):
            while not is_full():
                assert len(came) < MANY, "somebody is let in whatever is set"
                came.append(os.dup(0))
            while came:
                os.close(came.pop())
            broker.clock.advance(LOOK_MS)
            actor.work()  # they are let in again, and counted again
    finally:
        for each in came:
            os.close(each)
