"""Members in processes of their own, of which some are killed, leave, or join while others work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.client import Consumer, GroupConsumer, Producer

pytestmark = pytest.mark.takes(15)

WAIT_S = 60
QUEUES, EACH = 4, 150
# What a program of the test's does: it says when it began and ended a message, and which offsets
# the broker has answered.
PROGRAM = """
import sys, time
from penstock.client import GroupConsumer

store, group, orderly, session_ms = sys.argv[1:]

def tell(*words):
    print(time.monotonic_ns(), *words, flush=True)

consumer = GroupConsumer(
    store=store, group=group, topics="work", start="first", orderly=orderly == "orderly",
    commit_ms=20, session_timeout_ms=int(session_ms),
)
with consumer:
    tell("began")
    for number, message in enumerate(consumer):
        tell("begin", message.queue_id, message.queue_offset)
        time.sleep(0.002)
        tell("end", message.queue_id, message.queue_offset)
        message.ack()
        if number % 10 == 9:
            consumer.commit()
            for (topic, queue), offset in consumer.committed.items():
                if topic == "work":
                    tell("sure", queue, offset)
tell("left")
"""


class Line(NamedTuple):
    ns: int
    member: int
    what: str
    queue: int
    offset: int


class Program:
    """A member in a process."""

    def __init__(self, number: int, store: Path, kind: str, session_ms: int, place: Path) -> None:
        self.number, self.said = number, place / f"member-{number}"
        self.ended_ns = 1 << 62
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(store), "g", kind, str(session_ms)],
                stdout=said,
            )

    @property
    def lines(self) -> list[Line]:
        found = []
        for line in self.said.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n"):
                rest = [int(each) for each in words[2:]] or [-1, -1]
                found.append(Line(int(words[0]), self.number, words[1], *rest))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ended_ns = time.monotonic_ns()

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0
        assert self.lines[-1].what == "left"


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"it does not come about: {what}"
        time.sleep(0.02)


@pytest.fixture
def work(start_broker: Any) -> Iterator[Any]:
    broker = start_broker()
    with Producer(store=broker.store) as producer:
        producer.create_topic("work", QUEUES)
        for number in range(QUEUES * EACH):
            producer.send("work", b"%d" % number, queue=number % QUEUES)
    return broker


@pytest.fixture
def programs(work: Any, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def start(kind: str, session_ms: int = 3000) -> Program:
        made.append(Program(len(made), work.store, kind, session_ms, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


def everything(programs: list[Program]) -> list[Line]:
    return sorted(line for each in programs for line in each.lines)


def ended(programs: list[Program]) -> set[tuple[int, int]]:
    return {(line.queue, line.offset) for line in everything(programs) if line.what == "end"}


@pytest.mark.parametrize("kind", ["any", "orderly"])
def test_members_come_leave_and_are_killed_and_each_message_is_handled(
    work: Any, programs: Callable[..., Program], kind: str
) -> None:
    members = [programs(kind) for _ in range(2)]
    wait_for(lambda: len(ended(members)) > 60, "the first messages")
    members[0].kill()
    members.append(programs(kind))
    before = len(ended(members))
    wait_for(lambda: len(ended(members)) > before + 60, "others go on")
    members[1].leave()
    members.append(programs(kind))
    wait_for(lambda: len(ended(members)) == QUEUES * EACH, "everything is handled")
    for each in members[2:]:
        each.leave()
    nothing_answered_comes_again(everything(members))
    if kind == "orderly":
        no_queue_is_in_two_hands(members)


@pytest.mark.parametrize("kind", ["any", "orderly"])
def test_a_member_that_was_frozen_repeats_nothing_that_was_answered(
    work: Any, programs: Callable[..., Program], kind: str
) -> None:
    frozen = programs(kind)
    wait_for(lambda: len(ended([frozen])) > 20, "it works")
    frozen.process.send_signal(signal.SIGSTOP)
    heir = programs(kind)
    if kind == "any":  # an orderly one keeps its queues for a minute, as in RocketMQ
        wait_for(lambda: len(ended([frozen, heir])) == QUEUES * EACH, "the heir has done the rest")
    else:
        wait_for(lambda: bool(heir.lines), "the heir is there")
    frozen.process.send_signal(signal.SIGCONT)
    wait_for(lambda: len(ended([frozen, heir])) == QUEUES * EACH, "everything is handled")
    for each in (frozen, heir):
        each.leave()
    nothing_answered_comes_again(everything([frozen, heir]))
    if kind == "orderly":
        no_queue_is_in_two_hands([frozen, heir])


def nothing_answered_comes_again(lines: list[Line]) -> None:
    sure: dict[int, int] = {}
    for line in lines:
        if line.what == "sure":
            sure[line.queue] = max(line.offset, sure.get(line.queue, 0))
        elif line.what == "begin":
            assert line.offset >= sure.get(line.queue, 0), line


def no_queue_is_in_two_hands(members: list[Program]) -> None:
    """Each message of a queue begins after the one before it has ended, or its process has."""
    lines = everything(members)
    for queue in range(QUEUES):
        busy_until, last = 0, -1
        of_queue = [line for line in lines if line.queue == queue and line.what in ("begin", "end")]
        for at, line in enumerate(of_queue):
            if line.what == "begin":
                assert line.ns >= busy_until, line
                assert line.offset <= last + 1, "one was passed over"
                last = line.offset
                own_end = (
                    later.ns
                    for later in of_queue[at:]
                    if later.what == "end" and later[1:2] + later[3:] == line[1:2] + line[3:]
                )
                busy_until = next(own_end, members[line.member].ended_ns)


def test_a_killed_members_queues_are_with_others_before_its_session_ends(
    work: Any, programs: Callable[..., Program]
) -> None:
    # it is taken for dead because its connection has ended, and not because it was silent
    victim = programs("any", session_ms=10 * WAIT_S * 1000)
    wait_for(lambda: len(ended([victim])) > 20, "it works")
    with GroupConsumer(store=work.store, group="g", topics="work", start="first") as heir:
        heir.poll(0.01)
        wait_for(lambda: len(work_queues(heir)) == 2, "the queues are shared")
        os.kill(victim.process.pid, signal.SIGKILL)
        wait_for(lambda: len(work_queues(heir)) == QUEUES, "the heir has all")


def work_queues(consumer: GroupConsumer) -> set[int]:
    return {queue for topic, queue in consumer.assignment if topic == "work"}


def test_a_message_that_is_given_back_comes_again_when_it_was_told(work: Any) -> None:
    began: dict[int, float] = {}
    again: dict[int, tuple[float, str, int]] = {}
    consumer = GroupConsumer(store=work.store, group="g", topics="work", start="first")

    def handle(message: Any) -> None:
        number, now = int(message.body), time.monotonic()
        if message.reconsume_times:
            again[number] = now - began[number], message.topic, message.reconsume_times
        elif number < 3:
            began[number] = now
            if number == 0:
                message.retry(level=1, reason="later")
            elif number == 1:
                message.retry(delay=0.3)
            else:
                message.retry(delay=0)
        if len(again) == 3:
            consumer.stop()

    consumer.run(handle, workers=2)
    assert again[0][0] >= 1
    assert again[1][0] >= 0.3
    assert {each[1:] for each in again.values()} == {("work", 1)}
    with Consumer(store=work.store, topic="%RETRY%g", follow=False) as retries:
        found = {each.body: each.properties for each in retries}
    assert found[b"0"]["RETRY_REASON"] == "later"
    assert {each["RETRY_TOPIC"] for each in found.values()} == {"work"}
