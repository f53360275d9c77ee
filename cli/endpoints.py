"""Which broker a command talks to: the one named by --endpoint, else the one on the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --store and --endpoint, which say where the broker is."""
    store = click.option(
        "--store", type=click.Path(path_type=Path), help="The store the broker runs on."
    )
    endpoint = click.option("--endpoint", help="The endpoint, instead of --store; tcp:// or ipc://")
    return store(endpoint(command))


def produce_endpoint(store: Path | None, endpoint: str | None) -> str:
    """Where producers connect. Raises ConnectError when no broker runs on the store."""
    return endpoint or _running(store).endpoints.produce


def consume_endpoint(store: Path | None, endpoint: str | None) -> str:
    """Where consumers connect. Raises ConnectError when no broker runs on the store."""
    return endpoint or _running(store).endpoints.consume


def _running(store: Path | None) -> Any:
    from penstock.shared.config_sources import default_store
    from penstock.shared.run_directory import find_running

    return find_running(store or Path(default_store()))
