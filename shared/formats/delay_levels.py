"""RocketMQ's delay levels: which there are, and when a message of a level is due. Pure functions.

A delayed message waits in SCHEDULE_TOPIC_XXXX, level n in queue n - 1. Its consume queue entry has
the time at which it is due instead of a tags code, so a scheduler need not read the log for that.
"""

from __future__ import annotations

from penstock.shared.formats.properties import DELAY, find_property

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_TOPIC_RAW = SCHEDULE_TOPIC.encode()

_DELAY = DELAY.encode()
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delay of each level in ms, level 1 first, from RocketMQ's `1s 5s 10s ...`."""
    return tuple(int(each[:-1]) * _UNITS_MS[each[-1]] for each in text.split(" "))


DELAY_LEVELS_MS = parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")


def is_no_level(text: bytes) -> bool:
    """Whether a DELAY is a number that is 0 or less, which RocketMQ stores and takes for none."""
    digits = text.removeprefix(b"-")
    return digits.isdigit() and len(digits) < 10 and (text != digits or int(digits) == 0)


def delay_due_ms(
    level: int, store_timestamp_ms: int, levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
) -> int:
    """When a message of this level is due; a level above the last counts as the last."""
    wait_ms = 1000 if level <= 0 else levels_ms[min(level, len(levels_ms)) - 1]
    # wraps like a Java long, since damage may have made the timestamp any number
    return (store_timestamp_ms + wait_ms + 2**63) % 2**64 - 2**63


def due_ms(
    store_timestamp_ms: int, properties: bytes, code: int, levels_ms: tuple[int, ...]
) -> int:
    """The number in the entry of a message in the delay topic: when it is due, if its raw
    properties name a level; otherwise its tags `code`, as for any other message."""
    level = find_property(properties, _DELAY)
    # RocketMQ reads a Java int, so more than nine digits are not a level
    if level.isdigit() and len(level) < 10 and int(level) > 0:
        return delay_due_ms(int(level), store_timestamp_ms, levels_ms)
    return code
