"""What the broker knows of a Spark writer: three numbers, which move with what it stores.

    BATCH      the number after the last batch that is decided on
    MANIFEST   where the list of that batch's staged blocks is, while they are being published
    PUBLISHED  how many of them are published

They are kept as offsets of an exactly-once group (see offsets_record.py): the broker stores a frame
only if they are what the frame says, and moves them with it. They are not really offsets of the
staging topic's queues, which does no harm: the topic has no consumers. `Ledgers` says which writers
the broker may forget when it has no room for others. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import STAGING_TOPIC, SYSTEM_GROUP_PREFIX

__all__ = ["NONE", "Ledgers", "State", "group_of", "moves", "told"]

BATCH, MANIFEST, PUBLISHED = 0, 1, 2

# BATCH, MANIFEST, PUBLISHED; NONE where there is no such number
State = tuple[int, int, int]
# topic -> queue -> offset
Offsets = dict[str, dict[int, int]]


def group_of(writer: str) -> str:
    """The group whose offsets are this writer's. Groups with such names are never shown."""
    return f"{SYSTEM_GROUP_PREFIX}SPARK_{writer}"


def moves(before: State, after: State) -> dict[str, dict[int, tuple[int, int]]]:
    """The move from one state to another. It also names what does not change, to be compared."""
    return {STAGING_TOPIC: dict(enumerate(zip(before, after, strict=True)))}


def told(before: State, offsets: dict[str, dict[int, int]]) -> State:
    """The present state, from a refusal, which has only the numbers that differ from `before`."""
    other = offsets.get(STAGING_TOPIC, {})
    return (
        other.get(BATCH, before[BATCH]),
        other.get(MANIFEST, before[MANIFEST]),
        other.get(PUBLISHED, before[PUBLISHED]),
    )


class Ledgers:
    """When each writer's numbers last moved, in ascending order."""

    def __init__(self) -> None:
        # ms since 1970
        self.moved_ms: dict[str, int] = {}

    def load(
        self, offsets: Mapping[str, Offsets], moved_ms: Mapping[str, int], now_ms: int
    ) -> None:
        """Take over what was saved of these groups; some have no time."""
        self.moved_ms = {}
        times = {group: moved_ms.get(group, now_ms) for group in offsets}
        for group in sorted(offsets, key=times.__getitem__):
            self.moved(group, offsets[group], times[group])

    def moved(self, group: str, offsets: Offsets, now_ms: int) -> None:
        """Note what any group has now. A consumer group's offsets are not a ledger."""
        self.moved_ms.pop(group, None)
        if offsets.keys() == {STAGING_TOPIC}:
            self.moved_ms[group] = now_ms

    def forget(
        self, offsets: dict[str, Offsets], count: int, before_ms: int, but: str
    ) -> list[str]:
        """Remove at most `count` writers from `offsets`: those that have not moved since
        `before_ms` and are publishing nothing, but not `but`. Returns their names."""
        gone: list[str] = []
        for group, moved_ms in self.moved_ms.items():
            if moved_ms >= before_ms or len(gone) >= count:
                break
            if group != but and offsets[group][STAGING_TOPIC].keys() == {BATCH}:
                gone.append(group)
        for group in gone:
            del self.moved_ms[group], offsets[group]
        return gone
