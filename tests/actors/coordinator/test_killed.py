"""Real processes that are killed: a member, the coordinator, the broker. The group goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from penstock.client.sending.producer import Producer
from penstock.shared.process.find_broker import find_running
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

GROUP, TOPIC = "CG", "orders"
# far longer than any of this takes: what is noticed sooner is not noticed by silence
SESSION_MS = 300_000
WAIT_S = 60
REPEAT_MS = 500

# A member in a process of its own: it joins, claims all queues, says so, and does no more.
MEMBER = """
import sys, time, zmq
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

socket = dial(zmq.Context(), sys.argv[1])
subscription = (words.SubscriptionData("orders", "TAG", "*", 1),)
socket.send(encode(words.Join(1, "CG", "child", subscription, 300_000, orderly=True)))
while words.decode_group_answer(socket.recv()).request != 1:
    pass
queues, number = (), 1
while len(queues) < 4:  # the coordinator may not know the topic yet
    number += 1
    socket.send(encode(words.Claim(number, "CG", "child", "orders", (0, 1, 2, 3))))
    while (answer := words.decode_group_answer(socket.recv())).request != number:
        pass
    queues = answer.queues
print(len(queues), flush=True)
time.sleep(3600)
"""


class RealMember:
    """A member of a broker that runs: a request is repeated until it is answered."""

    def __init__(self, context: Any, store: Any, name: str) -> None:
        self.name = name
        self.socket = dial(context, find_running(store).endpoints.group)
        self._number = 0

    def ask(self, kind: type, *fields: Any, **named: Any) -> Any:
        self._number += 1
        header = encode(kind(self._number, GROUP, self.name, *fields, **named))
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                self.socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.01)
                continue
            while self.socket.poll(REPEAT_MS):
                answer = words.decode_group_answer(self.socket.recv())
                if answer.request == self._number:
                    return answer
        raise TimeoutError(kind.__name__)

    def join(self, held: tuple[words.HeldClaim, ...] = ()) -> Any:
        wanted = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
        return self.ask(words.Join, wanted, SESSION_MS, held=held)

    def claim(self, *queues: int) -> Any:
        return self.ask(words.Claim, TOPIC, queues)


@pytest.fixture
def member(broker: Any) -> Iterator[Callable[[str], RealMember]]:
    """A topic of four queues, and what makes a member."""
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, 4)
    with zmq.Context() as context:
        made: list[RealMember] = []

        def make(name: str) -> RealMember:
            made.append(RealMember(context, broker.store, name))
            return made[-1]

        yield make
        for each in made:
            each.socket.close()


def test_the_queues_of_a_killed_member_are_free_long_before_its_session_ends(
    broker: Any, member: Callable[[str], RealMember]
) -> None:
    endpoint = find_running(broker.store).endpoints.group_ipc
    child = subprocess.Popen(
        [sys.executable, "-c", MEMBER, endpoint], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "4\n"
        heir = member("heir")
        while heir.join().topics[0].read_queues != 4:
            time.sleep(0.05)
        assert heir.claim(0, 1, 2, 3).taken == (0, 1, 2, 3)
    finally:
        child.kill()
        child.communicate()
    deadline = time.monotonic() + WAIT_S
    while heir.claim(0, 1, 2, 3).taken:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert heir.join().members == ("heir",)


def test_claims_and_commits_outlive_kills_of_the_coordinator_and_of_the_broker(
    broker_in: Callable[..., Any], tmp_path: Any
) -> None:
    broker = broker_in(tmp_path)
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, 4)
    with zmq.Context() as context:
        first, second = (RealMember(context, broker.store, name) for name in "ab")
        while first.join().topics[0].read_queues != 4:
            time.sleep(0.05)
        second.join()
        (got,) = first.claim(0).queues
        done = words.QueueCommit(TOPIC, 0, 41, got.epoch)
        assert first.ask(words.Commit, (done,)).lost == ()
        for _ in range(2):
            (pid,) = [
                each["pid"] for each in broker.status()["actors"] if each["name"] == "coordinator"
            ]
            os.kill(pid, signal.SIGKILL)
            second.join()
            assert second.claim(0).taken == (0,), "its owner has not given it up"
        first.join(held=(words.HeldClaim(TOPIC, 0, got.epoch),))
        done = words.QueueCommit(TOPIC, 0, 42, got.epoch)
        assert first.ask(words.Commit, (done,)).lost == ()
        broker.kill()
        for each in (first, second):
            each.socket.close()
        broker = broker_in(tmp_path)
        third = RealMember(context, broker.store, "a")
        assert third.join(held=(words.HeldClaim(TOPIC, 0, got.epoch),)).lost == ()
        (again,) = third.claim(0).queues
        assert (again.offset, again.epoch) == (42, got.epoch)
        third.socket.close()
