"""One member of each of many groups, in one process: it joins, divides, claims, and stays.

    python -m penstock.bench.loads.crowd_process ORDER      a Crowd, as JSON

Each member has the client's own core and a connection of its own to the coordinator, and fetches
nothing. The process is told "go", and later "expect N". A group is settled once it has N members
and this process's member owns all queues that it wants. When all groups are settled, the process
reports since when.
"""

from __future__ import annotations

import heapq
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.membership import Membership
from penstock.client.core.groups.strategies import strategy_of
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.wire.group_messages import SubscriptionData
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

CONNECT_S = 60.0
# Between two sweeps over all sockets, whatever epoll reported.
SWEEP_MS = 500


class Crowd(msgspec.Struct, frozen=True):
    """A member of each of `groups`, which also name their topics; `number` is this process's."""

    endpoint: str
    groups: list[str]
    number: int
    members: int
    session_timeout_ms: int


class Seat:
    """One member."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], order: Crowd, place: int) -> None:
        group = order.groups[place]
        topics = (group, retry_topic(group))
        self.core = Membership(
            MemberOptions(
                group,
                f"member-{order.number:03}",
                tuple([SubscriptionData(topic, "TAG", "*", 1) for topic in topics]),
                strategy_of("AVG"),
                order.session_timeout_ms,
            )
        )
        self.socket: Any = dial(context, order.endpoint, PRODUCE_ANSWER_BYTES)
        self.place = place
        # time of its valid entry in the timetable; earlier entries are stale
        self.due_ms = -1

    def hear(self, now_ms: int) -> bool:
        """Take everything that has come; returns whether there was anything."""
        heard = False
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            self.core.received(self.socket.recv_multipart(zmq.NOBLOCK), now_ms)
            heard = True
        return heard

    def turn(self, now_ms: int) -> None:
        """Send what is to be sent, and release at once the queues that belong to others."""
        core = self.core
        core.take_gained()
        core.take_lost()
        if revoked := core.revoked:
            core.release(dict.fromkeys(revoked, -1))
        for parts in core.outgoing(now_ms):
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                core.not_connected(now_ms)

    def is_settled(self, members: int) -> bool:
        joined = self.core.joined
        return (
            joined is not None
            and len(joined.members) == members
            and self.core.claims.keys() == self.core.wanted
            and joined.topics[0].read_queues > 0
        )


class Loop:
    """Serves all members, and stdin."""

    def __init__(self, order: Crowd) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.max_sockets = len(order.groups) + 16
        self._seats = [Seat(self._context, order, at) for at in range(len(order.groups))]
        self._members = order.members
        self._epoll = select.epoll()
        self._by_handle = {int(seat.socket.fd): seat for seat in self._seats}
        for handle in self._by_handle:
            self._epoll.register(handle, select.EPOLLIN | select.EPOLLET)
        self._timetable: list[tuple[int, int]] = []
        self._unsettled: set[Seat] = set()
        self._is_told = True
        self._cpu_s = 0.0

    def connect(self) -> None:
        """Wait until all members are connected."""
        until = time.monotonic() + CONNECT_S
        waiting = self._seats
        while waiting := [
            seat for seat in waiting if not seat.socket.get(zmq.EVENTS) & zmq.POLLOUT
        ]:
            if time.monotonic() > until:
                raise SystemExit(f"{len(waiting)} members have no connection")
            time.sleep(0.01)

    def serve(self) -> None:
        """Serve until stdin ends."""
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        swept_ms = 0
        while True:
            now_ms = time.monotonic_ns() // 1_000_000
            wait_ms = SWEEP_MS
            if self._timetable:
                wait_ms = min(wait_ms, max(0, self._timetable[0][0] - now_ms))
            handles = [handle for handle, _ in self._epoll.poll(wait_ms / 1000)]
            now_ms = time.monotonic_ns() // 1_000_000
            if sys.stdin.fileno() in handles and not self._obey(sys.stdin.readline(), now_ms):
                return
            sweep = now_ms - swept_ms > SWEEP_MS
            swept_ms = now_ms if sweep else swept_ms
            wanted = self._by_handle if sweep else handles
            heard = [self._by_handle[each] for each in wanted if each in self._by_handle]
            self._work([seat for seat in heard if seat.hear(now_ms)], now_ms)
            self._work(list(self._due(now_ms)), now_ms)
            self._tell()

    def _obey(self, line: str, now_ms: int) -> bool:
        if line.startswith("expect "):
            self._members = int(line.removeprefix("expect "))
        self._unsettled, self._is_told = set(self._seats), False
        self._cpu_s = time.process_time()
        self._work(self._seats, now_ms)
        return bool(line)

    def _due(self, now_ms: int) -> Iterator[Seat]:
        while self._timetable and self._timetable[0][0] <= now_ms:
            due_ms, at = heapq.heappop(self._timetable)
            if self._seats[at].due_ms == due_ms:
                yield self._seats[at]

    def _work(self, seats: list[Seat], now_ms: int) -> None:
        for seat in seats:
            seat.turn(now_ms)
            # a send may have consumed the readiness event of the socket's descriptor
            if seat.hear(now_ms):
                seat.turn(now_ms)
            seat.due_ms = now_ms + max(1, seat.core.wait_ms(now_ms))
            heapq.heappush(self._timetable, (seat.due_ms, seat.place))
            if not self._is_told and seat.is_settled(self._members):
                self._unsettled.discard(seat)
            elif not self._is_told:
                self._unsettled.add(seat)

    def _tell(self) -> None:
        if not self._is_told and not self._unsettled:
            self._is_told = True
            told = {"settled_ns": time.monotonic_ns(), "cpu_s": time.process_time() - self._cpu_s}
            print(msgspec.json.encode(told).decode(), flush=True)


def main() -> None:
    loop = Loop(msgspec.json.decode(sys.argv[1], type=Crowd))
    loop.connect()
    print('{"ready":true}', flush=True)
    loop.serve()


if __name__ == "__main__":
    main()
