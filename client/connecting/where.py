"""Which broker a client means, as its caller has named it: by an endpoint or by a store."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

from penstock.client.connecting.broker_address import (
    Store,
    as_seen_from,
    check_one,
    check_store,
    not_served,
    starts_listening,
    wait_for_broker,
)
from penstock.shared.notebook import as_table
from penstock.shared.wire.endpoint import parse_endpoint
from penstock.shared.wire.introduction import ENDPOINT_OF, Greeted, Serves

_SCHEMES = ("tcp:", "ipc:")
# A directory with such a name can be given as ./NAME, or as store="NAME".
_LIKE_ENDPOINT = r"[^/\\]+:[0-9]+|[a-z]+://.*"
# How long the broker may take to say who it is.
TIMEOUT_MS = 30_000


def where(target: Store | None, endpoint: str | None, store: Store | None) -> Where:
    """The broker that is named or, if none is, the one that is meant here (see chosen_broker).

    Raises InvalidArgument, ConfigError.
    """
    if target is None and endpoint is None and store is None:
        # imported here: most programs name their broker
        from penstock.client.connecting.chosen_broker import meant_broker

        endpoint, store, _ = meant_broker()
    return Where(target, endpoint, store)


class Where:
    """Which broker a text means: an endpoint begins with tcp: or ipc:, anything else is a store."""

    def __init__(self, target: Store | None, endpoint: str | None, store: Store | None) -> None:
        if target is not None and isinstance(target, str) and target.startswith(_SCHEMES):
            check_one(target, store if endpoint is None else endpoint)
            endpoint = target
        elif target is not None:
            check_one(endpoint, target)
            store = target
        check_one(endpoint, store)
        if store is not None:
            check_store(store)
            if isinstance(target, str) and re.fullmatch(_LIKE_ENDPOINT, target):
                parse_endpoint(target)  # raises: it lacks the tcp://
        if endpoint is not None:
            parse_endpoint(endpoint)
        self.endpoint, self.store = endpoint, store
        self.name = endpoint if store is None else os.fspath(store)
        self._broker: Greeted | None = None

    def as_html(self) -> str:
        """The broker, for a notebook."""
        return as_table(
            "Penstock broker", [("store" if self.endpoint is None else "endpoint", self.name)]
        )

    def arguments(self, serves: Serves, wait_for_broker_ms: int = 0) -> dict[str, Any]:
        """The arguments of a client of that kind. By endpoint, this waits for the broker and asks
        it for its other endpoints.

        Raises ConnectError.
        """
        if self.endpoint is None:
            return {"store": self.store}
        if self._broker is None:
            from penstock.shared.wire.ask_broker import ask_broker

            ask = partial(ask_broker, self.endpoint, TIMEOUT_MS)
            self._broker = wait_for_broker(ask, starts_listening, wait_for_broker_ms)
        if serves == self._broker.serves:
            return {"endpoint": self.endpoint}
        there = getattr(as_seen_from(self.endpoint, self._broker), ENDPOINT_OF[serves])
        if not there:
            raise not_served(self.endpoint, serves)
        return {"endpoint": there}
