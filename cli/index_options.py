"""How many slots and items the index files of a store have: configuration that no file states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def index_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --index-slots and --index-items, with RocketMQ's defaults."""
    slots = click.option(
        "--index-slots",
        type=click.IntRange(1, 1 << 28),
        default=5_000_000,
        show_default=True,
        help="RocketMQ's maxHashSlotNum: slots of an index file.",
    )
    items = click.option(
        "--index-items",
        type=click.IntRange(2, 1 << 31),
        default=20_000_000,
        show_default=True,
        help="RocketMQ's maxIndexNum: items of an index file.",
    )
    return slots(items(command))
