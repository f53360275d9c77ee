"""Damage to the bytes of a log, as a disk or a person does it."""

from __future__ import annotations

from random import Random

SEGMENT = 4096
WRECKS = ("flip", "zeros", "swap", "segments")


def wreck(kind: str, log: bytearray, starts: list[int], dice: Random) -> None:
    """A flipped bit, zeros, a piece that stands in another's place, or segments that have changed
    theirs. `starts` has where each record begins, and where the last one ends."""
    end = starts[-1]
    at = dice.randrange(end)
    if kind == "flip":
        log[at] ^= 1 << dice.randrange(8)
    elif kind == "zeros":
        stop = min(end, at + dice.randint(1, 900))
        log[at:stop] = bytes(stop - at)
    elif kind == "swap":
        other = dice.randrange(end - 300)
        log[other : other + 200] = log[starts[1] : starts[1] + 200]
    else:
        log[:SEGMENT], log[SEGMENT : 2 * SEGMENT] = log[SEGMENT : 2 * SEGMENT], log[:SEGMENT]
