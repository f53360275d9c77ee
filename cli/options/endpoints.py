"""Which broker a command talks to: the one named by --endpoint or --store, else the default one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from penstock.cli.options.option_types import MAX_TIMEOUT_S, Finite

if TYPE_CHECKING:
    from penstock.client.connecting.chosen_broker import Meant
    from penstock.shared.wire.introduction import Serves


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --store and --endpoint, which say where the broker is."""
    store = click.option(
        "--store",
        type=click.Path(path_type=Path),
        help="The store the broker runs on; without it, as `penstock context show` says.",
    )
    endpoint = click.option("--endpoint", help="The endpoint, instead of --store; tcp:// or ipc://")
    return store(endpoint(command))


def broker_of(
    store: Path | None, endpoint: str | None, serves: Serves | None = None, wait_s: float = 0
) -> dict[str, Any]:
    """A client's arguments for the broker that is named, else for the one that is meant
    (client/connecting/chosen_broker.py).

    An endpoint that is only meant may be any of the broker's. With `serves` the broker is asked for
    that of this kind of client, for up to `wait_s` seconds until it is there. Raises ConnectError.
    """
    if endpoint is not None and store is not None:
        from penstock.shared.errors import InvalidArgument

        both = f"{endpoint} and {store}"
        hint = "leave out --endpoint or --store"
        raise InvalidArgument("both an endpoint and a store are named", both, hint)
    if endpoint is not None:
        return {"endpoint": endpoint}
    if store is not None:
        return {"store": store}
    meant = _meant()
    if meant.endpoint is None:
        return {"store": meant.store}
    return {"endpoint": meant.endpoint} if serves is None else _asked(meant, serves, wait_s)


def _asked(meant: Meant, serves: Serves, wait_s: float) -> dict[str, Any]:
    from penstock.client.connecting.broker_address import AGAIN_MS
    from penstock.client.connecting.where import Where
    from penstock.shared.errors import ConnectError

    there, until = Where(None, meant.endpoint, None), time.monotonic() + wait_s
    while True:
        try:
            return there.arguments(serves)
        except ConnectError:
            if time.monotonic() >= until:
                raise
        time.sleep(AGAIN_MS / 1000)


def store_of(store: Path | None) -> Path:
    """The store whose files a command looks at. Raises InvalidArgument if only an endpoint is
    named."""
    if store is not None:
        return store
    meant = _meant()
    if meant.store is None:
        from penstock.shared.errors import InvalidArgument

        raise InvalidArgument(
            "this command looks at a store's files, and an endpoint is what is named",
            f"{meant.endpoint} ({meant.origin})",
            "name the store, on the broker's machine: --store STORE",
        )
    return meant.store


def _meant() -> Meant:
    from penstock.client.connecting.chosen_broker import meant_broker

    meant = meant_broker()
    if meant.origin == "alone":
        click.echo(f"on {meant.store}, the only broker that runs here", err=True)
    return meant


def served(endpoints: Any) -> dict[str, str]:
    """The TCP endpoints that are served, by name, from a run's Endpoints or its JSON.

    Two are for RocketMQ's clients, in their notation; the last is for browsers."""
    from penstock.shared.wire.introduction import ENDPOINT_OF

    all_of_them = endpoints if isinstance(endpoints, dict) else structs.asdict(endpoints)
    ours = {name: all_of_them.get(name) for name in ENDPOINT_OF.values()}
    theirs = {name: all_of_them.get(name) for name in ("name_server", "remoting")}
    theirs = {name: at.removeprefix("tcp://") for name, at in theirs.items() if at}
    monitor = {"monitor": at} if (at := all_of_them.get("monitor")) else {}
    return {name: at for name, at in ours.items() if at} | theirs | monitor


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option --wait, for commands that start before their broker."""
    return click.option(
        "--wait",
        type=Finite(0, MAX_TIMEOUT_S),
        default=0,
        show_default=True,
        help="Seconds to wait for a broker that is not there yet.",
    )(command)
