"""Members of one group, simulated: they claim, commit, release and come back, while their
coordinator is killed anywhere. What it has answered must hold.

    a claim            goes on at the last commit that was answered, or at one that was under way
    a queue            has one owner: nobody else gets it before the owner gives it up
    an epoch           belongs to one claim only
    a block            is stored where its queue's claim goes on, even after commits without blocks
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import zmq

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import Armed
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import OffsetsMoved
from penstock.shared.memory.run_directory import Run
from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.process.find_broker import find_running
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import Refused, encode
from penstock.shared.wire.sockets import dial

GROUP, TOPIC, QUEUES, MEMBERS = "chaos", "orders", 4, 3
SESSION_MS = 60_000
REPEAT_MS = 300
SOON: dict[str, object] = {"flush_consumer_offset_interval_ms": 200}


def die_in_groups(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill the coordinator at every point."""
    broker = Broker(place, SMALL | SOON, environment=armed.environment())
    broker.start()
    producer = BlockProducer(broker.produce)
    producer.create_topic(TOPIC, QUEUES)
    load = GroupLoad(find_running(broker.store), dice, producer)
    deaths = 0
    try:

        def moved() -> None:
            nonlocal deaths
            arena.moved()
            for _ in range(20):
                load.step()
                if (fired := len(armed.fired())) != deaths:
                    deaths = fired
                    load.check_known()  # before the next steps hide a loss

        wrong = armed.await_all(broker, moved)
        load.check_known()
        return wrong + load.wrong + load.unanswered()
    finally:
        load.close()
        producer.close()
        broker.stop()


class GroupLoad:
    """The members, and what they were told."""

    def __init__(self, run: Run, dice: random.Random, producer: BlockProducer) -> None:
        self._dice, self._producer = dice, producer
        producer.route(OFFSETS_TOPIC)
        self._context: zmq.Context[Any] = zmq.Context()
        self._endpoint = run.endpoints.group_ipc
        self.wrong: list[str] = []
        self._members = [
            _Member(f"m{number}", dial(self._context, self._endpoint)) for number in range(MEMBERS)
        ]
        # for each queue: the answered offset, others that may be true, and the owner
        self._answered = dict.fromkeys(range(QUEUES), 0)
        self._possible: dict[int, set[int]] = {queue: {0} for queue in range(QUEUES)}
        self._owner: dict[int, str] = {}
        self._epochs: dict[int, tuple[str, int]] = {}
        # the queues' offsets by the log, once blocks have moved them
        self._values = dict.fromkeys(range(QUEUES), NONE)

    def step(self) -> None:
        """One request of one member, until it is answered."""
        member = self._dice.choice(self._members)
        what = self._dice.choice(("claim", "block", "commit", "commit", "release", "join"))
        if not member.joined or what == "join":
            self._join(member)
        elif what == "claim":
            self._claim(member)
        elif member.claims and what == "block":
            self._store_block(member)
        elif member.claims:
            self._commit(member, is_release=what == "release")

    def _join(self, member: _Member) -> None:
        held = tuple(words.HeldClaim(TOPIC, *claim) for claim in member.claims.items())
        wanted = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
        fields = (GROUP, member.name, wanted, SESSION_MS)
        answer = member.ask(lambda number: words.Join(number, *fields, held=held))
        member.joined = isinstance(answer, words.Joined)
        self._lose(member, answer.lost if isinstance(answer, words.Joined) else ())

    def _claim(self, member: _Member) -> None:
        queue = self._dice.randrange(QUEUES)
        fields = (GROUP, member.name, TOPIC, (queue,))
        answer = member.ask(lambda number: words.Claim(number, *fields))
        if not isinstance(answer, words.Claimed):
            member.joined = False
            return
        for given in answer.queues:
            owner = self._owner.get(queue, member.name)
            if owner != member.name:
                self.wrong.append(f"queue {queue} is {owner}'s, and was given to {member.name}")
            if given.offset not in self._possible[queue]:
                self.wrong.append(
                    f"queue {queue} goes on at {given.offset}, and is at {self._possible[queue]}"
                )
            if self._epochs.setdefault(given.epoch, (member.name, queue)) != (member.name, queue):
                self.wrong.append(f"epoch {given.epoch} was given twice")
            if self._values[queue] != NONE and queue not in member.claims:
                self._values[queue] = given.offset
            self._owner[queue] = member.name
            member.claims[queue] = given.epoch

    def _store_block(self, member: _Member) -> None:
        """Store a block without outputs."""
        queue = self._dice.choice(sorted(member.claims))
        offset = max(self._possible[queue]) + 1
        moves = {TOPIC: {queue: (self._values[queue], offset)}}
        try:
            self._producer.send_block(self._producer.block(), GROUP, moves).result()
        except OffsetsMoved as error:
            self.wrong.append(f"a block is refused: {moves[TOPIC]} is {error.value}")
            return
        self._values[queue] = self._answered[queue] = offset
        self._possible[queue] = {offset}

    def _commit(self, member: _Member, *, is_release: bool) -> None:
        queue, epoch = self._dice.choice(sorted(member.claims.items()))
        offset = max(self._possible[queue]) + 1
        self._possible[queue].add(offset)
        commits = (words.QueueCommit(TOPIC, queue, offset, epoch),)
        fields = (GROUP, member.name, commits)
        if is_release:
            answer = member.ask(lambda number: words.Release(number, *fields))
        else:
            answer = member.ask(lambda number: words.Commit(number, *fields))
        if isinstance(answer, Refused):
            member.joined = False
            return
        self._lose(member, answer.lost if isinstance(answer, words.Committed) else ())
        if queue in member.claims:
            self._answered[queue] = offset
            self._possible[queue] = {offset}
        if isinstance(answer, words.Released):
            del member.claims[queue]
            del self._owner[queue]

    def _lose(self, member: _Member, lost: tuple[words.HeldClaim, ...]) -> None:
        for each in lost:
            self.wrong.append(f"{member.name} has lost queue {each.queue_id}, which nobody took")
            member.claims.pop(each.queue_id, None)

    def check_known(self) -> None:
        """Check that what the coordinator knows of members, and of the group, is what was
        answered."""
        for member in self._members:
            self._join(member)
        member = self._members[0]
        self._claim(member)  # the coordinator answers when it has followed all blocks
        answer = member.ask(lambda number: words.DescribeGroup(number, GROUP))
        for queue in answer.queues if isinstance(answer, words.GroupInfo) else ():
            known = self._possible[queue.queue_id] | {-1}
            if queue.topic == TOPIC and queue.offset not in known:
                self.wrong.append(f"queue {queue.queue_id} is at {queue.offset}, and not {known}")

    def unanswered(self) -> list[str]:
        """The complaint if no commit was answered, so that the load has shown nothing."""
        return [] if any(self._answered.values()) else ["no commit was answered"]

    def close(self) -> None:
        for member in self._members:
            member.socket.close()
        self._context.term()


class _Member:
    def __init__(self, name: str, socket: Any) -> None:
        self.name, self.socket = name, socket
        self.joined = False
        self.claims: dict[int, int] = {}
        self._number = 0

    def ask(self, make: Any) -> Any:
        """The answer; the request is repeated until it comes, as the coordinator may die."""
        self._number += 1
        header = encode(make(self._number))
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                self.socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.01)
                continue
            while self.socket.poll(REPEAT_MS):
                answer = words.decode_group_answer(self.socket.recv_multipart()[0])
                if answer.request == self._number:
                    return answer
        raise TimeoutError(f"{self.name} was not answered: {make(self._number)}")
