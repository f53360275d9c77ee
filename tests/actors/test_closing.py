"""An actor that has stopped in good order has closed whatever it had open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.chaos.machine.processes import descriptors
from penstock.shared.memory.roster import ROSTER
from penstock.shared.process.actor import import_actor


@pytest.mark.parametrize("name", [row.name for row in ROSTER])
def test_an_actor_that_has_stopped_has_nothing_open(
    pipeline: Callable[..., Any], name: str
) -> None:
    broker = pipeline(gateway_enable=True)
    broker.allocate(2)
    # what stays open for all that follow: modules, the context of tests
    broker.stop(broker.start(import_actor(name)))
    before = descriptors()
    for _ in range(2):
        actor = broker.start(import_actor(name))
        assert descriptors() - before, "else this proves nothing"
        broker.stop(actor)
        # of what earlier tests have left some may be gone meanwhile
        assert not descriptors() - before
