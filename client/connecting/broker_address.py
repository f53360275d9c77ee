"""Where a client's broker is: at an endpoint, or wherever the broker of a store is now.

    meet()     before the first connection: find it, ask who it is; one that is not there, or is not
               the right one, is an error at once
    moved()    later, while it does not answer: whether the store has a new run meanwhile

By store, a client uses the run's socket file if its user may: its path contains the run's id, so no
other broker can ever listen there, and no port is needed. Otherwise it uses TCP, and its requests
name the run. By endpoint, whatever broker listens there is the one.

A client that has met its broker waits for it to come back, as long as its timeout allows. A new
client does not wait, unless `wait_for_broker_ms` tells it to. `meet` may block, so the asyncio
clients call it in a thread. The networking modules are imported on connecting, so that a program
which only names a client does not wait for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock import __version__
from penstock.client.core.aim import Aim
from penstock.client.core.arguments import check_ms
from penstock.shared.errors import BrokerTimeout, ConnectError, InvalidArgument, WrongStore
from penstock.shared.layout import StorePaths
from penstock.shared.linux import check_linux
from penstock.shared.wire.endpoint import at_port, parse_endpoint
from penstock.shared.wire.introduction import ENDPOINT_OF, PROTOCOL, Greeted, Serves

if TYPE_CHECKING:
    from pathlib import Path

    # imported late where it runs: most clients never look into a store's files
    from penstock.shared.memory.run_directory import Run

# The pause between two attempts to find a broker, or to see a new run.
AGAIN_MS = 100
_LOOPBACK = bytes((127, 0, 0, 1))
Store = str | os.PathLike[str]


def wait_for_broker(
    meet: Callable[[], Greeted], may_come: Callable[[ConnectError], bool], wait_ms: int
) -> Greeted:
    """Meet a broker. If the error may pass by itself, try again for `wait_ms`."""
    until = time.monotonic() + wait_ms / 1000
    while True:
        try:
            return meet()
        except ConnectError as error:
            if not may_come(error) or time.monotonic() + AGAIN_MS / 1000 > until:
                raise
        time.sleep(AGAIN_MS / 1000)


def starts_listening(error: ConnectError) -> bool:
    """Whether a broker may start to listen where none was, so that trying again makes sense."""
    from penstock.shared.wire.ask_broker import NobodyThere

    return isinstance(error, NobodyThere | BrokerTimeout)


class BrokerAddress:
    """One broker: a client connects to `endpoint`, and its requests name `run_id`."""

    def __init__(
        self,
        serves: Serves,
        endpoint: str | None,
        store: Store | None,
        timeout_ms: int,
        wait_for_broker_ms: int,
    ) -> None:
        """Raises InvalidArgument."""
        check_one(endpoint, store)
        if endpoint is not None:
            parse_endpoint(endpoint)
        else:
            check_linux("to find a broker by its store")
        self._serves: Serves = serves
        self._timeout_ms = timeout_ms
        self._wait_ms = check_ms("wait_for_broker_ms", wait_for_broker_ms, 0)
        self._store = None if store is None else _path(store)
        self._looked_ms = 0
        self.endpoint = endpoint or ""
        self.run_id = ""
        # how errors name it
        self.name = self.endpoint if self._store is None else f"the broker of {self._store}"

    def meet(self) -> Greeted:
        """Find the broker and ask who it is. May block for `timeout_ms`, and for the waiting time.

        Raises ConnectError, and WrongStore if another store's broker is there.
        """
        return wait_for_broker(self._meet, self._may_come, self._wait_ms)

    def local_ip(self) -> bytes:
        """The address of this machine that the client's messages name: 4 or 16 bytes."""
        if self._store is not None:
            return _LOOPBACK
        from penstock.client.connecting.local_address import local_address

        return local_address(self.endpoint)

    def give(self, aim: Aim) -> None:
        """Have requests name the run that was met."""
        aim.run, aim.store = self.run_id, "" if self._store is None else str(self._store)

    def moved(self, now_ms: int) -> bool:
        """Whether the store has a new run by now. If so, `endpoint` and `run_id` are updated."""
        if self._store is None or now_ms - self._looked_ms < AGAIN_MS:
            return False
        self._looked_ms = now_ms
        from penstock.shared.memory.run_directory import read_run

        try:
            run = read_run(StorePaths(self._store))
        except OSError:
            return (
                False  # the store was moved, or its disk is gone: the run that is known may live on
            )
        if run is None or run.run_id == self.run_id:
            return False
        self._take(run)
        return True

    def follow(self, dialed: Any, aim: Aim, now_ms: int) -> None:
        """The broker is away: reconnect the socket to the store's new run, if there is one.

        Raises nothing, and does not block.
        """
        before = self.endpoint
        if self.moved(now_ms):
            import zmq

            # ENOENT if ZeroMQ has given the endpoint up, and so has forgotten it
            with suppress(zmq.ZMQError):
                dialed.disconnect(before)
            dialed.connect(self.endpoint)
            self.give(aim)

    def _meet(self) -> Greeted:
        from penstock.shared.wire.ask_broker import ask_broker, meet_broker

        if self._store is None:
            broker, self.endpoint = meet_broker(self.endpoint, self._timeout_ms)
            return self._judge(broker)
        from penstock.shared.process.find_broker import find_running

        self._take(find_running(self._store))
        until = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                left_ms = max(1, int((until - time.monotonic()) * 1000))
                return self._judge(ask_broker(self.endpoint, left_ms))
            except BrokerTimeout:
                # the supervisor lives, so the silent actor will be replaced
                if time.monotonic() > until:
                    raise

    def _may_come(self, error: ConnectError) -> bool:
        """Whether the error may go away once a broker has started."""
        if starts_listening(error):
            return True
        if self._store is None:
            return False
        from penstock.shared.errors import NotRunning

        return isinstance(error, NotRunning)

    def _take(self, run: Run) -> None:
        name = ENDPOINT_OF[self._serves]
        tcp, ipc = (getattr(run.endpoints, each) for each in (name, f"{name}_ipc"))
        if not tcp:
            raise not_served(self.name, self._serves)
        # the file is absent while the broker has all the connections it takes; TCP waits for room
        usable = os.access(ipc.removeprefix("ipc://"), os.R_OK | os.W_OK)
        self.endpoint, self.run_id = ipc if usable else tcp, run.run_id

    def _judge(self, broker: Greeted) -> Greeted:
        """The broker, if this client can talk to it."""
        if broker.protocol != PROTOCOL:
            raise ConnectError(
                "the broker speaks another version of the protocol",
                f"{self.endpoint}: {broker.protocol}, of Penstock {broker.version}; here it is "
                f"{PROTOCOL}, of Penstock {__version__}",
                f"pip install penstock=={broker.version}",
            )
        if self._store is not None and broker.run_id != self.run_id:
            from penstock.shared.next_steps import quoted

            raise WrongStore(
                "the broker there runs on another store than the one that was named",
                f"{self.endpoint} runs on {broker.store}, and not on {self._store}",
                f"see what runs on yours: penstock status --store {quoted(self._store)}",
            )
        if broker.serves != self._serves:
            from penstock.shared.process.reception import wrong_port

            raise wrong_port(broker.serves, self._serves, as_seen_from(self.endpoint, broker))
        return broker


def check_one(endpoint: object, store: object, both_hint: str = "name one of them") -> None:
    """Raise InvalidArgument unless exactly one of them is given."""
    if endpoint is None and store is None:
        raise InvalidArgument(
            "neither an endpoint nor a store is named",
            hint='name one: "tcp://127.0.0.1:20911" or store="./store"',
        )
    if endpoint is not None and store is not None:
        raise InvalidArgument(
            "both an endpoint and a store are named",
            " and ".join(repr(str(each))[:80] for each in (endpoint, store)),
            both_hint,
        )


def check_store(store: object) -> None:
    """Raise InvalidArgument if the store is not a path."""
    if not isinstance(store, str | os.PathLike) or not os.fspath(store):
        raise InvalidArgument("this store is no path", repr(store)[:80], 'as in store="./store"')


def _path(store: Store) -> Path:
    """The store's absolute path, because the working directory may change later."""
    check_store(store)
    from pathlib import Path

    return Path(store).expanduser().absolute()


def not_served(broker: str, client: Serves) -> ConnectError:
    """The error for a broker that has no endpoint for this kind of client."""
    return ConnectError(
        f"this broker has no endpoint for {client}", broker, "see its version: penstock version"
    )


def as_seen_from(endpoint: str, broker: Greeted) -> Greeted:
    """The greeting, with the broker's endpoints as this client reaches them; "" stays "", where
    nothing is served."""
    there = {name: getattr(broker, name) for name in ENDPOINT_OF.values()}
    return replace(broker, **{name: at and at_port(endpoint, at) for name, at in there.items()})
