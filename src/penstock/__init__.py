"""Penstock: RocketMQ's storage engine and broker in Python.

This folder is only the import name: each entry links to the top-level folder of the same name.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, whose import takes longer than this one's
if TYPE_CHECKING:
    import os

    from penstock.client.connection import Connection

__version__ = "0.1.0"


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
    """
    from penstock.client.connection import Connection  # importing penstock stays cheap

    return Connection(target, endpoint=endpoint, store=store)
