"""Whose turn it is where more is due than the writer takes: no level waits for all of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.scheduler import levels
from penstock.client.core.sending import record_sender
from penstock.shared.messaging.delayed import Delay

LEVELS, OF_EACH, AT_ONCE = (1, 2, 3), 24, 2


def test_each_level_has_its_turn_however_much_is_due_of_the_others(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "ENTRIES_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(record_sender, "MAX_IN_FLIGHT", 1)
    it = scene(is_first=True)
    level_of = {it.send(Delay(level)): level for _ in range(OF_EACH) for level in LEVELS}
    it.broker.clock.advance(60_000)
    came = [level_of[each.body.decode()] for each in it.await_bodies(len(level_of))]
    assert sorted(came) == sorted(level_of.values())
    for level in LEVELS:
        first = came.index(level)
        for other in LEVELS:
            last = len(came) - 1 - came[::-1].index(other)
            assert first < last, f"{level} has waited for all of {other}"
