"""Penstock: RocketMQ's storage engine and broker in Python.

This folder is only the import name: each entry links to the top-level folder of the same name.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, whose import takes longer than this one's
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from penstock.client import (
        Batch,
        BatchMessage,
        Connection,
        Consumer,
        GroupConsumer,
        GroupMessage,
        Message,
        MessageQuery,
        Producer,
        Receipt,
        SendFuture,
        Sql,
        at_random,
        by_hash,
    )
    from penstock.client.app import App
    from penstock.embedded import Broker

__version__ = "0.1.0"
__all__ = [
    "App",
    "Batch",
    "BatchMessage",
    "Connection",
    "Consumer",
    "GroupConsumer",
    "GroupMessage",
    "Message",
    "MessageQuery",
    "Producer",
    "Receipt",
    "SendFuture",
    "Sql",
    "at_random",
    "by_hash",
    "connect",
    "open",
    "using",
]


def __getattr__(name: str) -> object:
    """App, and the names of penstock.client: the same objects, imported when they are asked for, so
    that importing penstock stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = "penstock.client.app" if name == "App" else "penstock.client"
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    endpoint: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Connection:
    """The broker that runs on a store, or listens at an endpoint: makes clients of it.

        with penstock.connect("./store") as broker:
            broker.producer().send("orders", b"...")

    `target` is either of both: an endpoint begins with tcp: or ipc:. `endpoint` and `store` say
    which it is. The same for asyncio is in penstock.client.aio. Raises InvalidArgument.

    Where none is named it is that of `penstock.using`; else of PENSTOCK_ENDPOINT or PENSTOCK_STORE;
    else of the saved context (PENSTOCK_CONTEXT, or `penstock context use`); else ./store; else the
    only broker of yours that runs on this machine. `penstock context show` says which that is.
    """
    from penstock.client.connection import Connection  # importing penstock stays cheap

    return Connection(target, endpoint=endpoint, store=store)


def using(
    target: str | os.PathLike[str] | None = None,
    *,
    endpoint: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> AbstractContextManager[None]:
    """Within the block this is the broker that `penstock.connect()` and `penstock.App()` mean.

        with penstock.using("./store"):
            work()

    It is a context variable: coroutines that start within the block have it, and new threads do
    not. The fixture `penstock` of the pytest plugin does it for each test. Raises InvalidArgument.
    """
    from penstock.client.connecting.chosen_broker import using as entered
    from penstock.client.connecting.where import Where

    named = Where(target, endpoint, store)
    return entered(named.endpoint, named.store)


def open(
    store: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, str | int | bool] | None = None,
) -> Broker:
    """A broker of this program's own, on a store that is made if it is new; a temporary one if none
    is named. It runs in child processes, and stops with the block or with the program.

        with penstock.open("./store") as broker:
            broker.producer().send("orders", b"...")

    `settings` are keys of `penstock config show`. Raises what `penstock up` would print:
    ConfigError, StoreLocked, StoreDamaged, StoreUnavailable. More is in penstock.embedded.
    """
    from penstock.shared.linux import check_linux

    check_linux("a broker")
    from penstock.embedded import Broker

    return Broker(store, settings=settings)
