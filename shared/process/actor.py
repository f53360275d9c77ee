"""What all actors have in common: five verbs, two questions, and the loop that asks and calls.

    start()            open memory and sockets; find out how far the predecessor got
    work()             a bounded amount of work; returns how much, 0 when there is nothing to do
    has_more()         whether to call work() again at once after it did something
    idle_ms()          how long to sleep otherwise, unless something comes; a tick at most
    release_deleted()  close files that were deleted meanwhile; called every RELEASE_MS, in `disk`
    drained()          whether everything that will come has been dealt with; asked when stopping
    close()            release

Start and restart are the same: an actor finds its state in shared memory and in files. The loop
beats the heartbeat, drains doorbells, works, and sleeps until a bell, traffic on a socket that the
actor gave to `stage.listen`, or the tick. On SIGTERM it stops once `drained`; it ends at once when
the supervisor dies or has started a successor. Whatever may take long, in start() or work(), calls
`stage.beat()` in between; a call that may wait for the disk is made within `stage.disk`, which
beats meanwhile.

The roster says which actors there are, and this file does not: a test can run its own in the loop.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import zmq

from penstock.shared.clock import Clock, SystemClock
from penstock.shared.config import Config
from penstock.shared.files.bad_sectors import unreadable_pages
from penstock.shared.loops.active import find_socket_functions, has_message, lost_pages
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import row_of
from penstock.shared.memory.run_directory import Run, join_run
from penstock.shared.process.connection_limit import ConnectionLimit
from penstock.shared.process.doorbells import QUIET_TICK_MS, Bus, Ticks
from penstock.shared.process.inflow import WORK_MS, wake_by_work
from penstock.shared.process.inlet import Inlet
from penstock.shared.process.log_line import LoggedLines, log_line
from penstock.shared.process.malloc_tuning import Heaps
from penstock.shared.process.pulse import Pulse

# A deleted file occupies disk space until the last process that has it open closes it.
RELEASE_MS = 1000
# Free heap memory to keep for the next frames; what a flood took beyond that is given back.
MOST_FREE_BYTES = 64 << 20
# A stopping actor leaves after this time even if it has not finished. The supervisor waits longer,
# so the actor still closes what it has open.
DRAIN_TIMEOUT_MS = 8000
# Blocked from before the fork until the actor has installed its handlers, so that none gets lost.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
# Time between two beats of an actor that waits for the disk; during a start, one second is allowed.
PULSE_S = 0.5
# After a new connection ended a sleep, ZeroMQ's thread gets this time to accept it. Until it has,
# each sleep would end at once, and on a busy machine those cycles keep the thread from running.
TAKE_S = 0.0002
_PR_SET_PDEATHSIG = 1
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Closeable(Protocol):
    """Something to close; closing it twice does no harm."""

    def close(self) -> None: ...


class Stage:
    """What an actor is given: configuration, shared memory, doorbells, time.

    `stopping` says that no new work is to be taken; `listening` has the sockets of endpoints, and
    `context` makes the sockets: ZeroMQ's, unless another one is given.
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
        # Joined before anything can be written: a start waits for members, then takes their memory.
        self._membership = join_run(run)
        self.positions = Positions(run.positions, owner=name)
        self.context = context or zmq.Context(io_threads=1)
        self.bus = Bus(self.context, run, name, config)
        # What ends a sleep, beside the tick. The kernel keeps the list, so a sleep is one system
        # call. ZeroMQ's own poller passes the whole list each time, and asks each socket twice.
        # Source -> the events we wait for. A ZeroMQ socket signals everything by being readable.
        self._listened: dict[zmq.Socket[bytes] | int, int] = {}
        self._is_arranged = False
        # the listening sockets: they stay ready until ZeroMQ has accepted the connection
        self._entrances: set[zmq.Socket[bytes] | int] = set()
        self._epoll = select.epoll()
        self._handles: dict[zmq.Socket[bytes] | int, int] = {}
        self._sources: dict[int, zmq.Socket[bytes] | int] = {}
        # Asked before each sleep: a send consumes the descriptor's signal, whatever it was for.
        self._asked: list[zmq.Socket[bytes]] = []
        # whether this cycle neither read a socket nor sent anything: then they need not be asked
        self.left_sockets_alone = False
        # what had traffic at the end of the last sleep; None where that is not known
        self.ready: list[zmq.Socket[bytes] | int] | None = None
        self.pause_ms = 0.0  # a sleep ignores traffic for this long, so that more comes together
        self.has_clients = False
        # The actor's sockets that are not ZeroMQ's. The actor closes them itself. Where it is
        # dropped without an end, as a killed process is, `close` below closes them.
        self.plain: set[Closeable] = set()
        self.listen(self.bus.bells)
        # In seconds; at most a quarter of the timeout, so that one late beat proves no stall.
        self.disk = Pulse(self.beat, min(PULSE_S, config.actor_stall_timeout_ms / 4000))

    def beat(self) -> None:
        """Move the heartbeat. Ends the process on the spot when it has a successor: two writers of
        one word would do more harm than whatever is lost by not closing."""
        pages = lost_pages() + unreadable_pages()  # of mappings, and of reads
        if not self.positions.beat(self.clock.monotonic_ms(), self.generation, pages):
            # no exception: the pulse beats in its own thread, and an exception would end only that
            os._exit(3)

    def report(self, line: str) -> None:
        """Print a line on the broker's standard error."""
        offset = self.positions["wrote"]
        log_line(self.clock.now_ms(), self.name, line, generation=self.generation, offset=offset)

    def listen(
        self, source: zmq.Socket[bytes] | int, wanted: bool = True, *, room: bool = False
    ) -> None:
        """Let traffic on a socket or a descriptor end the sleep, or stop doing so. With `room`, the
        sleep also ends when a descriptor can take more output.

        Remove a source that the actor must not read now: it would end each sleep at once.
        """
        events = (_IN if wanted else 0) | (_OUT if room else 0)
        if events == self._listened.get(source, 0):
            return
        self._is_arranged = False
        if source in self._handles:
            # at once: before the next sleep it may be closed, and its descriptor number reused
            self._epoll.unregister(self._handles.pop(source))
        if events:
            self._listened[source] = events
        else:
            del self._listened[source]

    def sleep(self, timeout_ms: int) -> list[zmq.Socket[bytes] | int]:
        """Sleep until a source has traffic or the time is over. Returns the sources with traffic.

        A socket's descriptor says that ZeroMQ has an event, which may be an old one. So the list
        may name a source without traffic, but never omits one with traffic.
        """
        if not self._is_arranged:
            self._arrange()
        for asked in () if self.left_sockets_alone else self._asked:
            if has_message(asked):
                return [asked]
        if self.pause_ms and timeout_ms:
            time.sleep(min(self.pause_ms, timeout_ms) / 1000)
        self.ready = [self._sources[each] for each, _ in self._epoll.poll(timeout_ms / 1000)]
        if self.ready and self._entrances.issuperset(self.ready):
            time.sleep(TAKE_S)
        self.positions.woke_ns = time.monotonic_ns()
        return self.ready

    def heard(self, source: zmq.Socket[bytes] | int) -> bool:
        """Whether a source may have traffic that nobody has looked at since the last sleep. Traffic
        that comes later, or while the actor sends, ends the next sleep."""
        return self.ready is None or source in self.ready

    def _arrange(self) -> None:
        """Have the kernel watch all sources. Done only before a sleep, as nothing else needs it."""
        for source in self._listened.keys() - self._handles.keys():
            handle = source if isinstance(source, int) else int(source.get(zmq.FD))
            self._handles[source] = handle
            self._epoll.register(handle, self._listened[source])
        self._sources = {handle: source for source, handle in self._handles.items()}
        # Bells only receive, and what came after they were drained still shows on their descriptor.
        sockets = [each for each in self._listened if not isinstance(each, int)]
        self._asked = [each for each in sockets if each is not self.bus.bells]
        self._is_arranged = True

    def connection_limit(self, max_connections: int) -> ConnectionLimit:
        """The limit for this actor's endpoints, which all of them share."""
        return ConnectionLimit(self.listening, max_connections, self.report, self.listen)

    def inlet(self, socket: zmq.Socket[bytes], count: str) -> Inlet:
        """The requests of an endpoint. The position `count` counts the connections it closed."""

        def closed(what: str) -> None:
            number = self.positions[count] + 1
            self.positions.publish(count, number)
            if str(number).strip("0") == "1":  # the first, the tenth, the hundredth ...
                self.report(f"closed a connection that {what}; {number} so far")

        self.has_clients = True
        self._entrances.update(self.listening.values())
        return Inlet(socket, self.beat, closed, self.clock.monotonic_ms)

    def close(self) -> None:
        """Release everything. The actor has closed its sockets: ZeroMQ would wait for them here."""
        # no beat may come once the page is unmapped
        self.disk.end()
        self._epoll.close()
        for each in self.plain:
            each.close()
        self.bus.close()
        self.context.term()
        self.positions.close()
        # last: once it is closed, a start may take this run's memory
        os.close(self._membership)


class Actor(Protocol):
    """One stage of the pipeline."""

    def start(self) -> None: ...

    def work(self) -> int: ...

    def has_more(self) -> bool:
        """Whether there may be more to do; asked right after work() that did something.

        An actor that knows there is nothing sleeps at once. What comes meanwhile ends its sleep.
        """
        return True

    def idle_ms(self) -> int:
        """How long it may sleep if it hears nothing. It sleeps TICK_MS at most, or QUIET_TICK_MS
        where nothing has happened for QUIET_AFTER_MS. So an actor that waits for something that no
        bell and no socket announces returns a shorter time."""
        return QUIET_TICK_MS

    def release_deleted(self) -> None:
        """Close files that the cleaner has deleted, unless they are in use."""
        ...

    def drained(self) -> bool: ...

    def close(self) -> None: ...


# The classes of the roster that have been imported, so that forks need no imports.
CLASSES: dict[str, Callable[[Stage], Actor]] = {}


def import_actor(name: str) -> Callable[[Stage], Actor]:
    """The class of an actor, which the roster names as text.

    The supervisor calls it before it forks, so a replacement starts with all modules loaded.
    """
    module, _, kind = row_of(name).code.partition(":")
    found: Callable[[Stage], Actor] = getattr(importlib.import_module(module), kind)
    return found


def import_actors(*names: str) -> None:
    """Import these actors, unless that is done.

    For the supervisor and not its forks, so that replacements need no imports.
    """
    wanted = [name for name in names if name not in CLASSES]
    if not wanted:
        return
    keep_to_one_thread()
    gc.disable()  # what an import makes stays; looking for garbage would be a tenth of its time
    for name in wanted:
        CLASSES[name] = import_actor(name)
    find_socket_functions()
    gc.freeze()  # the children share these pages as long as nobody writes to them
    gc.enable()


@contextmanager
def importing(names: Iterable[str]) -> Iterator[None]:
    """Import those of these actors that an acknowledgement needs, while the store is opened: that
    sometimes waits for the disk.

    No others: the two threads share the interpreter, and on a quick disk the first fork would have
    to wait for them. The thread ends before anything is forked.
    """
    wanted = [name for name in names if name not in CLASSES and row_of(name).acknowledges]
    thread = threading.Thread(target=import_actors, args=wanted, name="imports")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def keep_to_one_thread() -> None:
    """Have numpy start no threads, whoever imports it: a process that has them could not fork.
    Nothing here multiplies matrices."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, whatever the reason."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _take_signals(stage: Stage, waker: socket.socket) -> None:
    """Let a signal to stop set `stage.stopping` and end the sleep."""

    def stop(number: int, frame: FrameType | None) -> None:
        stage.stopping = True

    # A handler only notes the signal; the byte in the pipe ends a sleep that is just beginning.
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    # a terminal's signals are for the supervisor, which stops the actors in order
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


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
    LoggedLines(stage.report).install()
    _take_signals(stage, waker)
    stage.listen(woken.fileno())
    stage.beat()
    actor = build(stage)
    actor.start()
    if stage.has_clients:
        wake_by_work(WORK_MS)
    # A start waits until all actors have said this; what takes long in start() comes before it.
    stage.positions.begin_work(generation)
    deadline_ms = 0
    release_ms = stage.clock.monotonic_ms() + RELEASE_MS
    heaps = Heaps(MOST_FREE_BYTES)
    ticks = Ticks(config.actor_stall_timeout_ms)
    ticks.note(stage.clock.monotonic_ms(), True)
    while True:
        # Bells are drained before positions are read: a bell that comes in between stays for the
        # next cycle. If they were drained afterwards, its news would be lost with it.
        stage.beat()
        bells = stage.bus.drain(stage.heard(stage.bus.bells))
        stage.left_sockets_alone = False
        done = actor.work()
        now_ms = stage.clock.monotonic_ms()
        if bells or done:
            ticks.note(now_ms, bool(bells))
        if now_ms >= release_ms:
            # closing a deleted file for the last time frees its blocks, which waits for the disk
            with stage.disk:
                actor.release_deleted()
            heaps.give_back()
            release_ms = stage.clock.monotonic_ms() + RELEASE_MS
        if stage.stopping:
            deadline_ms = deadline_ms or now_ms + DRAIN_TIMEOUT_MS
            if actor.drained() or now_ms > deadline_ms:
                break
        stage.ready = None
        if not done or not actor.has_more():
            wait_ms = max(0, min(ticks.most_ms(now_ms), actor.idle_ms()))
            # while stopping it waits for another actor's position, which may come without a bell
            wait_ms = min(wait_ms, 10) if stage.stopping else wait_ms
            if woken.fileno() in stage.sleep(wait_ms):
                woken.recv(64)
    # no signal may cut short the wait for what is still to be sent
    wake_by_work(0)
    actor.close()
    stage.close()
