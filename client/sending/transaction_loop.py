"""A producer's side of the transaction endpoint: a thread that talks, and one that asks on_check.

The threads are the same for the synchronous and the asyncio producer. The one that talks owns the
socket and the context, which no other thread touches. It keeps the producer registered while a
listener works.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Literal

import zmq

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.connecting.waker import Waker
from penstock.client.core import log
from penstock.client.core.message import Message, longest_answer_bytes
from penstock.client.core.transactions import HalfMessage, TransactionCore
from penstock.shared.clock import Clock
from penstock.shared.errors import InvalidArgument, PenstockError, StoreUnavailable
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.wire.sockets import dial
from penstock.shared.wire.transaction_messages import Ended

Decision = Literal["commit", "rollback", "unknown"]
# Decides how the transaction of a half message ended.
Listener = Callable[[Message], Decision]
Told = Callable[[Ended | PenstockError], None]
DECISIONS = ("commit", "rollback", "unknown")


class TransactionLoop:
    """Owns the threads of one producer of transactions."""

    def __init__(
        self, core: TransactionCore, address: BrokerAddress, listener: Listener | None, clock: Clock
    ) -> None:
        """`address` must have met its broker."""
        self._core, self._address, self._listener = core, address, listener
        self._clock, self._pid = clock, os.getpid()
        self._changed = threading.Condition()
        self._closing = False
        # request number -> the function that gets its answer
        self._told: dict[int, Told] = {}
        self.group = core.group
        address.give(core.aim)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = dial(self._context, address.endpoint, longest_answer_bytes(MAX_BODY_BYTES))
        self._lost = LostConnection(self._socket)
        self._waker = Waker()
        self._poller = zmq.Poller()
        for each in (self._socket, self._waker.handle, self._lost.events):
            self._poller.register(each, zmq.POLLIN)
        name = "penstock-transactions"
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True)]
        if listener is not None:
            listens = threading.Thread(target=self._listen, name=f"{name}-check", daemon=True)
            self._threads.append(listens)
        for thread in self._threads:
            thread.start()

    def end(self, halves: list[HalfMessage], outcome: Literal["commit", "rollback"]) -> list[Ended]:
        """Report how these ended, and wait for all answers.

        Raises their first error, once all have an answer.
        """
        self._check_usable()  # before taking the lock, which may never be released in a fork
        with self._changed:
            self._check_usable()
            now_ms = self._clock.monotonic_ms()
            numbers = [self._core.end(half, outcome, now_ms) for half in halves]
            self._waker.wake()
            found: dict[int, Ended | PenstockError] = {}

            def answered() -> bool:
                for number in numbers:
                    answer = self._core.answer(number)
                    if answer is not None:
                        found[number] = answer
                return len(found) == len(numbers) or self._closing

            try:
                self._changed.wait_for(answered)
            finally:
                for number in numbers:
                    self._core.forget(number)
            if len(found) < len(numbers):
                self._check_usable()
        ended = []
        for number in numbers:
            answer = found[number]
            if isinstance(answer, PenstockError):
                raise answer
            ended.append(answer)
        return ended

    def tell(self, half: HalfMessage, outcome: Literal["commit", "rollback"], told: Told) -> None:
        """Report how this one ended. `told` gets the answer once, in the thread that talks; if the
        loop is closed, the answer is StoreUnavailable."""
        with self._changed:
            self._check_usable()
            number = self._core.end(half, outcome, self._clock.monotonic_ms())
            self._told[number] = told
            self._waker.wake()

    def close(self) -> None:
        """Disconnect, without waiting for a listener at work: the broker asks again."""
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._waker.wake()
            self._changed.notify_all()
        self._threads[0].join()

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            what, hint = "the producer belongs to another process", "make one after the fork"
            raise StoreUnavailable(what, self._address.name, hint)
        if self._closing:
            raise self._closed()

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable("the producer is closed", self._address.name, "make another one")

    # --- the thread that talks ---

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
                self._waker.close()
                left, self._told = list(self._told.values()), {}
            for told in left:
                told(self._closed())
            self._lost.close()
            self._socket.close(linger=0)
            self._context.term()

    def _turn(self) -> None:
        core, now_ms = self._core, self._clock.monotonic_ms()
        if core.aim.away:
            self._address.follow(self._socket, core.aim, now_ms)
            self._lost.dial_again(self._address.endpoint, now_ms)
        with self._changed:
            out = list(core.outgoing(now_ms))
            wait_ms = core.wait_ms(now_ms)
        for header in out:
            try:
                self._socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                with self._changed:
                    core.not_connected(now_ms)
                break
        for ready, _ in self._poller.poll(wait_ms):
            if ready == self._waker.handle:
                self._waker.clear()
            elif ready == self._lost.events and self._lost.take(self._clock.monotonic_ms()):
                with self._changed:
                    core.not_connected(self._clock.monotonic_ms())
        self._take_answers()

    def _take_answers(self) -> None:
        answers = []
        while self._socket.poll(0):
            answers.append(self._socket.recv_multipart())
        with self._changed:
            for parts in answers:
                self._core.received(parts)
            self._core.tick(self._clock.monotonic_ms())
            telling = []
            for number in self._core.answered & self._told.keys():
                answer = self._core.answer(number)
                assert answer is not None
                telling.append((self._told.pop(number), answer))
            self._changed.notify_all()
        for told, answer in telling:
            told(answer)

    # --- the thread that asks the listener ---

    def _listen(self) -> None:
        while (question := self._next_question()) is not None:
            half, message = question
            outcome = self._decide(message)
            with self._changed:
                if self._closing:
                    return
                self._core.decided(half, outcome, self._clock.monotonic_ms())
                self._waker.wake()

    def _next_question(self) -> tuple[HalfMessage, Message] | None:
        """Wait for a question; None when the producer is closed."""
        with self._changed:
            while not self._closing:
                if (question := self._core.question()) is not None:
                    return question
                self._changed.wait()
        return None

    def _decide(self, message: Message) -> Decision:
        """The listener's answer. Its exception is logged, and counts as "unknown"."""
        assert self._listener is not None
        try:
            return check_decision(self._listener(message))
        except BaseException:  # also SystemExit, which would end the thread that asks the listener
            log().exception("on_check failed for message %s; the broker asks again", message)
            return "unknown"


def check_decision(decision: object) -> Decision:
    """Raises InvalidArgument."""
    if decision == "commit":
        return "commit"
    if decision == "rollback":
        return "rollback"
    if decision == "unknown":
        return "unknown"
    raise InvalidArgument(
        "on_check has returned something else than an outcome",
        repr(decision)[:80],
        f"return one of {', '.join(map(repr, DECISIONS))}",
    )
