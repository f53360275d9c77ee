"""`Broker`: a broker that belongs to a program.

It owns the channel, whose end stops the broker, and the clients made with it. It must not touch the
store's files, which are the broker's; `status` reads them by the functions of `penstock status`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from penstock.client.connection import Connection
from penstock.embedded.launching import launch
from penstock.embedded.messages import Failed, Launch, Ready, as_error
from penstock.embedded.temporary_store import remove_temporary
from penstock.shared.config_sources import STORE_KEY
from penstock.shared.errors import BrokerTimeout, InvalidArgument, StoreUnavailable
from penstock.shared.process.broker_status import read_status

# A program needs no fixed ports, because its clients find the broker by its store. It speaks
# Penstock's own protocol and nobody watches it, so gateway and monitor, two processes, run only if
# it asks for them.
DEFAULTS: dict[str, str | int | bool] = {
    **{
        f"{name}_port": 0
        for name in (
            *("produce", "consume", "group", "transaction"),
            *("gateway", "gateway_name_server", "monitor"),
        )
    },
    "gateway_enable": False,
    "monitor_enable": False,
}
# A start recovers the log, which may take long; all other steps have the supervisor's own limits.
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 120
_ANSWER_BYTES = 1 << 16
# How often status is polled: shared memory does not notify those who only read it.
_LOOK_AGAIN_S = 0.005


_decoder: msgspec.json.Decoder[Ready | Failed] = msgspec.json.Decoder(Ready | Failed)


class Broker(Connection):
    """A broker whose processes are children of this program; by store, or on a temporary one.

        with penstock.open("./store") as broker:
            broker.producer().send("orders", b"...")

    It is also a Connection: it makes producers, consumers, groups and queries, and closes them
    before it stops. Other programs reach it like any broker: by its store, or at `endpoints`. It
    stops when its block ends, or when its program ends, however that happens.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, str | int | bool] | None = None,
        log: str | os.PathLike[str] | IO[Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and wait until it serves.

        `store` is created if it is new; without one it is temporary, and removed when the broker
        stops. `settings` are keys of `penstock config show`; {"gateway_enable": True} also serves
        RocketMQ's clients, at `endpoints["name_server"]`. The broker logs to `log`, a path or an
        open file, or else to standard error. `environment` has the same effect as for
        `penstock up`; it is empty by default, so that a program does not depend on where it runs.

        Raises ConfigError, StoreLocked, StoreDamaged, StoreUnavailable: whatever `penstock up`
        would print.
        """
        flags = {**DEFAULTS, **(settings or {})}
        if STORE_KEY in flags:
            raise InvalidArgument(
                "the store is named among the settings", flags[STORE_KEY], 'as in open("./store")'
            )
        temporary = "" if store is not None else tempfile.mkdtemp(prefix="penstock-store-")
        self.store = Path(temporary, "store") if store is None else Path(store).absolute()
        super().__init__(store=self.store)
        self._request = request = Launch(
            flags | {STORE_KEY: str(self.store)}, dict(environment or {}), temporary
        )
        with ExitStack() as undo:
            if temporary:
                undo.callback(shutil.rmtree, temporary)
            with _log_file(log) as handle:
                self._channel = launch(request, handle)
            undo.pop_all()  # from here on the launcher removes the temporary store
        answer = self._answer()
        self.pid, self.endpoints = answer.pid, answer.endpoints
        self.damaged = answer.damaged

    def _answer(self) -> Ready:
        """The broker's answer about its start. Raises the error that kept it from starting."""
        self._channel.settimeout(START_TIMEOUT_S)
        try:
            data = self._channel.recv(_ANSWER_BYTES)
            if not data:
                raise StoreUnavailable(
                    "the broker ended while it started",
                    self.store,
                    "what it printed says why; the next start recovers",
                )
            answer = _decoder.decode(data)
            if isinstance(answer, Failed):
                raise as_error(answer)
        except TimeoutError:
            self._await_gone()
            raise BrokerTimeout(
                "the broker did not start in time",
                f"{self.store}: {START_TIMEOUT_S} s",
                "see its log",
            ) from None
        except BaseException:
            self._await_gone()
            raise
        return answer

    @property
    def running(self) -> bool:
        """Whether the broker's processes exist."""
        if self._channel.fileno() < 0:
            return False
        self._channel.setblocking(False)
        try:
            return self._channel.recv(_ANSWER_BYTES, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True

    def status(self) -> dict[str, Any]:
        """What `penstock status -o json` prints: actors, positions, endpoints."""
        return read_status(self.store)

    def kill(self) -> None:
        """End all its processes at once, like a crash. A new Broker on the store recovers."""
        if self.running:
            with suppress(ProcessLookupError):  # it may have just ended by itself
                os.kill(self.pid, signal.SIGKILL)
        self._await_gone()

    def kill_actor(self, name: str, timeout: float = 60) -> None:
        """End one actor at once, like a crash, and wait until its successor works.

        With a `timeout` of 0 seconds it does not wait. Raises InvalidArgument if there is no such
        actor, and BrokerTimeout if the actor is not running or has no successor in time.
        """
        killed = self._actor(name)
        if not killed["pid"]:
            raise BrokerTimeout(
                "this actor is not running", name, "it is being replaced: try again"
            )
        os.kill(killed["pid"], signal.SIGKILL)
        deadline = time.monotonic() + timeout
        while timeout:
            found = self._actor(name)
            if found["state"] == "running" and found["generation"] > killed["generation"]:
                return
            if time.monotonic() > deadline:
                raise BrokerTimeout("the actor has no successor yet", name, "see the broker's log")
            time.sleep(_LOOK_AGAIN_S)

    def _actor(self, name: str) -> dict[str, Any]:
        """What `status` says of one actor."""
        actors: dict[str, dict[str, Any]] = {each["name"]: each for each in self.status()["actors"]}
        if name not in actors:
            raise InvalidArgument("there is no such actor", name, f"one of {', '.join(actors)}")
        return actors[name]

    def close(self) -> None:
        """Close the clients that were made here, then stop the broker and wait for its end.

        Raises BrokerTimeout if it does not end.
        """
        try:
            super().close()
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            self._stop()

    def _stop(self) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        self._await_gone()

    def _await_gone(self) -> None:
        """Wait until nothing of the broker is left: its end of the channel is closed last."""
        if self._channel.fileno() < 0:
            return
        self._channel.settimeout(STOP_TIMEOUT_S)
        try:
            self._channel.shutdown(socket.SHUT_WR)  # also stops a broker that is still starting
            while self._channel.recv(_ANSWER_BYTES):
                pass  # an earlier answer
        except TimeoutError:
            raise BrokerTimeout(
                "the broker did not stop", f"{self.store}: {STOP_TIMEOUT_S} s", "see its log"
            ) from None
        except ConnectionResetError:
            pass  # it ended before it had read everything
        finally:
            self._channel.close()
        remove_temporary(self._request)  # in case the launcher, which does this, was killed

    def __repr__(self) -> str:
        return f"<penstock broker on {self.store}{'' if self.running else ', stopped'}>"


@contextmanager
def _log_file(log: str | os.PathLike[str] | IO[Any] | None) -> Iterator[int]:
    """The descriptor that the broker logs to: a file, or this program's standard error."""
    if isinstance(log, str | os.PathLike):
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)
    else:
        yield (log or sys.__stderr__ or sys.stderr).fileno()
