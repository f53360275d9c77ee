"""Producers' requests to end their transactions: checked, taken up once, and answered.

    half message not in its queue yet -> waits, some ms
    open                              -> ends like this; later requests for it wait for the outcome
    ended                             -> answered with how it ended, whatever the request says

No sockets: requests are passed in, and answers are returned.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from penstock.actors.transactions.endings import Ending, Endings, Place
from penstock.actors.transactions.follower import Follower
from penstock.actors.transactions.half_queues import HalfQueues
from penstock.actors.transactions.half_table import (
    COMMITTED,
    DISCARDED,
    MOST_CHECKS,
    PUT_BACK,
    ROLLED_BACK,
)
from penstock.shared.clock import Clock
from penstock.shared.errors import (
    BrokerBusy,
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    TransactionEnded,
)
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.half import Half, committed, read_half
from penstock.shared.next_steps import quoted
from penstock.shared.wire.messages import refusal
from penstock.shared.wire.transaction_messages import Ended, EndTransaction, TransactionAnswer

# Requests whose half messages are not in their queue yet, and those that are ending.
MAX_WAITING = 10_000
# Committed messages whose places are remembered, for producers that ask again.
MAX_PLACES = 10_000
BUSY_RETRY_MS = 200
# The length of a turn: a forgotten place has to be looked for, which takes some ms each.
TURN_MS = 20
_STATE = {"commit": COMMITTED, "rollback": ROLLED_BACK}
# A discarded message was never visible.
_WORDS = {COMMITTED: "commit", ROLLED_BACK: "rollback", DISCARDED: "rollback"}

Answer = tuple[bytes, TransactionAnswer]


class Requests:
    """Requests to end a transaction that have no answer yet."""

    def __init__(
        self,
        follower: Follower,
        queues: HalfQueues,
        endings: Endings,
        positions: Positions,
        clock: Clock,
    ) -> None:
        self._follower, self._table = follower, follower.table
        self._queues, self._endings, self._positions = queues, endings, positions
        self._clock = clock
        self._new: deque[tuple[bytes, EndTransaction]] = deque()
        self._early: dict[tuple[bytes, int], EndTransaction] = {}
        self._places: OrderedDict[int, Place] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether one waits for its turn, or for its half message."""
        return bool(self._early or self._new)

    def add(self, peer: bytes, request: EndTransaction) -> None:
        """Add a request. Raises BrokerBusy if too many wait."""
        if len(self._new) + len(self._early) + len(self._endings) >= MAX_WAITING:
            raise BrokerBusy(
                f"more than {MAX_WAITING} transactions are ending at once",
                None,
                "say it again later",
                retry_after_ms=BUSY_RETRY_MS,
            )
        self._new.append((peer, request))

    def turn(self) -> Iterator[Answer]:
        """Take up new requests, and early ones again; yields the answers that are known."""
        early, self._early = self._early, {}
        # in the order of arrival: the first of two requests for one half message counts
        self._new.extendleft((peer, each) for (peer, _), each in reversed(early.items()))
        until_ms = self._clock.monotonic_ms() + TURN_MS
        # only those that are here now, not those that come back: one may wait for long
        for _ in range(len(self._new)):
            if self._clock.monotonic_ms() > until_ms:
                return
            peer, request = self._new.popleft()
            try:
                answer = self._take(peer, request)
            except PenstockError as error:
                answer = refusal(error, request.request)
            if answer is not None:
                yield peer, answer

    def _take(self, peer: bytes, request: EndTransaction) -> TransactionAnswer | None:
        if request.outcome == "unknown":
            return Ended(request.request, "unknown")
        if request.queue_offset >= self._table.end:
            queued = self._positions["queued"]
            # after reading `queued`, or it could come to its queue between the two
            self._follower.extend()
            if request.queue_offset >= self._table.end:
                if not queued <= request.physical_offset < self._positions["wrote"]:
                    raise _no_half(request)
                self._early[peer, request.request] = request
                return None
        record, half = self._named(request)
        offset = self._follower.stands_at(request.queue_offset)
        if offset >= self._table.end:
            self._early[peer, request.request] = request
            return None
        if offset != request.queue_offset:
            record = self._queues.half(offset) or record
        if offset < self._table.base or record.queue_offset != offset:
            return self._forgotten(request, record, half)
        ending, state = self._endings.get(offset), self._table.state(offset)
        if ending is None and state > MOST_CHECKS:
            return self._ended(request, record, half, offset)
        if ending is None:
            ending = Ending(offset, _STATE[request.outcome], None)
            if ending.state == COMMITTED:
                ending.copy = committed(record)
            self._endings.put(ending, record)
        ending.waiters.append((peer, request.request))
        return None

    def _named(self, request: EndTransaction) -> tuple[Record, Half]:
        """The half message that a request names. Raises InvalidArgument."""
        record = self._queues.half(request.queue_offset)
        if record is None or record.physical_offset != request.physical_offset:
            raise _no_half(request)
        try:
            half = read_half(record.properties)
        except InvalidMessage:
            raise _no_half(request) from None
        # RocketMQ's clients name a half message by its offsets alone, without a key
        if half.group != request.group or request.unique_key not in ("", half.unique_key):
            raise InvalidArgument(
                "this half message is another producer group's, or has another unique key",
                f"group {request.group}, {request.unique_key}",
                "end a transaction with what began it",
            )
        return record, half

    def _ended(
        self, request: EndTransaction, record: Record, half: Half, offset: int
    ) -> TransactionAnswer:
        state = self._table.state(offset)
        if state not in _WORDS:
            return self._forgotten(request, record, half)
        place = self._places.get(offset)
        if state == COMMITTED and place is None:
            place = self._find(record, half)
        return _answer(request.request, _WORDS[state], place)

    def _forgotten(self, request: EndTransaction, record: Record, half: Half) -> TransactionAnswer:
        """It has ended, but its outcome is forgotten: only a committed copy can show it."""
        place = self._find(record, half)
        if place is not None:
            return _answer(request.request, "commit", place)
        where = f"{quoted(half.topic)} {quoted(half.unique_key)}"
        raise TransactionEnded(
            "this transaction has ended, and how is not remembered any more",
            half.unique_key,
            f"see whether its message is there: penstock query unique-key {where}",
        )

    def _find(self, record: Record, half: Half) -> Place | None:
        """Where the committed message is, if it is among the last of its queue."""

        def is_it(found: Record) -> bool:
            kind = found.sys_flag & SYS_TRANSACTION_MASK
            is_commit = kind == SYS_TRANSACTION_COMMIT
            return is_commit and found.prepared_transaction_offset == record.physical_offset

        stop = self._positions["queued"]
        found = self._queues.find(half.topic, half.queue_id, record.physical_offset, stop, is_it)
        if found is None:
            return None
        return Place(found.queue_id, found.queue_offset, found.physical_offset)

    def settle(self, ending: Ending, error: PenstockError | None) -> Iterator[Answer]:
        """The ending's frame was stored or refused: yields the answers to those who wait for it."""
        if ending.stored and ending.place is not None and ending.state == COMMITTED:
            self._places[ending.offset] = ending.place
            if len(self._places) > MAX_PLACES:
                self._places.popitem(last=False)
        for peer, number in ending.waiters:
            if error is not None:
                yield peer, refusal(error, number)
            elif ending.state != PUT_BACK:  # a put-back one is still open, and they ask again
                yield peer, _answer(number, _WORDS[ending.state], ending.place)


def _answer(number: int, outcome: str, place: Place | None) -> Ended:
    return Ended(number, outcome, *(place or ()))


def _no_half(request: EndTransaction) -> InvalidArgument:
    return InvalidArgument(
        "there is no half message at these offsets",
        f"queue offset {request.queue_offset}, log offset {request.physical_offset}",
        "end a transaction with the receipt of its half message",
    )
