"""Producer sessions: which frame of which producer may be stored next. A state machine without I/O.

A producer numbers its frames. Within a session the writer takes them in order and without gaps, so
frames that a dead connection still delivers can neither overtake nor repeat others. A session
belongs to one connection, because answers on their way through another one are lost. If a session
is unknown (to a new writer), belongs to another connection or is out of step, the producer opens a
new one, in which it sends unanswered frames again.
"""

from __future__ import annotations

from collections import OrderedDict

# Beyond this many, the producers silent for longest are forgotten; they open a session again.
MAX_PRODUCERS = 10_000


class Session:
    """The state of one producer's session. `peer` is its connection; `begun` says that it has taken
    a frame. `stored_after` is how much of the log the producer knew when it made its oldest
    unanswered frame: what it sends again cannot lie below that."""

    __slots__ = ("number", "next_seq", "stored_after", "peer", "begun")

    def __init__(self, number: int, next_seq: int, stored_after: int, peer: bytes) -> None:
        self.number = number
        self.next_seq = next_seq
        self.stored_after = stored_after
        self.peer = peer
        self.begun = False


class Sessions:
    """All sessions of one writer."""

    def __init__(self) -> None:
        self._by_producer: OrderedDict[int, Session] = OrderedDict()

    def open(
        self, producer: int, number: int, next_seq: int, stored_after: int, peer: bytes
    ) -> Session | None:
        """Open a session, or find it open already.

        None when the producer has a newer session, or when this one has taken frames from another
        connection: the producer must open a new one.
        """
        known = self._by_producer.get(producer)
        if known is not None and known.number > number:
            # A Hello of a dead connection that is still being delivered. Opening it would let the
            # frames after it overtake those of the newer session.
            return None
        if known is not None and known.number == number:
            if known.peer == peer:
                return known  # the Hello came twice: its answer was late, or lost
            if known.begun:
                # Answers to the frames it took went to the other connection. Only a new session
                # makes the producer send again what it has no answer for.
                return None
        session = Session(number, next_seq, stored_after, peer)
        self._by_producer[producer] = session
        self._by_producer.move_to_end(producer)
        if len(self._by_producer) > MAX_PRODUCERS:
            # forgetting is safe: the producer is out of step with its next frame, and says Hello
            self._by_producer.popitem(last=False)
        return session

    def belongs(self, producer: int, peer: bytes) -> bool:
        """Whether this connection has the producer's session."""
        session = self._by_producer.get(producer)
        return session is not None and session.peer == peer

    def take(self, producer: int, number: int, seq: int, peer: bytes) -> Session | None:
        """The session, if this is its next frame, which then counts as taken; otherwise None."""
        session = self._by_producer.get(producer)
        if session is None or session.number != number or session.next_seq != seq:
            return None
        if session.peer != peer:
            return None
        # It counts as taken before it is stored. If it is refused, `end` forgets the whole session,
        # so a number is never taken twice.
        session.next_seq += 1
        session.begun = True
        self._by_producer.move_to_end(producer)
        return session

    def end(self, producer: int) -> None:
        """End a producer's session: no frame under way may overtake the one just refused."""
        self._by_producer.pop(producer, None)
