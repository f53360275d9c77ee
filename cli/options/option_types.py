"""Types of options that several commands share; ranges are checked before a command begins."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from penstock.shared.names import MAX_QUEUES_PER_TOPIC

Command = Callable[..., Any]
# A week: a longer timeout is a mistake, mostly ms given as seconds.
MAX_TIMEOUT_S = 604_800
# The longest delay of a message: 40 days.
MAX_DELAY_S = 40 * 86_400
# Counts travel as 32-bit numbers; see shared/wire/messages.py.
MAX_COUNT = (1 << 31) - 1


class Finite(click.FloatRange):
    """A number in a range that is neither inf nor nan, which a comparison would not refuse."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number from {self.min:g} to {self.max:g}", param, ctx)
        return number


class Seconds(Finite):
    """Seconds, or a number with a unit: 30, 0.5, 500ms, 2m."""

    name = "seconds"

    def __init__(self, most: float = MAX_TIMEOUT_S) -> None:
        super().__init__(min=0.001, max=most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, str):
            from penstock.shared.config_sources import duration_ms

            ms = duration_ms(value)
            value = value if ms is None else ms / 1000
        return super().convert(value, param, ctx)


class Moment(click.types.IntParamType):
    """A moment in ms since 1970, written so, or as a time with or without a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isdecimal():
            return int(value)
        try:
            # rounded up, like every time of a delayed message, so that it is never early
            return math.ceil(datetime.fromisoformat(value).timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time such as 2026-12-24T18:00:00+01:00", param, ctx)


class Count(click.IntRange):
    """A whole number from `least` on; its upper limit is only that of the wire format."""

    name = "integer"

    def __init__(self, least: int) -> None:
        super().__init__(least, MAX_COUNT)

    def _describe_range(self) -> str:
        return f"x>={self.min}"


COUNT = Count(1)
# no upper limit, because a topic of RocketMQ may have more queues than Penstock makes
QUEUE_ID = Count(0)
QUEUES = click.IntRange(1, MAX_QUEUES_PER_TOPIC)
PORT = click.IntRange(0, 65_535)


def timeout_option(command: Command) -> Command:
    """The option --timeout, the same for every command that asks a broker."""
    return click.option(
        "--timeout",
        type=Seconds(),
        default=30,
        show_default=True,
        help="Seconds that the broker may be silent; 500ms and 2m are understood too.",
    )(command)


def store_option(command: Command) -> Command:
    """The option --store, for commands that look at one directory."""
    return click.option(
        "--store",
        type=click.Path(path_type=Path),
        help="The store directory; without it, as `penstock context show` says.",
    )(command)


def processes_option(text: str) -> Callable[[Command], Command]:
    """The option --processes: by default one for each core that this process may use."""
    may_use = getattr(os, "sched_getaffinity", None)  # Linux has it
    cores = len(may_use(0)) if may_use else os.cpu_count() or 1
    return click.option(
        "--processes", type=COUNT, default=cores, show_default="as many as cores", help=text
    )
