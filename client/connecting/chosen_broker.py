"""Which broker is meant if a call or a command names none: one order, for clients and commands.

    named          by the call, or by --endpoint or --store
    using          penstock.using(...), a context variable of the program
    environment    PENSTOCK_ENDPOINT, or PENSTOCK_STORE
    context        a saved one: the one that PENSTOCK_CONTEXT names, else that of `context use`
    directory      ./store, if it exists
    alone          the only broker of this user that runs on this machine
    default        ./store, which does not exist: whoever looks for it says so

The first that applies decides. PENSTOCK_CONTEXT=none leaves out `context` and `alone`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from penstock.client.connecting.contexts import NONE, contexts_file, find_context, load_contexts
from penstock.shared.errors import InvalidArgument

ENDPOINT_VARIABLE, CONTEXT_VARIABLE = "PENSTOCK_ENDPOINT", "PENSTOCK_CONTEXT"


class Meant(NamedTuple):
    """A broker by endpoint or by store, and which word of the order above has decided."""

    endpoint: str | None
    store: Path | None
    origin: str


_used: ContextVar[Meant | None] = ContextVar("penstock_broker", default=None)


@contextmanager
def using(endpoint: str | None, store: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the block, this broker is meant if none is named. One of the two must be given."""
    path = None if store is None else Path(store).expanduser().absolute()
    token = _used.set(Meant(endpoint, path, "using"))
    try:
        yield
    finally:
        _used.reset(token)


def meant_broker() -> Meant:
    """The broker that is meant if none is named. Raises InvalidArgument, ConfigError."""
    if (used := _used.get()) is not None:
        return used
    # imported here: most programs name their broker, and this reads configurations
    from penstock.shared.config_sources import STORE_VARIABLE, default_store

    # as everywhere, an empty variable counts as not set
    endpoint, store = (os.environ.get(name) for name in (ENDPOINT_VARIABLE, STORE_VARIABLE))
    if endpoint and store:
        raise InvalidArgument(
            "both an endpoint and a store are named",
            f"{ENDPOINT_VARIABLE}={endpoint} and {STORE_VARIABLE}={store}",
            f"leave one out: unset {ENDPOINT_VARIABLE}",
        )
    if endpoint or store:
        return Meant(endpoint or None, Path(store) if store else None, "environment")
    if saved := saved_broker():
        return saved
    here = Path(default_store())
    if here.is_dir():
        return Meant(None, here, "directory")
    # brokers run, and can be found, only on Linux
    if os.environ.get(CONTEXT_VARIABLE) != NONE and sys.platform == "linux":
        from penstock.shared.process.find_broker import running_stores

        stores = running_stores()
        if len(stores) == 1:
            return Meant(None, stores[0], "alone")
    return Meant(None, here, "default")


def saved_broker() -> Meant | None:
    """The broker of the saved context in use, or None. Raises InvalidArgument, ConfigError."""
    name = os.environ.get(CONTEXT_VARIABLE)
    if name == NONE:
        return None
    saved = load_contexts(contexts_file())
    if not (name := name or saved.current):
        return None
    found = find_context(saved, name)
    at = Path(found.store) if found.store else None
    return Meant(found.endpoint or None, at, f"context {name}")
