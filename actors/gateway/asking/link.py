"""The gateway's connection to another actor: questions out, answers to whoever asked.

A message numbered 0 answers no question: the other actor has pushed it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import zmq

from penstock.actors.gateway.asking.questions import Make, Questions, Reads, Then
from penstock.shared.loops.active import has_message
from penstock.shared.process.actor import Stage
from penstock.shared.wire.messages import Refused, error_from_refusal
from penstock.shared.wire.sockets import dial

# RocketMQ's clients wait for 3 s.
TIMEOUT_MS = 2500

# Decodes a header into its struct.
Decode = Callable[[bytes], Any]
# Takes a pushed message, and the frames that came with it.
Pushed = Callable[[Any, list[bytes]], None]


class Link:
    """A socket, and the questions that were asked over it."""

    def __init__(
        self,
        stage: Stage,
        whom: str,
        endpoint: str,
        reads: Reads,
        decode: Decode,
        pushed: Pushed,
        later: Callable[[Then], Then],
    ) -> None:
        """`reads` is how the other actor decodes a question, and `decode` decodes its answers.
        `later` wraps a callback so that it runs in the name of the request that is at work now."""
        self._decode, self._pushed, self._later = decode, pushed, later
        self._questions = Questions(whom, reads, TIMEOUT_MS)
        self.socket: Any = dial(stage.context, endpoint)

    def ask(self, make: Make, then: Then, now_ms: int, last_of: Hashable = None) -> None:
        """See Questions.ask."""
        self._questions.ask(make, self._later(then), now_ms, last_of)
        self._send(now_ms)

    def _send(self, now_ms: int) -> None:
        for header in self._questions.outgoing(now_ms):
            try:
                self.socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                break  # the actor is being replaced, and is asked when it is back

    def work(self, now_ms: int) -> int:
        done = 0
        # mostly there is no message, and an exception costs more than this check
        while has_message(self.socket):
            header, *more = self.socket.recv_multipart(zmq.NOBLOCK)
            done += 1
            answer = self._decode(header)
            if isinstance(answer, Refused):
                self._questions.answered(answer.request, error_from_refusal(answer))
            elif not answer.request:
                self._pushed(answer, more)
            else:
                self._questions.answered(answer.request, answer)
        self._questions.give_up(now_ms)
        self._send(now_ms)
        return done

    def close(self) -> None:
        self.socket.close(linger=0)
