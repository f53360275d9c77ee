"""What the broker knows of a writer of Spark's: three numbers, which move with what it stores.

    BATCH      the number after the last batch that is decided on
    MANIFEST   where the list of that batch's staged blocks is, while they are being published
    PUBLISHED  how many of them are published

They are offsets as of a group that works exactly once (see offsets_record.py): the broker stores a
frame only if they are where the frame says, and moves them with it. That they are never offsets of
the staging topic's queues nobody minds: it has no consumers. Pure.
"""

from __future__ import annotations

from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import STAGING_TOPIC, SYSTEM_GROUP_PREFIX

__all__ = ["NONE", "State", "group_of", "moves", "told"]

BATCH, MANIFEST, PUBLISHED = 0, 1, 2

# BATCH, MANIFEST, PUBLISHED; NONE where there is no such number
State = tuple[int, int, int]


def group_of(writer: str) -> str:
    """The group whose offsets are this writer's. Nobody is shown groups of such names."""
    return f"{SYSTEM_GROUP_PREFIX}SPARK_{writer}"


def moves(before: State, after: State) -> dict[str, dict[int, tuple[int, int]]]:
    """From one state to another. What does not change is compared all the same."""
    return {STAGING_TOPIC: dict(enumerate(zip(before, after, strict=True)))}


def told(before: State, offsets: dict[str, dict[int, int]]) -> State:
    """The present state, from what a refusal says of the numbers that are not as `before`."""
    other = offsets.get(STAGING_TOPIC, {})
    return (
        other.get(BATCH, before[BATCH]),
        other.get(MANIFEST, before[MANIFEST]),
        other.get(PUBLISHED, before[PUBLISHED]),
    )
