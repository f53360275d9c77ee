"""How many slots and items a store's index files have, for stores that do not say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def index_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --index-slots and --index-items, which override what the store says."""
    slots = click.option(
        "--index-slots",
        type=click.IntRange(1, 1 << 28),
        help="RocketMQ's maxHashSlotNum, if not what the store says.",
    )
    items = click.option(
        "--index-items",
        type=click.IntRange(2, 1 << 31),
        help="RocketMQ's maxIndexNum, if not what the store says.",
    )
    return slots(items(command))
