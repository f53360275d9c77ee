"""When a message is to be delivered: turns what the sender says into the stored form.

A sender uses arguments, or RocketMQ's properties DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS and
TIMER_DELIVER_MS. The handle that recalls a message is RocketMQ's too: base64url of
"v1 TOPIC BROKER DUE_MS UNIQ_KEY". Pure: the time is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.client.core.arguments import check_text, check_whole, shown, wrong_type
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.formats.properties import DELAY
from penstock.shared.messaging.delayed import (
    MAX_DELAY_MS,
    MAX_LEVEL,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_PROPERTIES,
    Delay,
    too_late,
)

# Seconds: from now. Moment: a datetime, or ms since 1970.
Seconds = float | timedelta | None
Moment = datetime | int | None

# RocketMQ's order: the first that is set counts
_BY_PROPERTY = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
# Stands for the broker's name in a handle: there is only one broker, so its name says nothing.
_BROKER = "penstock"
# The body of a record that recalls another: RocketMQ accepts no empty bodies.
RECALL_BODY = b"0"


def wanted_delay(
    delay: Seconds,
    deliver_at: Moment,
    delay_level: int | None,
    properties: Mapping[str, str] | None,
    now_ms: int,
) -> tuple[Delay | None, Mapping[str, str] | None]:
    """When a message sent now is to be delivered (None: at once), and its remaining properties.

    Raises InvalidMessage for two delays, for what is not a time, and for more than 40 days.
    """
    said: list[tuple[str, Any]] = [
        (name, value)
        for name, value in (
            ("delay", delay),
            ("deliver_at", deliver_at),
            ("delay_level", delay_level),
        )
        if value is not None
    ]
    given = properties if isinstance(properties, Mapping) else {}
    if DELAY in given or not TIMER_PROPERTIES.isdisjoint(given):
        said += _said_by(given)
    if not said:
        return None, properties
    if len(said) > 1:
        names = " and ".join(name for name, _ in said)
        raise InvalidMessage("the message has two delays", names, "leave one out")
    if isinstance(properties, Mapping):
        properties = {k: v for k, v in properties.items() if k not in _BY_PROPERTY} or None
    ((name, value),) = said
    return _READ[name](name, value, now_ms), properties


def _said_by(properties: Mapping[str, str]) -> list[tuple[str, Any]]:
    for name in _BY_PROPERTY:
        if name in properties:
            return [(name, properties[name])]
    raise InvalidMessage(
        "a property has one of RocketMQ's own names",
        min(TIMER_PROPERTIES.intersection(properties)),
        "use the arguments delay, deliver_at and delay_level, or another name",
    )


def _relative(name: str, value: Any, now_ms: int) -> Delay | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(InvalidMessage, name, value, "a number of seconds, or a timedelta")
    try:
        # rounded up, so that delivery is never early
        delay_ms = math.ceil(float(value) * 1000)
    except (ValueError, OverflowError):  # NaN; an int too large for a float
        raise InvalidMessage(f"{name} is not a number of seconds", shown(value)) from None
    return _in_ms(delay_ms, now_ms)


def _in_ms(delay_ms: int, now_ms: int) -> Delay | None:
    if delay_ms > MAX_DELAY_MS:
        raise too_late(delay_ms)
    return Delay(out_ms=now_ms + delay_ms, delay_ms=delay_ms) if delay_ms > 0 else None


def _absolute(name: str, value: Any, now_ms: int) -> Delay | None:
    if isinstance(value, datetime):
        try:
            at_ms = math.ceil(value.timestamp() * 1000)
        except (ValueError, OverflowError) as error:  # a local time at either end of the calendar
            what = f"{name} is a time that this machine's clock cannot have"
            raise InvalidMessage(what, f"{value}: {error}", "name a nearer one") from None
    else:
        at_ms = check_whole(name, value, InvalidMessage)
        if at_ms.bit_length() > 63:
            raise InvalidMessage(f"{name} is not a time in ms since 1970", shown(value))
    if at_ms > now_ms + MAX_DELAY_MS:
        raise too_late(at_ms - now_ms)
    return Delay(out_ms=at_ms) if at_ms > now_ms else None


def _level(name: str, value: Any, now_ms: int) -> Delay | None:
    level = check_whole(name, value, InvalidMessage)
    if not 0 <= level <= MAX_LEVEL:
        hint = f"levels are 1 to {MAX_LEVEL}; for any other time use delay= or deliver_at="
        raise InvalidMessage("there is no such delay level", level, hint)
    return Delay(level) if level else None


def _number(name: str, value: Any) -> int:
    text = check_text(f"properties[{name!r}]", value, InvalidMessage)
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidMessage(f"the property {name} is not a whole number", shown(text))
    return int(text)


_READ: dict[str, Callable[[str, Any, int], Delay | None]] = {
    "delay": _relative,
    "deliver_at": _absolute,
    "delay_level": _level,
    DELAY: lambda name, value, now: _level(name, min(_number(name, value), MAX_LEVEL), now),
    TIMER_DELAY_SEC: lambda name, value, now: _in_ms(1000 * _number(name, value), now),
    TIMER_DELAY_MS: lambda name, value, now: _in_ms(_number(name, value), now),
    TIMER_DELIVER_MS: lambda name, value, now: _absolute(name, _number(name, value), now),
}


class Recall(NamedTuple):
    """The message that a handle names."""

    topic: str
    due_ms: int
    unique_key: str


def recall_handle(recall: Recall) -> str:
    import base64  # few messages are delayed, and every client loads this file

    text = f"v1 {recall.topic} {_BROKER} {recall.due_ms} {recall.unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def recall_of(handle: Any, now_ms: int) -> tuple[str, Delay]:
    """The topic and the delay of the record that recalls the message of a handle, or of a receipt.

    Raises InvalidArgument.
    """
    topic, due_ms, key = parse_recall(getattr(handle, "recall_handle", handle), now_ms)
    return topic, Delay(out_ms=due_ms, recalls=key)


def parse_recall(handle: Any, now_ms: int) -> Recall:
    """Raises InvalidArgument for what is not a handle, and if the message is already due."""
    text = check_text("handle", handle)
    if not text:
        raise InvalidArgument(
            "the message cannot be recalled: it has no handle",
            None,
            "only what was sent with delay= or deliver_at= has one",
        )
    import base64

    try:
        version, topic, _, due, key = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
        if version != "v1" or not topic or not key or not due.isdigit():
            raise ValueError(version)
        recall = Recall(topic, int(due), key)
    except ValueError:  # from base64, from UTF-8, or the one above
        raise InvalidArgument(
            "this is no handle of a delayed message",
            shown(text),
            "use the recall_handle of its receipt",
        ) from None
    if recall.due_ms <= now_ms:
        raise InvalidArgument(
            "the message cannot be recalled: its time has come",
            f"due {now_ms - recall.due_ms} ms ago",
            "it is delivered",
        )
    return recall
