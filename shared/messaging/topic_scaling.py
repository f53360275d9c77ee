"""The order in which a topic gets more queues, or fewer, while it is in use.

    more     read queues first; when consumers have them, write queues
    fewer    write queues first; when producers know, and all has been read, read queues

So no message is ever in a queue that nobody reads. The next step follows from how the topic is:
whoever was interrupted goes on with the same number, or goes back with the old one.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.shared.messaging.topic_rules import TopicConfig


class Step(StrEnum):
    """What to change next. The number of queues it is set to is always the one that is wanted."""

    READ_MORE = "read_more"
    WRITE_MORE = "write_more"  # once every group has the new queues
    WRITE_FEWER = "write_fewer"
    READ_FEWER = "read_fewer"  # once producers know, and every group has read what is there


def next_step(now: TopicConfig, wanted: int) -> Step | None:
    """What brings a topic nearer to `wanted` queues; None where it has them."""
    if now.read_queues < wanted:
        return Step.READ_MORE
    if now.write_queues < wanted:
        return Step.WRITE_MORE
    if now.write_queues > wanted:
        return Step.WRITE_FEWER
    if now.read_queues > wanted:
        return Step.READ_FEWER
    return None
