"""A broker in one process: its actors take turns as the dice say, and its clock is moved by hand.

What runs is the product: the start, the actors, the cores of the clients, the stop. Only ZeroMQ's
sockets are replaced, by a `Wire`, and time passes when no actor is awake. So a run is a function of
its seed.

A "kill" leaves memory and files as they are; the tap imitates what disks do wrong.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from threading import Condition
from typing import Any

from penstock.chaos.history import Sent, digest
from penstock.chaos.stepped.stepped_wire import Wire
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.sending.encoding import BatchMessage, Encoder
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.frames import SendFuture
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.memory.roster import start_order, stop_order
from penstock.shared.process.actor import Stage, import_actor
from penstock.shared.process.doorbells import TICK_MS
from penstock.shared.recovery.close_store import close_store
from penstock.shared.recovery.open_store import open_store
from penstock.shared.wire import messages

# The cleaner decides by the use of the real disk, which is no function of a seed. The coordinator
# has no part in what is stored, and hears of connections from ZeroMQ itself. Nothing here needs the
# scheduler or transactions. The gateway is off by default, and its sockets are real ones.
_LEFT_OUT = ("cleaner", "coordinator", "scheduler", "transactions", "gateway")
# Downstream first: an actor hears only the bells that are sent after it has started.
ACTORS: dict[str, Any] = {
    name: import_actor(name) for name in reversed(start_order()) if name not in _LEFT_OUT
}
# The probabilities that the dice wake an actor that has heard nothing, and that the clock moves.
_SPURIOUS, _TICKS = 0.02, 0.02
_ADDRESS = bytes([127, 0, 0, 1])
_STOP_STEPS = 10_000


class SteppedBroker:
    """One run of a broker on the store of `config`, from its start on."""

    def __init__(self, config: Config, clock: ManualClock, dice: random.Random) -> None:
        self._dice = dice
        self.clock = clock
        self.config = config
        self.wire = Wire(dice)
        self.store = open_store(config, clock)
        self._stages: dict[str, Stage] = {}
        self._actors: dict[str, Any] = {}
        try:
            for name in ACTORS:
                self._start(name)
        except BaseException:
            self.kill()
            raise
        self.endpoints = self.store.run.endpoints

    def _start(self, name: str) -> None:
        context = self.wire.context(name)
        stage = Stage(name, self.config, self.store.run, self.clock, context=context)
        self._stages[name] = stage
        self._actors[name] = ACTORS[name](stage)
        self._actors[name].start()

    def step(self) -> None:
        """Let one actor take a turn; when none is awake, the tick wakes all."""
        wire, dice = self.wire, self._dice
        if dice.random() < 0.3:
            wire.deliver()
        awake = sorted(wire.awake & self._actors.keys())
        if not awake or dice.random() < _TICKS:
            self.clock.advance(TICK_MS)
            wire.awake.update(self._actors)
            return
        name = dice.choice(awake if dice.random() > _SPURIOUS else sorted(self._actors))
        self.turn(name)

    def turn(self, name: str) -> None:
        """Run one cycle of an actor."""
        stage = self._stages[name]
        stage.beat()
        stage.bus.drain()
        if not self._actors[name].work():
            self.wire.awake.discard(name)

    def restart(self, name: str) -> None:
        """Let an actor die and start its successor."""
        self._leave(name)
        self._start(name)
        self.wire.awake.add(name)

    def stop(self) -> bool:
        """Stop in good order; return whether the store is clean."""
        for name in (each for each in stop_order() if each in ACTORS):
            self._stages[name].stopping = True
            for _ in range(_STOP_STEPS):
                self.turn(name)
                if self._actors[name].drained():
                    break
                self.step()
            else:
                raise StoreUnavailable("an actor did not come to an end", name)
            actor, stage = self._actors.pop(name), self._stages.pop(name)
            actor.close()
            stage.close()
        clean = close_store(self.store, self.config)
        self._close_store()
        return clean

    def kill(self) -> None:
        """End all processes; memory and files stay."""
        for name in list(self._stages):
            self._leave(name)
        self._close_store()

    def _leave(self, name: str) -> None:
        """Drop an actor's memory without its `close`. What the kernel would take with a process
        goes too: descriptors, and the thread of its pulse."""
        self._actors.pop(name, None)
        self._stages.pop(name).close()

    def _close_store(self) -> None:
        self.store.listeners.close()
        self.store.positions.close()
        os.close(self.store.lock)


class SteppedProducer:
    """Sends numbered messages, and remembers which were acknowledged."""

    def __init__(self, name: str, topic: str, queues: int, ack: str) -> None:
        self.name = name
        self.acked: list[Sent] = []
        self.failed: list[PenstockError] = []
        self._topic, self._queues, self._ack = topic, queues, ack
        self._number = self._begun = 0
        self._waiting: list[tuple[SendFuture, int, bytes]] = []
        self._begin()

    def _begin(self) -> None:
        self._settled = Condition()
        # keys as the seed has them, and different ones for each beginning
        self._begun += 1
        origin = KeyOrigin(f"{self.name.encode().hex()[:16]:0<16}{self._begun:08X}", 0)
        packer = Packer(Encoder(_ADDRESS, origin), FrameRing(False))
        self._core = ProducerCore("stepped", self._settled, 60_000, self._ack, packer)

    def forget(self) -> None:
        """The broker is gone; give up every message that has no answer."""
        self._waiting.clear()
        self._begin()

    def outlive(self, now_ms: int) -> None:
        """The broker is gone and another one comes: send it every message that has no answer."""
        self._core.not_connected(now_ms)

    def send(self, size: int, now_ms: int) -> None:
        """Send one more message, with `size` bytes after its number."""
        queue, number = self._number % self._queues, self._number
        self._number += 1
        body = f"{self.name}/{queue}/{number}/".encode() + bytes(size)
        keys = f"key{number % 3}"
        message = BatchMessage(body, keys=keys)
        future = self._core.send(self._topic, message, None, queue, "", True, now_ms)
        self._waiting.append((future, queue, body))

    def step(self, broker: SteppedBroker, stamp: int) -> None:
        """Take answers and send what is due; new acknowledgements get this stamp."""
        now_ms, wire = broker.clock.monotonic_ms(), broker.wire
        answers = wire.answers.get(self.name.encode())
        while answers:
            self._core.received(answers.popleft(), now_ms)
        with self._settled:
            self._note(stamp)
            self._core.tick(now_ms)
            for parts in self._core.outgoing(now_ms):
                sent = tuple(bytes(part) for part in parts)
                wire.ask(broker.endpoints.produce, self.name.encode(), sent)

    def _note(self, stamp: int) -> None:
        for future, queue, body in [each for each in self._waiting if each[0].done()]:
            error = future.exception(0)
            if isinstance(error, PenstockError):
                self.failed.append(error)
            elif error is None:
                offset = future.result(0).queue_offset
                self.acked.append(Sent(queue, offset, digest(body), stamp))
        self._waiting = [each for each in self._waiting if not each[0].done()]

    @property
    def waits(self) -> bool:
        return bool(self._waiting)


class SteppedConsumer:
    """Follows the topic, and remembers what it saw."""

    def __init__(self, topic: str) -> None:
        self.seen: list[Sent] = []
        self._topic = topic
        self._begin()

    def _begin(self) -> None:
        self._core = ConsumerCore("stepped", self._topic, 0, timeout_ms=60_000)

    def forget(self) -> None:
        """The broker is gone; read from the beginning at the next one."""
        self._begin()

    def step(self, broker: SteppedBroker, stamp: int) -> None:
        now_ms, wire = broker.clock.monotonic_ms(), broker.wire
        answers = wire.answers.get(b"consumer")
        while answers:
            self._core.received(answers.popleft(), now_ms)
        with suppress(PenstockError):  # the topic may not be there yet
            for message in self._core.take():
                place = message.queue_id, message.queue_offset
                self.seen.append(Sent(*place, digest(message.body), stamp))
        for parts in self._core.outgoing(now_ms):
            wire.ask(broker.endpoints.consume, b"consumer", parts)


def create_topic(broker: SteppedBroker, topic: str, queues: int) -> None:
    """Have the writer make the topic; return once it has."""
    request = messages.encode(messages.CreateTopic(1, topic, queues))
    broker.wire.ask(broker.endpoints.produce, b"admin", (request,))
    while not broker.wire.answers.get(b"admin"):
        broker.step()
