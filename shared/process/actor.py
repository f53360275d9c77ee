"""What all actors have in common: five verbs and the loop that calls them.

    start()    open memory and sockets; find out how far the predecessor got
    work()     a bounded amount of work; returns how much, 0 when there is nothing to do
    drained()  whether everything that will come has been dealt with; asked when stopping
    let_go()   close files that were deleted meanwhile; asked every LET_GO_MS
    close()    release

Start and restart are the same: an actor finds its state in shared memory and in files. The loop
beats the heartbeat, drains doorbells, works, and sleeps until a bell, a request or the tick. It
stops on SIGTERM once `drained`, at once when the supervisor dies or has started a successor.
Whatever may take long, in start() or work(), calls `stage.beat()` in between; a call that may wait
for the disk is made within `stage.disk`, which beats meanwhile.

This file knows no actor.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Protocol

import zmq

from penstock.shared.clock import Clock, SystemClock
from penstock.shared.config import Config
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import row_of
from penstock.shared.memory.run_directory import Run, join_run
from penstock.shared.process.connection_limit import ConnectionLimit
from penstock.shared.process.doorbells import Bus
from penstock.shared.process.inlet import MOST_PARTS, Inlet
from penstock.shared.process.log_line import log_line
from penstock.shared.process.malloc_tuning import Heaps
from penstock.shared.process.pulse import Pulse

# A lost doorbell costs at most this.
TICK_MS = 100
# A deleted file takes room on the disk until the last who has it open closes it.
LET_GO_MS = 1000
# Heaps may keep as much for the next frames; behind a flood they keep no more.
MOST_FREE_BYTES = 64 << 20
# What a stopping actor may take to finish before it leaves anyway.
DRAIN_TIMEOUT_MS = 8000
# Blocked from before the fork until the actor has its handlers, so that none gets lost.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
# Between two beats of an actor that waits for the disk; a start looks for one each second.
PULSE_S = 0.5
_PR_SET_PDEATHSIG = 1


class Stage:
    """What an actor is given: configuration, shared memory, doorbells, time.

    `stopping` says that no new work is to be taken; `listening` has the sockets of endpoints, and
    `context` makes sockets, where they are not to be ZeroMQ's.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        run: Run,
        clock: Clock,
        generation: int = 0,
        listening: Mapping[str, int] | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.run = run
        self.clock = clock
        self.generation = generation
        self.listening = listening or {}
        self.stopping = False
        self._membership = join_run(run)
        self.positions = Positions(run.positions, owner=name)
        self.context = context or zmq.Context(io_threads=1)
        self.bus = Bus(self.context, run, name)
        self.disk = Pulse(self.beat, min(PULSE_S, config.actor_stall_timeout_ms / 4000))

    def beat(self) -> None:
        """Say that this actor lives. Ends it on the spot when it has a successor."""
        if not self.positions.beat(self.clock.monotonic_ms(), self.generation):
            os._exit(3)

    def say(self, line: str) -> None:
        """Tell whoever watches the broker's standard error."""
        log_line(self.clock.now_ms(), self.name, line)

    def door(self, max_connections: int) -> ConnectionLimit:
        """The door of this actor's endpoints."""
        return ConnectionLimit(self.listening, max_connections, self.say)

    def inlet(self, socket: zmq.Socket[bytes], count: str) -> Inlet:
        """The requests of an endpoint. The position `count` says how many connections it closed."""

        def closed() -> None:
            number = self.positions[count] + 1
            self.positions.publish(count, number)
            if str(number).strip("0") == "1":  # the first, the tenth, the hundredth ...
                self.say(
                    f"closed a connection that sent a request of more than {MOST_PARTS} parts; "
                    f"{number} so far"
                )

        return Inlet(socket, self.beat, closed)

    def close(self) -> None:
        self.disk.end()
        self.bus.close()
        self.context.term()
        self.positions.close()
        os.close(self._membership)


class Actor(Protocol):
    """One stage of the pipeline."""

    def start(self) -> None: ...

    def work(self) -> int: ...

    def inputs(self) -> Sequence[zmq.Socket[bytes] | int]:
        """Sockets whose traffic ends the sleep; not those it must not read now."""
        ...

    def idle_ms(self) -> int:
        """How long it may sleep; at most TICK_MS counts."""
        ...

    def release_deleted(self) -> None:
        """Close files that the cleaner has deleted, unless they are in use."""
        ...

    def drained(self) -> bool: ...

    def close(self) -> None: ...


def import_actor(name: str) -> Callable[[Stage], Actor]:
    """The class of an actor, which the roster names as text."""
    module, _, kind = row_of(name).code.partition(":")
    found: Callable[[Stage], Actor] = getattr(importlib.import_module(module), kind)
    return found


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, whatever the reason."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def run_actor(
    build: Callable[[Stage], Actor],
    name: str,
    config: Config,
    run: Run,
    generation: int,
    listening: Mapping[str, int],
) -> None:
    """An actor's life, from the fork to its end. Returns when it has stopped in good order."""
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    stage = Stage(name, config, run, SystemClock(), generation, listening)

    def stop(number: int, frame: FrameType | None) -> None:
        stage.stopping = True

    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    # a terminal's signals are for the supervisor, which stops the actors in order
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    stage.beat()
    actor = build(stage)
    actor.start()
    stage.positions.begin_work(generation)
    deadline_ms = 0
    let_go_ms = stage.clock.monotonic_ms() + LET_GO_MS
    heaps = Heaps(MOST_FREE_BYTES)
    while True:
        stage.beat()
        stage.bus.drain()
        done = actor.work()
        if stage.clock.monotonic_ms() >= let_go_ms:
            actor.release_deleted()
            heaps.give_back()
            let_go_ms = stage.clock.monotonic_ms() + LET_GO_MS
        if stage.stopping:
            now_ms = stage.clock.monotonic_ms()
            deadline_ms = deadline_ms or now_ms + DRAIN_TIMEOUT_MS
            if actor.drained() or now_ms > deadline_ms:
                break
        if not done:
            wait_ms = max(0, min(TICK_MS, actor.idle_ms()))
            wait_ms = min(wait_ms, 10) if stage.stopping else wait_ms
            _sleep(stage.bus, woken, actor.inputs(), wait_ms)
    actor.close()
    stage.close()


def _sleep(
    bus: Bus, woken: socket.socket, inputs: Sequence[zmq.Socket[bytes] | int], timeout_ms: int
) -> None:
    poller = zmq.Poller()
    poller.register(bus.bells, zmq.POLLIN)
    poller.register(woken.fileno(), zmq.POLLIN)
    for each in inputs:
        poller.register(each, zmq.POLLIN)
    if (woken.fileno(), zmq.POLLIN) in poller.poll(timeout_ms):
        woken.recv(64)
