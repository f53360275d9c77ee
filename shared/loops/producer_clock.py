"""The clock of a producer, read by the compiled loops: a producer asks it for each message.

It does not stand beside the other clocks, because they would load those loops for everybody.
"""

from __future__ import annotations

from penstock.shared.clock import SystemClock
from penstock.shared.loops.active import wall_ms


class ProducerClock(SystemClock):
    """A SystemClock whose `now_ms` is the loops' own function, with no method around it."""

    now_ms = staticmethod(wall_ms)
