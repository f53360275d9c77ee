"""A part of a queue: plans consist of these, and tasks read them. Sent from driver to tasks."""

from __future__ import annotations

from typing import NamedTuple


class QueueRange(NamedTuple):
    """The messages [start, stop) of a queue."""

    topic: str
    queue_id: int
    start: int
    stop: int
