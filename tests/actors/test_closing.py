"""An actor that has stopped in good order has closed whatever it had open."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.memory.roster import ROSTER
from penstock.shared.process.actor import import_actor


def descriptors() -> Counter[str]:
    """What this process has open; of sockets and the like only the kind."""
    found = Counter[str]()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the listing itself
            found[os.readlink(each).partition(":[")[0]] += 1
    return found


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
