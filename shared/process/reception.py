"""The reception of an endpoint: it introduces the broker, and redirects misdirected requests.

    a request of this endpoint      goes on, unless it names another run than this one
    a request of another endpoint   ConnectError, with the endpoint it belongs to
    Greet                           Greeted
    anything else                   ProtocolError

A client that was given a store names, in its requests, the run that the store's run.json named. A
run has one store and an id of its own. So the request is refused by the broker of any other store,
copies included, and by a later run on the same store: then the client reads run.json again. A
client that was given an endpoint names no run, and whichever broker listens there serves it.

Each actor with clients has one. It opens no sockets; the actor sends what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.shared.errors import ConnectError, PenstockError, ProtocolError, WrongStore
from penstock.shared.memory.run_directory import Run
from penstock.shared.wire import messages
from penstock.shared.wire.introduction import (
    ENDPOINT_OF,
    PROTOCOL,
    Greeted,
    Serves,
    decode_greet,
    encode,
)

Decoder = Callable[[bytes], Any]


def _decoder_of(serves: Serves) -> Decoder:
    """The decoder for the requests of an endpoint.

    Those of members and transactions are imported here: the writer, which a start waits for, needs
    them only for a client that has mistaken the port.
    """
    if serves == "members":
        from penstock.shared.wire.group_messages import decode_group_request

        return decode_group_request
    if serves == "transactions":
        from penstock.shared.wire.transaction_messages import decode_transaction_request

        return decode_transaction_request
    producing, consuming = messages.decode_produce_request, messages.decode_consume_request
    return producing if serves == "producers" else consuming


class Reception:
    """Reads the requests of one endpoint and refuses those that are meant for another broker.

    It keeps nothing of what it reads: its answers follow from the header and the run alone.
    """

    def __init__(self, serves: Serves, run: Run, store: Path) -> None:
        self._serves, self._run, self._store = serves, run, store.resolve()
        self._decode = _decoder_of(serves)

    def read(self, header: bytes) -> Any:
        """A request of this endpoint, or the answer to Greet as bytes.

        Raises ProtocolError, WrongStore for a request that is meant for another run, and
        ConnectError for one of another endpoint.
        """
        # Nearly every header is a request, so only the exceptions pay for further tries.
        try:
            request = self._decode(header)
        except ProtocolError as error:
            if decode_greet(header) is not None:
                return encode(self._greeted())
            raise self._misdirected(header) or error from None
        # an Append names no run: it belongs to a session, which a Hello began here
        named = getattr(request, "run", "")
        if named and named != self._run.run_id:
            raise WrongStore(
                "another broker than the one that was meant listens here",
                f"this one runs on {self._store}",
                "see where yours listens: penstock status --store STORE",
            )
        return request

    def _misdirected(self, header: bytes) -> PenstockError | None:
        """The error that names the endpoint for this request; None if no endpoint takes it."""
        for whose in ENDPOINT_OF:
            if whose == self._serves:
                continue
            with suppress(ProtocolError):
                _decoder_of(whose)(header)
                return wrong_port(self._serves, whose, self._greeted())
        return None

    def _greeted(self) -> Greeted:
        run = self._run
        return Greeted(
            PROTOCOL,
            __version__,
            self._serves,
            run.endpoints.produce,
            run.endpoints.consume,
            run.run_id,
            str(self._store),
            run.supervisor_pid,
            run.endpoints.group,
            run.endpoints.transaction,
        )


def wrong_port(serves: str, client: Serves, broker: Greeted) -> ConnectError:
    """The error for a `client` of one kind at a port that `serves` another."""
    # looked up by the wire's words: a later version may serve clients that this one does not know
    ports: dict[str, str] = {whom: getattr(broker, name) for whom, name in ENDPOINT_OF.items()}
    right = ports[client]
    return ConnectError(
        f"this is the {serves}' port of the broker, and no {client[:-1]} can use it",
        ports.get(serves),
        f"{client} connect to {right}" if right else f"this broker has none for {client}",
    )
