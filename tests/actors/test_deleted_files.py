"""Files that are deleted take their room until the last actor that has read them closes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.coordinator import Coordinator
from penstock.actors.gateway import Gateway
from penstock.actors.monitor import Monitor
from penstock.actors.reader import Reader
from penstock.actors.reput import Reput
from penstock.actors.scheduler import Scheduler
from penstock.actors.transactions import Transactions
from penstock.shared.layout import segment_name
from penstock.shared.queue.reader import QueueReader

READERS: dict[Callable[..., Any], Callable[[Any], QueueReader]] = {
    Coordinator: lambda actor: actor._queues,
    Gateway: lambda actor: actor._queues,
    Monitor: lambda actor: actor._reading.queues,
    Reader: lambda actor: actor._queues,
    Scheduler: lambda actor: actor._queues,
    Transactions: lambda actor: actor._reader,
}


def _held(file: Path) -> int:
    """How often this process has a file open or mapped, deleted or not."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split(maxsplit=5)[5] for line in lines if "/" in line]
    for each in os.listdir("/proc/self/fd"):
        if os.path.lexists(link := f"/proc/self/fd/{each}"):
            places.append(os.readlink(link))
    return sum(each.removesuffix(" (deleted)") == str(file) for each in places)


@pytest.mark.parametrize("kind", READERS)
def test_an_actor_that_has_read_what_is_deleted_closes_it(
    pipeline: Callable[..., Any], work: Callable[..., None], kind: Any
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(80, size=1000)  # more than a segment has room for
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    reput = broker.start(Reput)
    work(reput)
    broker.crash(reput)
    actor = broker.start(kind)
    queues = READERS[kind](actor)
    slot = queues.queues("orders")[0]
    files = [
        broker.paths.commit_log / segment_name(0),
        broker.paths.queue("orders", 0) / segment_name(0),
    ]
    before = [_held(file) for file in files]
    for at in (0, 79):
        assert queues.read(slot, at, 1)[1] == at + 1
    assert [_held(file) for file in files] != before, "else this shows nothing"
    actor.release_deleted()
    assert [_held(file) for file in files] != before, "they are there, and may be asked for again"
    for file in files:
        file.unlink()
    actor.release_deleted()
    assert [_held(file) for file in files] == before
    assert queues.read(slot, 79, 1)[1] == 80, "the others it reads on"
