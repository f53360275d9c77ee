"""What a shell offers for the name of a topic or a group: those that exist right now.

If the broker is away or the store cannot be read, it offers nothing: a line that is being typed is
no place for an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from penstock.shared.errors import PenstockError

# How long the shell may wait for this between two keys.
_TIMEOUT_MS = 1000


def topic_names(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """The topics in the files of the store, running or not, or of the broker at the endpoint."""
    found: Iterable[str] = ()
    with suppress(PenstockError, OSError):
        named = _named(ctx)
        if endpoint := named.get("endpoint"):
            from penstock.client.connecting.where import Where
            from penstock.client.sending.producer import Producer

            where = Where(None, endpoint, None).arguments("producers")
            with Producer(**where, timeout_ms=_TIMEOUT_MS) as producer:
                found = producer.topics(_TIMEOUT_MS / 1000)
        else:
            found = _names_of(named["store"])
    hidden = () if begun.startswith(("%", "r", "R", "S")) else ("%", "rmq_sys_", "RMQ_SYS_")
    return sorted(name for name in found if name.startswith(begun) and not name.startswith(hidden))


def _names_of(store: Path) -> set[str]:
    """Topics that have settings, and those that have had a message, as far as they can be read."""
    from penstock.shared.layout import StorePaths
    from penstock.shared.store.topics import load_topics

    paths, found = StorePaths(store), set[str]()
    with suppress(OSError):
        found |= {*os.listdir(paths.consume_queue)}
    with suppress(PenstockError, OSError):
        found |= load_topics(paths.topics).names()
    return found


def group_names(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """The groups of the broker."""
    found: Iterable[str] = ()
    with suppress(PenstockError, OSError):
        from penstock.client.groups.admin import GroupAdmin

        with GroupAdmin(**_named(ctx), timeout_ms=_TIMEOUT_MS) as admin:
            found = admin.list()
    return sorted(name for name in found if name.startswith(begun))


def _named(ctx: click.Context) -> dict[str, Any]:
    """The broker that the line names so far, or else the default one."""
    from penstock.client.connecting.chosen_broker import meant_broker

    endpoint = ctx.params.get("endpoint")
    store = ctx.params.get("store") or ctx.params.get("source")
    if endpoint is None and store is None:
        endpoint, store, _ = meant_broker()
    return {"endpoint": endpoint} if store is None else {"store": Path(store)}
