"""Which broker a command talks to: the one named by --endpoint, else the one on the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from penstock.cli.option_types import MAX_TIMEOUT_S, Finite


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --store and --endpoint, which say where the broker is."""
    store = click.option(
        "--store", type=click.Path(path_type=Path), help="The store the broker runs on."
    )
    endpoint = click.option("--endpoint", help="The endpoint, instead of --store; tcp:// or ipc://")
    return store(endpoint(command))


def broker_of(store: Path | None, endpoint: str | None) -> dict[str, Any]:
    """How a client is told its broker: by endpoint where one is named, else by store."""
    from penstock.shared.config_sources import default_store

    if endpoint is not None and store is not None:
        from penstock.shared.errors import InvalidArgument

        both = f"{endpoint} and {store}"
        hint = "leave out --endpoint or --store"
        raise InvalidArgument("both an endpoint and a store are named", both, hint)
    if endpoint is not None:
        return {"endpoint": endpoint}
    return {"store": store or Path(default_store())}


def served(endpoints: Any) -> dict[str, str]:
    """The TCP endpoints that somebody serves, by name, of a run's Endpoints or of its JSON.

    The last two are for RocketMQ's clients, which write them without tcp://."""
    from penstock.shared.wire.introduction import ENDPOINT_OF

    all_of_them = endpoints if isinstance(endpoints, dict) else structs.asdict(endpoints)
    names = (*ENDPOINT_OF.values(), "name_server", "remoting")
    return {name: at for name in names if (at := all_of_them.get(name))}


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --wait, for commands that start before their broker."""
    return click.option(
        "--wait",
        type=Finite(0, MAX_TIMEOUT_S),
        default=0,
        show_default=True,
        help="Seconds to wait for a broker that is not there yet.",
    )(command)
