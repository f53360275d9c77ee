"""One question at a time to one of a broker's endpoints, from ordinary, synchronous code.

    ask -> header -> wait, and ask again if nothing comes -> answer

This is for operators' questions, which are rare: its only state is the number of the last question.
An unanswered question is sent again with its number, so it must be safe to repeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.connecting.closing import closer
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.core.aim import Aim
from penstock.client.core.timeouts import silent
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import ProtocolError, StoreUnavailable
from penstock.shared.wire.introduction import Serves
from penstock.shared.wire.messages import Refused, WireMessage, encode, error_from_refusal
from penstock.shared.wire.sockets import dial

REPEAT_MS = 500
# The largest answers list all groups, or all queues of one group.
MAX_ANSWER_BYTES = 64 << 20
_Answer = TypeVar("_Answer")

# A question, given its number and the run that it is for.
Question = Callable[[int, str], WireMessage]


class Asker:
    """Asks the broker's endpoint for `serves`. Not thread-safe; not to be used across a fork."""

    def __init__(
        self,
        serves: Serves,
        decode: Callable[[bytes], Any],
        endpoint: str | None = None,
        store: Store | None = None,
        timeout_ms: int = 30_000,
        clock: Clock | None = None,
    ) -> None:
        """Raises ConnectError, and InvalidArgument for an invalid endpoint or store."""
        self._clock = clock or SystemClock()
        self._decode = decode
        self._timeout_ms = timeout_ms
        self._number = 0
        self._aim = Aim()
        self._address = BrokerAddress(serves, endpoint, store, timeout_ms, 0)
        self._address.meet()
        self._address.give(self._aim)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = dial(
            self._context, self._address.endpoint, MAX_ANSWER_BYTES
        )
        self._lost = LostConnection(self._socket)
        name = f"questions to {self._address.name}"
        self.close = closer(self, name, self._lost, self._socket, self._context)
        self._pid = os.getpid()

    def ask(self, question: Question, kind: type[_Answer]) -> _Answer:
        """The answer. Raises the broker's refusal, and BrokerTimeout if it is silent."""
        return self.ask_for_records(question, kind)[0]

    def ask_for_records(self, question: Question, kind: type[_Answer]) -> tuple[_Answer, bytes]:
        """The answer, and the records that came with it. Raises what `ask` raises."""
        if self._socket.closed or os.getpid() != self._pid:
            raise StoreUnavailable(
                "this connection was closed, or belongs to another process", None, "make another"
            )
        self._number += 1
        began_ms = self._clock.monotonic_ms()
        asked_ms, connected = -REPEAT_MS, True
        while True:
            now_ms = self._clock.monotonic_ms()
            if now_ms - began_ms > self._timeout_ms:
                raise self._aim.elsewhere or silent(self._address.name, self._timeout_ms)
            if self._aim.away or not connected:
                self._address.follow(self._socket, self._aim, now_ms)
                self._lost.dial_again(self._address.endpoint, now_ms)
            if now_ms - asked_ms >= REPEAT_MS or not connected:
                connected = self._send(question)
                asked_ms = now_ms
            if self._socket.poll(REPEAT_MS if connected else 20):
                header, *records = self._socket.recv_multipart()
                answer = self._decode(header)
                if answer.request in (self._number, 0) and self._aim.heard(answer):
                    return self._judged(answer, kind), b"".join(records)

    def _send(self, question: Question) -> bool:
        try:
            self._socket.send(encode(question(self._number, self._aim.run)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _judged(self, answer: Any, kind: type[_Answer]) -> _Answer:
        if isinstance(answer, Refused):
            raise error_from_refusal(answer)
        if not isinstance(answer, kind):
            raise ProtocolError("the answer is to another question", type(answer).__name__)
        return answer
