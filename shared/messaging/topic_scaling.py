"""The order in which a topic gets more queues, or fewer, while it is in use.

    more     read queues first; when consumers have them, write queues
    fewer    write queues first; when producers know, and all has been read, read queues

So no message is ever in a queue that nobody reads. The next step follows from the topic's present
state: after an interruption, repeat the call with the same number, or go back with the old one.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.shared.messaging.topic_rules import TopicConfig


class Step(StrEnum):
    """What to change next. It is always set to the number of queues that is wanted."""

    READ_MORE = "read_more"
    WRITE_MORE = "write_more"  # once every group has the new queues
    WRITE_FEWER = "write_fewer"
    READ_FEWER = "read_fewer"  # once producers know, and every group has read what is there


def next_step(now: TopicConfig, wanted: int) -> Step | None:
    """The next step towards `wanted` queues; None where the topic has them."""
    if now.read_queues < wanted:
        return Step.READ_MORE
    if now.write_queues < wanted:
        return Step.WRITE_MORE
    if now.write_queues > wanted:
        return Step.WRITE_FEWER
    if now.read_queues > wanted:
        return Step.READ_FEWER
    return None
