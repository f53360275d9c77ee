"""The clock of a producer, read by the compiled loops: a producer asks it for each message.

It is not with the other clocks, because everybody who imports those would load the loops.
"""

from __future__ import annotations

from penstock.shared.clock import SystemClock
from penstock.shared.loops.active import wall_ms


class ProducerClock(SystemClock):
    """A SystemClock whose `now_ms` is the loops' own function, without a method around it."""

    now_ms = staticmethod(wall_ms)
