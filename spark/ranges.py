"""A part of a queue: what plans are made of, and tasks read. Goes from the driver to the tasks."""

from __future__ import annotations

from typing import NamedTuple


class QueueRange(NamedTuple):
    """The messages [start, stop) of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int
