"""A producer's side of its socket: sends the core's requests, hands it the answers.

Runs in a thread of its own or, when the process ends and no thread can be started, in the caller's.
Owns the socket and the context, which no other thread touches. If the producer is dropped before
its messages have outcomes, the loop goes on until they have, and logs those that failed.
"""

from __future__ import annotations

import threading
from typing import NoReturn

import zmq

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.connecting.waker import Waker
from penstock.client.core.sending.failures import Lost
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.sending import leaving
from penstock.client.sending.settled import Settled
from penstock.shared.clock import Clock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# A message that times out has its outcome at the loop's next turn, a little after its timeout.
GRACE_S = 1.0


class SendLoop:
    """Owns the socket and the thread of one producer. The core may be used only under `settled`."""

    def __init__(
        self,
        core: ProducerCore,
        settled: Settled,
        address: BrokerAddress,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        self.core, self._settled = core, settled
        self._address, self._name = address, address.name
        self._timeout_s = timeout_ms / 1000 + GRACE_S
        self._clock = clock
        self.is_forked = False
        # whether the thread waits, and must be woken when there is something new
        self.asleep = False
        # set by the finalizer of the producer
        self.orphaned = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = dial(
            self._context, address.endpoint, PRODUCE_ANSWER_BYTES
        )
        self._lost = LostConnection(self._socket)
        self._waker = Waker()
        self._poller = zmq.Poller()
        for each in (self._socket, self._waker.handle, self._lost.events):
            self._poller.register(each, zmq.POLLIN)
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<producer of {self._name}>"

    @property
    def closing(self) -> bool:
        """Whether messages are no longer accepted."""
        return self.core.intake.closed

    def check_usable(self) -> None:
        """Raises StoreUnavailable if messages are no longer accepted."""
        if self.closing:
            self.refuse_use()

    def refuse_use(self) -> NoReturn:
        if self.is_forked:
            raise StoreUnavailable(
                "the producer belongs to another process",
                "this one is a fork of it",
                "make one after the fork",
            )
        raise StoreUnavailable(
            "the producer is closed", self._name, "make another one: Producer(endpoint)"
        )

    def start(self) -> None:
        """Run in a thread."""
        self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)
        leaving.enter(self)
        self._thread.start()
        self._settled.brought_by = self._thread.ident

    def wake(self) -> None:
        """Have the thread look for what is to be sent; once for each time that it sleeps."""
        self.asleep = False
        self._waker.wake()

    def finish(self) -> None:
        """Wait until every message has its outcome, as long as the timeout allows."""
        with self._settled:
            self._settled.wait_for(lambda: not self.core.intake.unsettled, self._timeout_s)

    def finish_here(self) -> None:
        """Like `finish`, but without a thread, and then end."""
        until_ms = self._clock.monotonic_ms() + self._timeout_s * 1000
        try:
            while self.core.intake.unsettled and self._clock.monotonic_ms() < until_ms:
                self._turn()
        finally:
            self._end()

    def stop(self) -> None:
        """End at once: messages without an outcome fail."""
        with self._settled:
            if not self.closing:
                self.core.intake.closed = True
                self.wake()
        if self._thread is not None:
            self._thread.join()

    def take_lost(self) -> Lost | None:
        """The failures that nobody has asked about."""
        with self._settled:
            return self.core.failures.take()

    def leave(self) -> None:
        """Stop, and log failures that nobody has seen."""
        self.stop()
        if lost := self.take_lost():
            lost.log(f"{self!r} was not closed" if self.orphaned else f"leaving {self!r}")

    def forked(self) -> None:
        """This is the child of a fork, which has no such thread."""
        self.core.intake.closed = self.is_forked = True

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self.closing:
                self._turn()
                if self.orphaned and not self.core.intake.unsettled:
                    break
        except BaseException as error:
            self._end(error)
            raise
        self._end()
        if self.orphaned and (lost := self.take_lost()):
            lost.log(f"{self!r} was dropped and not closed")

    def _turn(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self.core.routes.aim.away:
            self._address.follow(self._socket, self.core.routes.aim, now_ms)
            self._lost.dial_again(self._address.endpoint, now_ms)
        with self._settled:
            leaving = list(self.core.leaving(now_ms))
            wait_ms = self.core.wait_ms(now_ms)
            self.asleep = True
        # without the lock, so that callers need not wait while records are made
        out = list(self.core.packed(leaving))
        if not self._send_out(out):
            wait_ms = self._connect_soon()
        elif out:
            self.core.timeouts.connected = True
        for ready, _ in self._poller.poll(wait_ms):
            if ready == self._waker.handle:
                self._waker.clear()
            elif ready == self._lost.events and self._lost.take(self._clock.monotonic_ms()):
                self._connect_soon()
        self._take_answers()

    def _send_out(self, out: list[tuple[bytes | memoryview, ...]]) -> bool:
        """Send all of it. False if there was no connection for the rest."""
        for parts in out:
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def _connect_soon(self) -> int:
        """There is no connection. Returns how many ms to wait before the next try."""
        now_ms = self._clock.monotonic_ms()
        with self._settled:
            self.core.not_connected(now_ms)
            return self.core.wait_ms(now_ms)

    def _take_answers(self) -> None:
        answers = []
        while True:
            try:
                answers.append(self._socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        now_ms = self._clock.monotonic_ms()
        with self._settled:
            self.asleep = False
            for parts in answers:
                self.core.received(parts, now_ms)
            self.core.tick(now_ms)
            self._settled.notify_all()

    def _end(self, error: BaseException | None = None) -> None:
        """Release everything; messages without an outcome fail."""
        leaving.discard(self)
        with self._settled:
            self.core.intake.closed = True
            self.core.fail_all(ended(self._name, error))
            self._settled.notify_all()
            # under the lock, under which other threads write to it when they find the loop asleep
            self._waker.close()
        self._lost.close()
        self._socket.close()
        self._context.term()


def ended(endpoint: str, error: BaseException | None) -> StoreUnavailable:
    """The error of a message without an outcome when its producer is closed or fails."""
    if error is None:
        what, value = "the producer was closed before the message had an outcome", endpoint
    else:
        what, value = f"the producer of {endpoint} has failed", repr(error)
    told = StoreUnavailable(what, value, "a message that was on its way may be stored")
    told.__cause__ = error
    return told
