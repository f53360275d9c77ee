"""Opens a broker's run for the monitor's own functions, without asking a monitor or any actor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.actors.monitor import History, Reading


@contextmanager
def watching(store: Path) -> Iterator[tuple[Reading, History]]:
    """The store's run. Raises ConnectError."""
    from penstock.actors.monitor import History, Reading
    from penstock.shared.clock import SystemClock
    from penstock.shared.memory.positions import Positions
    from penstock.shared.memory.run_settings import settings_of
    from penstock.shared.process.find_broker import find_running

    run = find_running(store)
    positions = Positions(run.positions)  # first, as it raises if the broker has another version
    try:
        reading = Reading(settings_of(run, store), run, positions, SystemClock())
        try:
            yield reading, History()
        finally:
            reading.close()
    finally:
        positions.close()


def problems_of(store: Path) -> list[str]:
    """Why the broker is not healthy, in the words of the monitor's /health. Raises ConnectError."""
    from penstock.actors.monitor import problems

    with watching(store) as (reading, _):
        return problems(reading, reading.clock.monotonic_ms())
