"""What all actors have in common: five verbs, one question, and the loop that asks and calls.

    start()            open memory and sockets; find out how far the predecessor got
    work()             a bounded amount of work; returns how much, 0 when there is nothing to do
    idle_ms()          how long to sleep after that; a tick, unless the actor knows better
    release_deleted()  close files that were deleted meanwhile; called every RELEASE_MS
    drained()          whether everything that will come has been dealt with; asked when stopping
    close()            release

Start and restart are the same: an actor finds its state in shared memory and in files. The loop
beats the heartbeat, drains doorbells, works, and sleeps until a bell, traffic on a socket that the
actor gave to `stage.listen`, or the tick. It stops on SIGTERM once `drained`, at once when the
supervisor dies or has started a successor. Whatever may take long, in start() or work(), calls
`stage.beat()` in between; a call that may wait for the disk is made within `stage.disk`, which
beats meanwhile.

Which actors there are is not known here: their classes come as arguments or from the roster, so
that the loop can be run with an actor of a test's own.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

import zmq

from penstock.shared.clock import Clock, SystemClock
from penstock.shared.config import Config
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import row_of
from penstock.shared.memory.run_directory import Run, join_run
from penstock.shared.process.connection_limit import ConnectionLimit
from penstock.shared.process.doorbells import Bus
from penstock.shared.process.inlet import Inlet
from penstock.shared.process.log_line import log_line
from penstock.shared.process.malloc_tuning import Heaps
from penstock.shared.process.pulse import Pulse

# A lost doorbell costs at most this.
TICK_MS = 100
# A deleted file takes room on the disk until the last who has it open closes it.
RELEASE_MS = 1000
# Heaps may keep this much for the next frames; what a flood took beyond that is given back.
MOST_FREE_BYTES = 64 << 20
# What a stopping actor may take to finish before it leaves anyway: less than the supervisor waits,
# so that it still closes what it has open.
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
        # Before anything can be written: a start waits for members, and then takes their memory.
        self._membership = join_run(run)
        self.positions = Positions(run.positions, owner=name)
        self.context = context or zmq.Context(io_threads=1)
        self.bus = Bus(self.context, run, name, config)
        # what ends a sleep, beside the tick
        self._poller = zmq.Poller()
        self.listen(self.bus.bells)
        # In seconds; at most a quarter of the timeout, so that one late beat proves nothing.
        self.disk = Pulse(self.beat, min(PULSE_S, config.actor_stall_timeout_ms / 4000))

    def beat(self) -> None:
        """Move the heartbeat. Ends the process on the spot when it has a successor: two writers of
        one word would be worse than anything that is lost by not closing."""
        if not self.positions.beat(self.clock.monotonic_ms(), self.generation):
            # no exception: the pulse beats in a thread of its own, which alone would end by it
            os._exit(3)

    def report(self, line: str) -> None:
        """Print a line on the broker's standard error."""
        log_line(self.clock.now_ms(), self.name, line)

    def listen(self, source: zmq.Socket[bytes] | int, wanted: bool = True) -> None:
        """Have traffic on a socket or a descriptor end the sleep, or no longer.

        A source that the actor must not read now has to go: it would end each sleep at once.
        """
        if wanted and source not in self._poller:
            self._poller.register(source, zmq.POLLIN)
        elif not wanted and source in self._poller:
            self._poller.unregister(source)

    def sleep(self, timeout_ms: int) -> list[tuple[Any, int]]:
        """Until there is traffic on a source, or the time is over; the sources with traffic."""
        return self._poller.poll(timeout_ms)

    def connection_limit(self, max_connections: int) -> ConnectionLimit:
        """The limit for this actor's endpoints, which all of them share."""
        return ConnectionLimit(self.listening, max_connections, self.report, self.listen)

    def inlet(self, socket: zmq.Socket[bytes], count: str) -> Inlet:
        """The requests of an endpoint. The position `count` says how many connections it closed."""

        def closed(what: str) -> None:
            number = self.positions[count] + 1
            self.positions.publish(count, number)
            if str(number).strip("0") == "1":  # the first, the tenth, the hundredth ...
                self.report(f"closed a connection that {what}; {number} so far")

        return Inlet(socket, self.beat, closed, self.clock.monotonic_ms)

    def close(self) -> None:
        """Release all of it. The actor has closed its sockets: ZeroMQ would wait for them here."""
        # no beat may come once the page is unmapped
        self.disk.end()
        self.bus.close()
        self.context.term()
        self.positions.close()
        # last, because from here on a start may take this run's memory
        os.close(self._membership)


class Actor(Protocol):
    """One stage of the pipeline."""

    def start(self) -> None: ...

    def work(self) -> int: ...

    def idle_ms(self) -> int:
        """How long it may sleep; at most TICK_MS counts."""
        return TICK_MS

    def release_deleted(self) -> None:
        """Close files that the cleaner has deleted, unless they are in use."""
        ...

    def drained(self) -> bool: ...

    def close(self) -> None: ...


def import_actor(name: str) -> Callable[[Stage], Actor]:
    """The class of an actor, which the roster names as text.

    For the supervisor, before it forks: so a replacement starts with all modules loaded.
    """
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

    # A handler only notes the signal; the byte in the pipe ends a sleep that has begun just before.
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    # a terminal's signals are for the supervisor, which stops the actors in order
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    stage.listen(woken.fileno())
    stage.beat()
    actor = build(stage)
    actor.start()
    # A start is ready when all actors have said so; what takes long in start() comes before it.
    stage.positions.begin_work(generation)
    deadline_ms = 0
    release_ms = stage.clock.monotonic_ms() + RELEASE_MS
    heaps = Heaps(MOST_FREE_BYTES)
    while True:
        # Bells are taken before positions are read: one that comes in between is kept for the next
        # cycle, while one that was taken afterwards would be lost with what it stands for.
        stage.beat()
        stage.bus.drain()
        done = actor.work()
        if stage.clock.monotonic_ms() >= release_ms:
            actor.release_deleted()
            heaps.give_back()
            release_ms = stage.clock.monotonic_ms() + RELEASE_MS
        if stage.stopping:
            now_ms = stage.clock.monotonic_ms()
            deadline_ms = deadline_ms or now_ms + DRAIN_TIMEOUT_MS
            if actor.drained() or now_ms > deadline_ms:
                break
        if not done:
            wait_ms = max(0, min(TICK_MS, actor.idle_ms()))
            # what it waits for while stopping, another actor's position, may come without a bell
            wait_ms = min(wait_ms, 10) if stage.stopping else wait_ms
            if (woken.fileno(), zmq.POLLIN) in stage.sleep(wait_ms):
                woken.recv(64)
    actor.close()
    stage.close()
