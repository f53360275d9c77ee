"""A full disk: ENOSPC at the Nth call that can need room, once or until there is room again. Some
of these calls fail at random, or each in turn.
"""

from __future__ import annotations

import errno
import random

from penstock.chaos.arena import Arena
from penstock.chaos.interposed.faulty_disk import GROW
from penstock.chaos.storage.disk import fail_calls

# in a round
FULL_DISKS = 3


def full_round(arena: Arena, dice: random.Random, replay: str) -> None:
    fail_calls(arena, dice, replay, errno.ENOSPC, {GROW: FULL_DISKS})
