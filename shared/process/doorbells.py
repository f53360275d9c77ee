"""Doorbells between actors, and how long an actor sleeps that hears none. Client sockets are set up
elsewhere.

A doorbell carries its sender's name and nothing else: it says "look at the positions page". A bell
that is lost, late or repeated costs at most a timer tick, and bells have no order. Each actor binds
one PULL socket and has a PUSH socket for each actor that its row in the roster lets it notify.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from penstock.shared.faults import crash_point
from penstock.shared.loops.active import has_message
from penstock.shared.memory.roster import ACTORS, row_of, start_order
from penstock.shared.wire.sockets import owner_only

if TYPE_CHECKING:
    from penstock.shared.clock import Clock
    from penstock.shared.config import Config
    from penstock.shared.memory.positions import Positions
    from penstock.shared.memory.run_directory import Run

# A lost doorbell costs at most a tick. Ticks are longer where nothing has happened for a while: a
# dozen actors that look ten times a second take a few percent of a processor for nothing. After
# work without a bell (a client's question, or a timer's) they become longer earlier, as nothing
# follows it.
TICK_MS, QUIET_TICK_MS, QUIET_AFTER_MS, QUIET_AFTER_WORK_MS = 100, 1000, 1000, 100
# Time between two bells for an actor that nobody waits for. That actor looks by itself as often,
# as long as it found something recently. Each of these bells costs committer and reput more than
# the dozens of messages that it announces.
LAZY_MS = 20
# This many new bytes are worth a bell before LAZY_MS is over: the pool must not fill up meanwhile.
LAZY_BYTES = 64 << 10
# The same limit where no plain pull has waited for LATELY_MS either, so nobody reads the log's end.
# Consumers with a filter read the queues, and get a bell at once.
LAZIER_BYTES, LATELY_MS = 256 << 10, 1000
# An actor that answers pulls looks this far ahead of the queues (queue/fresh_records.py). This also
# has room for what comes after LAZY_BYTES have woken the actor that builds the queues.
AHEAD_BYTES = 3 * LAZY_BYTES
# At most this many in one go: a stream of bells must not keep an actor from its work.
_BELLS_AT_ONCE = 10_000
# the positions in which an actor says that pulls wait: plain ones, and those with a filter
_PULLS = {
    "reader": ("waiting_pulls", "filtered_pulls"),
    "gateway": ("client_pulls", "client_filtered_pulls"),
}
# the positions of pulls that wait for the log's end, and the actor to wake
_PLAIN = tuple((pulls[0], actor) for actor, pulls in _PULLS.items())


class Ticks:
    """How long an actor may sleep before it looks at what others did."""

    def __init__(self, stall_timeout_ms: int) -> None:
        # a sleep is no stall: several beats fit into the timeout
        self._quiet_ms = max(1, min(QUIET_TICK_MS, stall_timeout_ms // 4))
        self._busy_ms = min(TICK_MS, self._quiet_ms)
        self._quiet_from_ms = 0

    def note(self, now_ms: int, bells: bool) -> None:
        """Note that a bell has come, or that work was done without one. That ZeroMQ has woken up is
        no sign: it does so once a second for each connection that it looks after."""
        quiet_ms = QUIET_AFTER_MS if bells else QUIET_AFTER_WORK_MS
        self._quiet_from_ms = max(self._quiet_from_ms, now_ms + quiet_ms)

    def most_ms(self, now_ms: int) -> int:
        if now_ms < self._quiet_from_ms:
            return self._busy_ms
        # All actors wake at the same instants: the first one wakes the processor for the others.
        return self._quiet_ms - now_ms % self._quiet_ms


class LazyLooks:
    """How soon an actor looks by itself if it gets only lazy bells for new work."""

    def __init__(self) -> None:
        self._worked_ms = -3 * LAZY_MS

    def note(self, now_ms: int) -> None:
        """Note that there was something to do."""
        self._worked_ms = now_ms

    def idle_ms(self, now_ms: int, otherwise_ms: int) -> int:
        """How long to sleep."""
        is_near = now_ms - self._worked_ms < 3 * LAZY_MS
        return min(otherwise_ms, LAZY_MS) if is_near else otherwise_ms


class Bus:
    """One actor's doorbells."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        run: Run,
        actor: str,
        config: Config | None = None,
    ) -> None:
        """The configuration may leave out an actor; those that notify it need not know."""
        self._actor, self._name = actor, actor.encode()
        self.bells = context.socket(zmq.PULL)
        # Closing never waits to deliver a bell: what it announces is in the positions page.
        self.bells.linger = 0
        with owner_only():
            self.bells.bind(run.socket(f"bell-{actor}"))
        # target of a lazy bell -> when it was last notified, and the log offset at that time
        self._lazily: dict[str, tuple[int, int]] = {}
        # (when, to whom) of bells that a fault holds back; empty in a broker without faults
        self._late: list[tuple[float, str]] = []
        self._push: dict[str, zmq.Socket[bytes]] = {}
        wanted = start_order(config)
        self._absent = {*ACTORS} - {*wanted}
        for target in {*row_of(actor).notifies} & {*wanted}:
            socket = context.socket(zmq.PUSH)
            socket.linger = 0
            # the other side may be down for a moment; look for it again soon
            socket.reconnect_ivl = 5
            socket.connect(run.socket(f"bell-{target}"))
            self._push[target] = socket

    def notify(self, target: str) -> None:
        """Wake an actor. If its queue of bells is full the bell is dropped: a thousand are waiting.

        Call it after the position has been stored. Raises KeyError for an actor that the roster
        does not let this one notify.
        """
        if target in self._absent:
            return
        pair = f"{self._actor}-{target}"
        if crash_point("bell.lost", pair):
            return
        if late_ms := crash_point("bell.late", pair):
            self._late.append((time.monotonic() + late_ms / 1000, target))
            return
        self._send(target)
        if crash_point("bell.repeated", pair):
            self._send(target)

    def notify_lazily(self, target: str, end: int, now_ms: int, worth_bytes: int) -> None:
        """Wake an actor that nobody waits for: the log has grown to `end`.

        At most once in LAZY_MS, unless the log has grown by `worth_bytes` since.
        """
        before_ms, before = self._lazily.get(target, (-LAZY_MS, end))
        if now_ms - before_ms >= LAZY_MS or end - before >= worth_bytes:
            self._lazily[target] = now_ms, end
            self.notify(target)

    def _send(self, target: str) -> None:
        try:
            self._push[target].send(self._name, zmq.NOBLOCK)
        except zmq.Again:
            return  # an upstream actor never waits for a downstream one

    def _notify_late(self) -> None:
        """Send the delayed bells that are due; each tick looks for them."""
        now = time.monotonic()
        due = [target for at, target in self._late if at <= now]
        self._late = [(at, target) for at, target in self._late if at > now]
        for target in due:
            self._send(target)

    def drain(self, heard: bool = True) -> int:
        """Take all waiting bells; returns the number. Call it before looking at a position.

        Unless `heard`, there is none: their descriptor stays ready until they are taken.
        """
        if self._late:
            self._notify_late()
        for count in range(_BELLS_AT_ONCE if heard else 0):
            # most of the time there is none, and an exception costs more than the question
            if not has_message(self.bells):
                return count
            self.bells.recv(zmq.NOBLOCK)
        return _BELLS_AT_ONCE if heard else 0

    def close(self) -> None:
        """Close all sockets, before the context ends: its end waits for each that is open."""
        self.bells.close()
        for socket in self._push.values():
            socket.close()


def pulls_wait(positions: Positions, actor: str) -> bool:
    """Whether pulls wait at an actor. The actor says so before its last look at the queues, so if
    this is false and it gets no bell, it has missed nothing."""
    return any(positions[name] for name in _PULLS.get(actor, ()))


def queues_awaited(positions: Positions) -> bool:
    """Whether a pull waits for the queues. Plain pulls do not: they are answered from the log."""
    return bool(positions["filtered_pulls"] or positions["client_filtered_pulls"])


class LogBells:
    """Bells for what was stored in the log: at once where a pull waits, lazily elsewhere."""

    def __init__(self, bus: Bus, positions: Positions, clock: Clock) -> None:
        self._bus, self._positions, self._clock = bus, positions, clock
        # None at first, so a start counts as a pull that waited: consumers may come back after it
        self._waited_ms: int | None = None
        self._end = 0
        # whether the last call stored as much as at full rate, so that more will come soon
        self.is_flood = False

    def readable(self, size: int, told: str = "") -> None:
        """These bytes are readable from now on: wake reader and gateway where plain pulls wait,
        except `told`, which gets the news with an answer at the same time.

        For a full frame they are woken once the queues have it: they look no further ahead.
        """
        if size < LAZY_BYTES:
            for pulls, actor in _PLAIN:
                if actor != told and self._positions[pulls]:
                    self._bus.notify(actor)

    def stored(self, target: str, end: int, *, at_once: bool = False) -> None:
        """Wake the actor that builds the queues; lazily, where nobody waits for the queues."""
        self.is_flood, self._end = end - self._end >= LAZY_BYTES, end
        now_ms = self._clock.monotonic_ms()
        is_awaited = queues_awaited(self._positions)
        if self._waited_ms is None or any(self._positions[pulls] for pulls, _ in _PLAIN):
            self._waited_ms = now_ms
        if at_once or is_awaited:
            self._bus.notify(target)
        else:
            is_read = now_ms - self._waited_ms < LATELY_MS
            worth_bytes = LAZY_BYTES if is_read else LAZIER_BYTES
            self._bus.notify_lazily(target, end, now_ms, worth_bytes)
