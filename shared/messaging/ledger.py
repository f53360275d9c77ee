"""What the broker knows of a writer of Spark's: three numbers, which move with what it stores.

    BATCH      the number after the last batch that is decided on
    MANIFEST   where the list of that batch's staged blocks is, while they are being published
    PUBLISHED  how many of them are published

They are offsets as of a group that works exactly once (see offsets_record.py): the broker stores a
frame only if they are where the frame says, and moves them with it. That they are never offsets of
the staging topic's queues nobody minds: it has no consumers. `Ledgers` says which writers the
broker may forget when it has no room for others. Pure.
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


class Ledgers:
    """When each writer's numbers have moved last, that which has not for longest first."""

    def __init__(self) -> None:
        # ms since 1970
        self.moved_ms: dict[str, int] = {}

    def load(
        self, offsets: Mapping[str, Offsets], moved_ms: Mapping[str, int], now_ms: int
    ) -> None:
        """Go by what was saved of these groups; of some no time was."""
        self.moved_ms = {}
        times = {group: moved_ms.get(group, now_ms) for group in offsets}
        for group in sorted(offsets, key=times.__getitem__):
            self.moved(group, offsets[group], times[group])

    def moved(self, group: str, offsets: Offsets, now_ms: int) -> None:
        """Of any group, what it has now. A consumer's is no ledger."""
        self.moved_ms.pop(group, None)
        if offsets.keys() == {STAGING_TOPIC}:
            self.moved_ms[group] = now_ms

    def forget(
        self, offsets: dict[str, Offsets], count: int, before_ms: int, but: str
    ) -> list[str]:
        """Take at most `count` writers out of `offsets`: those that have not moved since then, and
        are publishing nothing. Their names."""
        gone: list[str] = []
        for group, moved_ms in self.moved_ms.items():
            if moved_ms >= before_ms or len(gone) >= count:
                break
            if group != but and offsets[group][STAGING_TOPIC].keys() == {BATCH}:
                gone.append(group)
        for group in gone:
            del self.moved_ms[group], offsets[group]
        return gone
