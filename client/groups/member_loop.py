"""A group member's sockets and the thread that serves them, whatever its program is doing.

So a program with a slow handler, or one that does not poll, stays a member: the thread sends
heartbeats, fetches ahead, commits, and sends back. Handlers run in other threads, which take from
the core and report to it under `lock`; `changed` tells them that there may be something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import zmq

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.connecting.waker import Waker
from penstock.client.core import log
from penstock.client.core.aim import Aim
from penstock.client.core.groups.assigned_core import AssignedCore
from penstock.client.core.groups.member_core import MemberCore
from penstock.client.core.groups.process_queue import ProcessQueue
from penstock.client.sending import leaving
from penstock.shared.clock import Clock
from penstock.shared.errors import ConnectError, PenstockError
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# How long a closing member waits until the coordinator confirms that it has left.
LEAVE_MS = 2000
# A shorter frame is copied: keeping ZeroMQ's frame alive would cost more memory than the copy.
_LONG_FRAME_BYTES = 64 << 10
# for broadcasting: offsets, the broker's name, and whether they must be written now
Save = Callable[[dict[tuple[str, int], int], str, bool], None]
Parts = Sequence[bytes | memoryview]


class Line:
    """One socket of a member, and where its broker is."""

    def __init__(
        self, context: Any, address: BrokerAddress, aim: Aim, longest: int, poller: zmq.Poller
    ) -> None:
        # a copy, because an address shared by several lines would take only one to a new run
        self._address, self._aim = copy(address), aim
        address.give(aim)
        self.socket: zmq.Socket[bytes] = dial(context, address.endpoint, longest)
        self.lost = LostConnection(self.socket)
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.lost.events, zmq.POLLIN)

    def look_after(
        self, now_ms: int, ready: Container[Any], given_up: Callable[[int], None] | None = None
    ) -> bool:
        """Connect again if needed. Returns whether a connection was lost since the last call."""
        doubtful = self.lost.is_doubtful or self._aim.away
        # before dialing again, which consumes events without reporting them
        is_lost = (doubtful or self.lost.events in ready) and self.lost.take(now_ms)
        if self._aim.away:
            self._address.follow(self.socket, self._aim, now_ms)
        doubtful = doubtful or self.lost.is_doubtful
        is_given_up = doubtful and self.lost.dial_again(self._address.endpoint, now_ms)
        if is_given_up and self._aim.away and given_up is not None:
            given_up(int(self.socket.maxmsgsize))
        return is_lost

    def received(self, ready: Container[Any]) -> Iterator[list[bytes | memoryview]]:
        """The messages that are there: short frames are copied, long ones are views."""
        while self.socket in ready:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield [part.buffer if len(part) >= _LONG_FRAME_BYTES else part.bytes for part in frames]

    def send(self, out: Sequence[tuple[bytes, ...]]) -> bool:
        """Send all of it. False if there was no connection for the rest."""
        for parts in out:
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def close(self) -> None:
        self.lost.close()
        self.socket.close(linger=100)


class MemberLoop:
    """Owns the sockets and the thread of one member. The core may be used only under `lock`."""

    def __init__(
        self,
        core: MemberCore,
        addresses: dict[str, BrokerAddress],
        longest: int,
        clock: Clock,
        save: Save | None = None,
    ) -> None:
        """`addresses` is keyed by what an endpoint serves; `save` keeps offsets of broadcasting."""
        self.core, self._clock, self._save = core, clock, save
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # waits for messages: one waiting thread is woken, and wakes the next while there is more
        self.work = threading.Condition(self.lock)
        self.listeners: set[Callable[[], None]] = set()
        self.asleep = self.closing = self.ended = self.is_forked = False
        # set by the consumer's finalizer, which must not wait
        self.abandoned = False
        self.error: BaseException | None = None
        # how many times `keep` was called, and how many of these calls the file covers
        self._keeps_asked = self._keeps_done = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._waker.handle, zmq.POLLIN)

        def line(serves: str, aim: Aim, longest: int) -> Line:
            return Line(self._context, addresses[serves], aim, longest, self._poller)

        self._group = line("members", core.membership.aim, PRODUCE_ANSWER_BYTES)
        self._produce = line("producers", core.send_back.aim, PRODUCE_ANSWER_BYTES)
        self._readers = [
            (reader, line("consumers", reader.aim, longest)) for reader in core.readers.values()
        ]
        # The sockets that the last poll found ready. No others are read: each call into ZeroMQ
        # releases the interpreter, and a handler that computes returns it only after 5 ms.
        self._ready: set[Any] = set()
        self._thread = threading.Thread(target=self._run, name="penstock-member", daemon=True)

    def __repr__(self) -> str:
        options = self.core.options
        return f"<member {options.client_id} of group {options.group}>"

    def start(self) -> None:
        leaving.enter(self)
        self._thread.start()

    def may_go_on(self, queue: ProcessQueue) -> bool:
        """Whether work on handed-out messages of a queue may begin, as it is still the member's.

        Needs no lock. A process that was frozen learns by its clock that it has lost the queue,
        before it hears of it.
        """
        return not queue.dropped and not self.core.is_suspended(self._clock.monotonic_ms())

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        return self._clock.now_ms()

    def wake(self) -> None:
        """Have the thread take a turn now; `lock` must be held."""
        if self.asleep and not self.ended:
            self.asleep = False
            self._waker.wake()

    def tell(self) -> None:
        """Tell all threads that wait for the core that it has changed; `lock` must be held."""
        self.changed.notify_all()
        self.work.notify_all()
        for each in list(self.listeners):
            each()

    def offer(self, now_ms: int) -> None:
        """Wake one thread that waits for messages, if there are any; `lock` must be held."""
        if self.core.has_work(now_ms):
            self.work.notify()
            for each in list(self.listeners):
                each()

    def keep(self) -> Callable[[], bool]:
        """Have the offsets file of a broadcasting member written now. The result says whether it
        was, and raises the error if that failed. `lock` must be held."""
        self._keeps_asked += 1
        asked = self._keeps_asked
        self.wake()

        def kept() -> bool:
            if error := self.take_error():
                raise error
            return self.ended or self._keeps_done >= asked

        return kept

    def take_error(self) -> BaseException | None:
        """The error since the last call, if any; `lock` must be held."""
        error, self.error = self.error, None
        return error

    # --- the end ---

    def drain(self, timeout_s: float | None) -> bool:
        """Hand out nothing more, and wait until no handler works. Returns whether that is so."""
        with self.lock:
            self.core.close()
            self.tell()
            self.wake()
            return self.changed.wait_for(lambda: self.ended or self.core.is_drained, timeout_s)

    def stop(self) -> None:
        """Release everything, leave the group, end the thread."""
        self.begin_to_leave()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def begin_to_leave(self) -> None:
        """Like `stop`, but without waiting: the thread ends by itself."""
        with self.lock:
            if not self.closing:
                self.closing = True
                self.core.close()
                self.core.leave()
                self.wake()

    def finish(self) -> None:
        """The process ends. There is nothing to do, because no handler works any more."""

    def leave(self) -> None:
        self.stop()

    def forked(self) -> None:
        """This is the child of a fork, which has no such thread."""
        self.closing = self.ended = self.is_forked = True
        # another thread may have held the lock at the fork, and nobody would release it here
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.work = threading.Condition(self.lock)

    # --- the thread ---

    def _run(self) -> None:
        until_ms = -1
        try:
            while not self.core.membership.left:
                self._turn()
                if self.abandoned:
                    self.begin_to_leave()
                if self.closing:
                    now_ms = self.now_ms()
                    until_ms = until_ms if until_ms >= 0 else now_ms + LEAVE_MS
                    if now_ms >= until_ms:
                        break
        except BaseException as error:
            with self.lock:
                self.error = error
            log().exception("%r has failed", self)
        finally:
            self._end()

    def _turn(self) -> None:
        now_ms, ready = self.now_ms(), self._ready
        for reader, line in self._readers:
            if line.look_after(now_ms, ready, reader.given_up):
                reader.connection_lost()
            for answer in line.received(ready):
                with self.lock:
                    self._guarded(partial(reader.received, answer, now_ms))
                self._fetch(reader, now_ms)
        is_group_lost = self._group.look_after(now_ms, ready)
        self._produce.look_after(now_ms, ready)
        core = self.core
        told = list(self._group.received(ready)), list(self._produce.received(ready))
        with self.lock:
            if is_group_lost:
                core.membership.connection_lost()
            for parts in told[0]:
                self._guarded(partial(core.membership.received, parts, now_ms))
            for parts in told[1]:
                self._guarded(partial(core.send_back.received, parts, now_ms))
            self._guarded(partial(core.turn, now_ms))
            out = core.membership.outgoing(now_ms), list(core.send_back.outgoing(now_ms))
            pulls = [self._pulls(reader, now_ms) for reader, _ in self._readers]
            # `stop` notifies too, but in a signal handler it may do so after the main thread has
            # looked at the core and before it waits, and the notification would be lost. This
            # thread can take the lock only once that wait has begun.
            is_end_told = core.closing
            if is_end_told:
                self.tell()
            self.offer(now_ms)
            self.changed.notify_all()
        self._keep_offsets()
        self._send(out, pulls)
        with self.lock:
            must_keep = self._keeps_asked > self._keeps_done
            must_tell = core.closing and not is_end_told
            wait_ms = 0 if must_keep or must_tell else core.wait_ms(self.now_ms())
            self.asleep = wait_ms > 0
        self._ready = {found for found, _ in self._poller.poll(wait_ms)}
        if self._waker.handle in self._ready:
            self._waker.clear()
        with self.lock:
            self.asleep = False

    def _send(
        self,
        out: tuple[list[tuple[bytes, ...]], list[tuple[bytes, ...]]],
        pulls: list[list[tuple[bytes, ...]]],
    ) -> None:
        now_ms = self.now_ms()
        if not self._group.send(out[0]):
            with self.lock:
                self.core.membership.not_connected(now_ms)
        if not self._produce.send(out[1]):
            with self.lock:
                self.core.send_back.not_connected(now_ms)
        for (reader, line), each in zip(self._readers, pulls, strict=True):
            if not line.send(each):
                with self.lock:
                    reader.not_connected(now_ms)

    def _fetch(self, reader: AssignedCore, now_ms: int) -> None:
        if reader.has_unread:
            # without the lock, because a disk may be slow
            records = reader.fetch(now_ms)
            with self.lock:
                reader.fetched(records)

    def _pulls(self, reader: AssignedCore, now_ms: int) -> list[tuple[bytes, ...]]:
        found: list[tuple[bytes, ...]] = []

        def ask() -> None:
            found.extend(reader.outgoing(now_ms))

        self._guarded(ask)
        return found

    def _keep_offsets(self, force: bool = False) -> None:
        joined = self.core.membership.joined
        if self._save is None or joined is None:
            return
        with self.lock:
            offsets, asked = self.core.offsets, self._keeps_asked
        force = force or asked > self._keeps_done
        # without the lock, because a disk may be slow
        self._guarded(partial(self._save, offsets, joined.broker_name, force))
        if asked > self._keeps_done:
            with self.lock:
                self._keeps_done = asked
                self.changed.notify_all()

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Keep an error for the program to see, and go on with everything else meanwhile."""
        try:
            step()
        except ConnectError as error:
            log().warning("%r: %s", self, error)
        except PenstockError as error:
            with self.lock:
                self.error = error
                self.tell()

    def _end(self) -> None:
        leaving.discard(self)
        with self.lock:
            self.closing = self.ended = True
            self.tell()
            self._waker.close()
        self._keep_offsets(True)
        for line in (self._group, self._produce, *(each for _, each in self._readers)):
            line.close()
        self._context.term()
