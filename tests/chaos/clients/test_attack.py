"""How attacks are judged."""

from __future__ import annotations

from penstock.chaos.clients.attack import _late
from penstock.chaos.clients.honest import Wait


def test_whoever_waited_longer_than_the_most_was_late() -> None:
    served, late = Wait(0.9, 0.02), Wait(0.9, 0.3)
    assert _late("an attack", [served] * 99 + [late], 0.1) == []
    assert _late("an attack", [served] * 98 + [late] * 2, 0.1) == [
        "an attack: others waited 0.300 s, with the machine's share 0.900 s"
    ]


def test_where_nobody_was_served_nobody_was_late() -> None:
    """Whoever is told an error instead says so himself."""
    assert _late("an attack", [], 0.1) == []
