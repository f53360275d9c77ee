"""Whose frames are taken when, over real sockets: a client that sends much delays no other."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from penstock.actors.gateway.connecting import connection as connection_module
from penstock.actors.gateway.connecting.connection import (
    IDLE_MS,
    MOST_UNREAD_BYTES,
    STALL_MS,
    Connection,
    NotServed,
    TakeFrames,
)
from penstock.actors.gateway.connecting.connections import (
    CHECK_MS,
    MORE_MS,
    MOST_HELD_BYTES,
    SHARE_MS,
    Connections,
)
from penstock.remoting.command import LENGTH
from penstock.shared.files.certificates import Tls
from penstock.shared.process.listeners import listen_tcp

FRAMES, COUNT, TIMEOUT_S = 1000, 4, 60
LARGE = bytes(128 << 20)


class Clients:
    """Connections of a gateway, and the other ends of them. Each look at the clock takes 1 ms."""

    def __init__(self, stack: ExitStack) -> None:
        ticks = count()
        self.pass_ms = lambda ms: [next(ticks) for _ in range(ms)]
        listener = listen_tcp("127.0.0.1", 0)
        stack.callback(listener.socket.close)
        self._stack, self._listener = stack, listener.socket
        self._listener.settimeout(TIMEOUT_S)
        self.closed: list[str] = []
        self._clock_ms = ticks.__next__
        self.all = Connections({}, self.closed.append, lambda gone: None, Tls(), ticks.__next__)
        stack.callback(self.all.close_all)

    def taking(self, take: TakeFrames) -> Connections:
        """Others, of which frames are taken like this."""
        found = Connections({}, self.closed.append, lambda gone: None, Tls(), self._clock_ms, take)
        self._stack.callback(found.close_all)
        self.all = found
        return found

    def new(self) -> tuple[Connection, socket.socket]:
        theirs = self._stack.enter_context(
            socket.create_connection(self._listener.getsockname(), TIMEOUT_S)
        )
        ours, address = self._listener.accept()
        return self.all.add(ours, address[:2], 0), theirs

    def turn(self) -> Counter[Connection]:
        """How many frames of each are taken."""
        return Counter(connection for connection, _ in self.all.frames(0, True))


@pytest.fixture
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(stack)


def frame(number: int) -> bytes:
    return LENGTH.pack(LENGTH.size) + LENGTH.pack(number)


def test_a_client_that_is_silent_has_two_minutes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, ("127.0.0.1", 1), 0)
        connection.check(IDLE_MS)
        theirs.sendall(frame(1))
        assert len(list(connection.receive(1000))) == 1
        connection.check(1000 + IDLE_MS)
        connection.put(b"an answer")
        assert connection.flush(2000), "what it is sent counts, too"
        connection.check(2000 + IDLE_MS)
        with pytest.raises(NotServed, match="^$"):
            connection.check(2001 + IDLE_MS)


def test_without_a_limit_all_frames_that_have_come_are_received() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, ("127.0.0.1", 1), 0)
        theirs.sendall(frame(1) + frame(2) + frame(3))
        assert len(list(connection.receive(0))) == 3 and not connection.has_more


@pytest.mark.parametrize("size", [1, 5, 7])
def test_half_a_frame_has_a_minute(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, ("127.0.0.1", 1), 0)
        theirs.sendall(frame(1)[:size])
        assert list(connection.receive(10)) == []
        connection.check(10 + STALL_MS)
        with pytest.raises(NotServed, match=f"{size} bytes of a frame"):
            connection.check(11 + STALL_MS)
        theirs.sendall(frame(1)[size:])
        assert len(list(connection.receive(STALL_MS))) == 1
        connection.check(11 + STALL_MS)


def test_answers_that_are_not_read_have_a_minute_from_the_last_that_was() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, ("127.0.0.1", 1), 0)
        connection.put(bytes(MOST_UNREAD_BYTES))
        assert not connection.flush(0), "more than the kernel takes"
        connection.check(STALL_MS)
        assert theirs.recv(1 << 16)
        with suppress(BlockingIOError):  # so that there is room for more
            while theirs.recv(1 << 20, socket.MSG_DONTWAIT):
                pass
        assert not connection.flush(10), "some of it is read, and not all"
        connection.check(10 + STALL_MS)
        with pytest.raises(NotServed, match=f"left {connection.unread_bytes} bytes unread"):
            connection.check(11 + STALL_MS)


def test_a_client_with_much_to_say_has_its_share_of_a_turn(clients: Clients) -> None:
    greedy, much = clients.new()
    modest, little = clients.new()
    much.sendall(b"".join(map(frame, range(FRAMES))))
    numbers: list[int] = []
    asked = 0
    while len(numbers) < FRAMES:
        little.sendall(frame(asked))
        asked += 1
        answered = False
        while not answered:  # it may come a moment later
            before = len(numbers)
            for connection, found in clients.all.frames(0, True):
                answered |= connection is modest
                if connection is greedy:
                    numbers += LENGTH.unpack(found)
            assert len(numbers) - before <= 2 * (SHARE_MS + MORE_MS)
    assert numbers == list(range(FRAMES)), "all, in their order"
    assert asked > 1


def test_what_is_taken_all_at_once_has_no_more_than_its_share(clients: Clients) -> None:
    numbers: list[int] = []

    def take(
        connection: Connection, data: bytes | bytearray, at: int, has_time: Callable[[], bool]
    ) -> int:
        while len(data) - at >= len(frame(0)) and has_time():
            numbers.extend(LENGTH.unpack_from(data, at + LENGTH.size))
            at += len(frame(0))
        return at

    clients.taking(take)
    greedy, much = clients.new()
    much.sendall(b"".join(map(frame, range(FRAMES))))
    turns = 0
    while len(numbers) < FRAMES:
        before = len(numbers)
        # the first for which there is no time is found as any other
        for _, found in clients.all.frames(0, True):
            numbers += LENGTH.unpack(found)
        assert len(numbers) - before <= 2 * (SHARE_MS + MORE_MS)
        turns += len(numbers) > before
    assert numbers == list(range(FRAMES)) and turns > 1
    assert greedy.is_costly


def test_all_that_have_much_to_say_have_their_turns(clients: Clients) -> None:
    others = [clients.new() for _ in range(20)]
    for _, theirs in others:
        theirs.sendall(b"".join(map(frame, range(FRAMES))))
    taken: Counter[Connection] = Counter()
    while taken.total() < FRAMES * len(others):
        taken += clients.turn()
    assert set(taken.values()) == {FRAMES}
    assert not [clients.turn() for _ in others][-1] and not clients.all.has_more


def test_those_that_ask_for_what_takes_long_wait_for_each_other_and_nobody_for_them(
    clients: Clients,
) -> None:
    slow = [clients.new() for _ in range(COUNT)]
    modest, little = clients.new()
    answered: Counter[Connection] = Counter()
    for _ in range(3 * COUNT):
        for _, theirs in slow:
            theirs.sendall(frame(0))
        little.sendall(frame(0))
        before = answered[modest]
        while answered[modest] == before:  # it may come a moment later
            here = Counter[Connection]()
            for connection, _ in clients.all.frames(0, True):
                here[connection] += 1
                if connection is not modest:
                    clients.pass_ms(2 * MORE_MS)
            is_first = len(answered) < COUNT
            answered += here
            assert is_first or here.total() - here[modest] <= 1
    assert len(answered) == COUNT + 1, "all have had turns"


def test_what_a_client_has_asked_waits_until_it_has_read_the_answers(clients: Clients) -> None:
    connection, theirs = clients.new()
    theirs.sendall(b"".join(map(frame, range(COUNT))))
    answered = read = 0
    while answered < COUNT or read < COUNT * MOST_UNREAD_BYTES:
        for each, _ in clients.all.frames(0, True):
            clients.all.answer_frame(each, bytes(MOST_UNREAD_BYTES))
            answered += 1
            assert connection.unread_bytes < 2 * MOST_UNREAD_BYTES
        clients.all.flush(0)
        with suppress(BlockingIOError):
            read += len(theirs.recv(MOST_UNREAD_BYTES, socket.MSG_DONTWAIT))
    assert connection.is_open and not clients.closed


def test_those_that_hold_the_most_are_closed_until_the_rest_fits(clients: Clients) -> None:
    others = [clients.new()[0] for _ in range(8)]
    for number, each in enumerate(others):
        clients.all.answer_frame(each, memoryview(LARGE)[: (number + 1) * (16 << 20)])
    clients.all.check(0)
    assert sum(each.held_bytes for each in others) <= MOST_HELD_BYTES
    assert [each.is_open for each in others] == [True] * 5 + [False] * 3
    assert len(clients.closed) == 3 and "of 576" in clients.closed[0]


def test_one_that_is_over_is_closed_at_the_next_look_and_these_are_not_often(
    clients: Clients,
) -> None:
    silent, _ = clients.new()
    clients.all.check(IDLE_MS)
    assert silent.is_open, "it has its time"
    clients.all.check(IDLE_MS + CHECK_MS - 1)
    assert silent.is_open, "the last look was a moment ago"
    clients.all.check(IDLE_MS + CHECK_MS)
    assert not silent.is_open


def test_after_many_answers_it_is_looked_at_what_all_hold(clients: Clients) -> None:
    clients.all.check(0)
    greedy, _ = clients.new()
    for _ in range(3):
        clients.all.answer_frame(greedy, LARGE)
    clients.all.check(1)
    assert not greedy.is_open


def test_it_is_known_whether_the_kernel_may_have_more_than_was_read(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause before the next look would only have the rest read later."""
    monkeypatch.setattr(connection_module, "RECEIVE_BYTES", 2 * len(frame(0)))
    (_, much), (_, little) = clients.new(), clients.new()
    much.sendall(b"".join(map(frame, range(5))))
    seen: list[tuple[int, bool]] = []
    while sum(taken for taken, _ in seen) < 5:
        if taken := clients.turn().total():
            seen.append((taken, clients.all.has_left))
    assert seen == [(2, True), (2, True), (1, False)]
    # of whom all was read is no sign of the others, in whichever order they come
    much.sendall(b"".join(map(frame, range(2))))
    little.sendall(frame(0))
    has_left, taken = False, 0
    while taken < 3:
        taken += clients.turn().total()
        has_left |= clients.all.has_left
    assert has_left
    assert not clients.turn() and not clients.all.has_left


def test_a_bug_costs_its_connection_and_what_this_process_lacks_costs_none(
    clients: Clients,
) -> None:
    (asked, _), (other, _) = clients.new(), clients.new()
    told: list[str] = []
    for error in (MemoryError(), OSError(errno.EMFILE, "too many open files")):
        with pytest.raises(type(error)):
            clients.all.fail(asked, error, 10, told.append)
    assert asked.is_open and not told
    clients.all.fail(asked, KeyError("a bug"), 10, told.append)
    assert not asked.is_open and other.is_open
    assert len(told) == 1 and "KeyError: 'a bug'" in told[0]
    assert clients.closed == ["asked what failed: code 10"]
