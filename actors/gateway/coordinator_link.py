"""The gateway's connection to the coordinator: questions out, answers to whoever asked.

What has no answer is asked again, as the coordinator may be a new one; all that is asked may be
asked twice. What has none in time is answered BrokerTimeout here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from penstock.shared.errors import BrokerTimeout, PenstockError, ProtocolError
from penstock.shared.process.actor import Stage
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import Refused, WireMessage, encode, error_from_refusal
from penstock.shared.wire.sockets import dial

AGAIN_MS = 1000
# RocketMQ's clients wait for 3 s.
TIMEOUT_MS = 2500

Then = Callable[[Any], None]


class _Asked:
    __slots__ = ("message", "then", "sent_ms", "until_ms")

    def __init__(self, message: WireMessage, then: Then, now_ms: int) -> None:
        self.message, self.then = message, then
        self.sent_ms, self.until_ms = now_ms - AGAIN_MS, now_ms + TIMEOUT_MS


class CoordinatorLink:
    """Questions of groups."""

    def __init__(self, stage: Stage, changed: Callable[[words.Changed], None]) -> None:
        """`changed` is told what the coordinator says by itself."""
        self._changed = changed
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self.socket: Any = dial(stage.context, stage.run.endpoints.group_ipc)

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, make: Callable[[int], WireMessage], then: Then, now_ms: int) -> None:
        """Ask what `make` makes with a number; `then` gets the answer, or a PenstockError."""
        self._number += 1
        asked = self._asked[self._number] = _Asked(make(self._number), then, now_ms)
        self._send(asked, now_ms)

    def _send(self, asked: _Asked, now_ms: int) -> None:
        try:
            self.socket.send(encode(asked.message), zmq.NOBLOCK)
            asked.sent_ms = now_ms
        except zmq.Again:
            pass  # it is being replaced, and is asked when it is there

    def work(self, now_ms: int) -> int:
        done = 0
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            done += 1
            try:
                answer = words.decode_group_answer(parts[0])
            except ProtocolError:
                continue  # nothing that was asked for
            if isinstance(answer, words.Changed):
                self._changed(answer)
                continue
            asked = self._asked.pop(answer.request, None)
            if asked is not None:
                asked.then(error_from_refusal(answer) if isinstance(answer, Refused) else answer)
        for number, asked in list(self._asked.items()):
            if now_ms >= asked.until_ms:
                del self._asked[number]
                asked.then(_late())
            elif now_ms - asked.sent_ms >= AGAIN_MS:
                self._send(asked, now_ms)
        return done

    def close(self) -> None:
        self.socket.close(linger=0)


def _late() -> PenstockError:
    return BrokerTimeout("the coordinator has not answered", f"within {TIMEOUT_MS} ms", "try again")
