"""A client that means no harm: it sends a message and asks a question, again and again.

It is a process of its own, so that it waits for the broker and not for the attackers in this one.
It reports how much of each wait is the broker's: without the time in which threads on its way were
ready to run and had no processor, but at least as long as the busiest of them ran. The rest is the
machine's, and attackers are only on this machine because of the test. A message and a question go
different ways, and what the reader does while a message waits for the writer holds up nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import NamedTuple

import zmq

from penstock.chaos.broker import Broker
from penstock.chaos.machine.usage import ThreadTime, thread_times
from penstock.client.sending.producer import Producer
from penstock.shared.errors import BrokerTimeout, PenstockError
from penstock.shared.process.actor import die_with_parent
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

Times = Mapping[int, ThreadTime]
PAUSE_S = 0.02
ANSWER_S = 30
END_TIMEOUT_S = 2 * ANSWER_S
# The actors that a message passes until it is acknowledged; and those that handle it until a
# question about it is answered.
_TO_STORE = ("writer", "committer", "flusher")
_TO_ANSWER = ("committer", "reput", "reader")


class Wait(NamedTuple):
    """How long it was, and how much of that is the broker's."""

    whole_s: float
    brokers_s: float


class Honest:
    """The results so far: `waits`, and what was `wrong`."""

    def __init__(self, told: Connection) -> None:
        self._told = told
        self._waits: list[Wait] = []
        self._wrong: list[str] = []

    @property
    def waits(self) -> Sequence[Wait]:
        self.take()
        return self._waits

    @property
    def wrong(self) -> Sequence[str]:
        self.take()
        return self._wrong

    def take(self) -> None:
        """Take what it has reported."""
        try:
            while not self._told.closed and self._told.poll():
                told = self._told.recv()
                if isinstance(told, str):
                    self._wrong.append(told)
                else:
                    self._waits.append(Wait(*told))
        except (EOFError, ConnectionError):
            return


@contextmanager
def honest(broker: Broker) -> Iterator[Honest]:
    context = multiprocessing.get_context("spawn")
    told, tells = context.Pipe()
    pids = broker.actors()
    ways = [[pids[name] for name in way] for way in (_TO_STORE, _TO_ANSWER)]
    arguments = (broker.produce, broker.consume, ways, tells, os.getpid())
    process = context.Process(target=_work, args=arguments, name="honest")
    process.start()
    tells.close()
    made = Honest(told)
    try:
        yield made
        with suppress(OSError):  # it has ended by itself
            told.send("")
        process.join(END_TIMEOUT_S)
        made.take()
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
        told.close()


def _work(
    produce: str, consume: str, ways: list[list[int]], tells: Connection, parent_pid: int
) -> None:
    die_with_parent(parent_pid)
    to_store, to_answer = ([*pids, os.getpid()] for pids in ways)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    consumer = dial(context, consume)

    def ask(number: int) -> None:
        consumer.send(encode(messages.Describe(number, "honest", -1)))
        if not consumer.poll(ANSWER_S * 1000):
            raise BrokerTimeout("a consumer gets no answer")
        consumer.recv_multipart()

    try:
        with Producer(produce) as producer:
            producer.send("honest", b"first").result(ANSWER_S)
            for number in count(1):
                if tells.poll(PAUSE_S):
                    break
                stored = _timed(to_store, lambda: producer.send("honest", b"x").result(ANSWER_S))
                answered = _timed(to_answer, partial(ask, number))
                tells.send(tuple(map(sum, zip(stored, answered, strict=True))))
            tells.recv()  # raises when the pipe closes
    except (PenstockError, OSError) as error:
        tells.send(f"a client that means no harm is told: {error}")
    finally:
        consumer.close()
        context.term()


def _timed(pids: list[int], wait: Callable[[], object]) -> Wait:
    """How long the call takes, and how much of that is these processes' share."""
    before, began = thread_times(pids), time.monotonic()
    wait()
    whole_s = time.monotonic() - began
    return Wait(whole_s, _brokers(whole_s, before, thread_times(pids)))


def _brokers(whole_s: float, before: Times, after: Times) -> float:
    """How much of a wait is the broker's: without delays, but at least the busiest thread's
    time."""
    both = [(before[thread], after[thread]) for thread in before.keys() & after.keys()]
    delayed_s = sum(last.delayed_s - first.delayed_s for first, last in both)
    busiest_s = max((last.ran_s - first.ran_s for first, last in both), default=0.0)
    return max(whole_s - delayed_s, min(whole_s, busiest_s))
