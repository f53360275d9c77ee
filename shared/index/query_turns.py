"""Queries of a running store's clients, worked at in turns so that none holds up the others.

Each asker has one query; if it repeats the request, the query goes on. A query sees everything that
was acknowledged before it came, or only what is dispatched when waiting for that takes too long.
The caller knows what an asker is: a connection, or a number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from typing import Generic, NamedTuple, TypeVar

from penstock.shared.config import Config
from penstock.shared.errors import RESOURCE_EXHAUSTED, PenstockError, StoreDamaged, StoreUnavailable
from penstock.shared.formats.index_layout import IndexHeader
from penstock.shared.formats.record_check import LogAt
from penstock.shared.index import lookup as query
from penstock.shared.index.directory import index_geometry
from penstock.shared.index.lookup import IndexView, KeyQuery
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.names import check_topic
from penstock.shared.next_steps import verify
from penstock.shared.wire.messages import Query, QueryById

# The time of one turn for all queries together, between two looks at the socket.
TURN_MS = 5
MAX_QUERIES = 1000
# The longest wait for what was acknowledged before the query.
CATCH_UP_MS = 1000

Request = Query | QueryById
Answer = list[bytes] | PenstockError
Asker = TypeVar("Asker", bound=Hashable)


class _Turn(NamedTuple):
    """A query under way. It waits until `dispatched` reaches `position`, or until `until_ms`."""

    request: Request
    work: Generator[None, None, list[bytes]]
    position: int
    until_ms: int


class QueryTurns(Generic[Asker]):
    """The queries that have no answer yet."""

    def __init__(
        self, config: Config, positions: Positions, log_at: LogAt, monotonic_ms: Callable[[], int]
    ) -> None:
        """`log_at` is asked only for what lies between `log_start` and `dispatched`."""
        self._config = config
        self._positions = positions
        self._view = log_at
        self._monotonic_ms = monotonic_ms
        self._index = IndexView(StorePaths(config.store).index, index_geometry(config))
        # the position below which producers have their answers
        self._acknowledged = "flushed" if config.sync_flush else "wrote"
        self._turns: dict[Asker, _Turn] = {}

    def add(self, peer: Asker, request: Request) -> None:
        """Begin a query, unless the same one is under way. Raises PenstockError."""
        known = self._turns.get(peer)
        if known is not None and known.request == request:
            return
        if known is None and len(self._turns) >= MAX_QUERIES:
            raise StoreUnavailable(
                f"{MAX_QUERIES} queries are waiting, the most that may",
                len(self._turns),
                "ask again later",
            )
        work = self._begin(request)
        until_ms = self._monotonic_ms() + CATCH_UP_MS
        position = self._positions[self._acknowledged]
        self._turns[peer] = _Turn(request, work, position, until_ms)

    def work(self) -> list[tuple[Asker, Request, Answer]]:
        """Continue queries for a moment, each in its turn. Returns those that ended, answered."""
        if not self._turns:
            return []
        ended: list[tuple[Asker, Request, Answer]] = []
        now_ms = self._monotonic_ms()
        dispatched = self._positions["dispatched"]
        ready = deque(
            peer
            for peer, turn in self._turns.items()
            if dispatched >= turn.position or turn.until_ms <= now_ms
        )
        while ready:
            peer = ready.popleft()
            turn = self._turns.pop(peer)
            answer = _step(turn)
            if answer is not None:
                ended.append((peer, turn.request, answer))
            else:
                self._turns[peer] = turn  # to the end of the queue, which the next call starts from
                ready.append(peer)
            # after each step: one step of each of a thousand queries takes far longer than a turn
            if self._monotonic_ms() - now_ms >= TURN_MS:
                break
        return ended

    @property
    def busy(self) -> bool:
        """Whether a query has more to do than wait."""
        if not self._turns:
            return False
        dispatched = self._positions["dispatched"]
        return any(dispatched >= turn.position for turn in self._turns.values())

    @property
    def waiting(self) -> bool:
        return bool(self._turns)

    def last_update(self) -> tuple[int, int]:
        """The index's newest store time in ms, and its log offset; zeros if it is empty."""
        newest = next(iter(self._index.files()), None)
        header = newest.header if newest is not None else IndexHeader()
        return header.end_timestamp_ms, header.end_offset

    def release_deleted(self) -> None:
        """Close deleted index files, unless a query may be reading one."""
        if not self._turns:
            self._index.release_deleted()

    def close(self) -> None:
        self._index.close()

    def _begin(self, request: Request) -> Generator[None, None, list[bytes]]:
        if isinstance(request, QueryById):
            return self._find(request.message_id)
        check_topic(request.topic)
        most = self._config.default_query_max_num if request.unique else request.max_num
        wanted = KeyQuery(
            request.topic,
            request.key,
            min(most, self._config.max_msgs_num_batch),
            request.begin_ms,
            request.end_ms,
            request.unique,
        )
        return self._look_up(wanted.check())

    def _find(self, message_id: str) -> Generator[None, None, list[bytes]]:
        yield
        return [bytes(query.find_by_id(message_id, self._log_at))]

    def _look_up(self, wanted: KeyQuery) -> Generator[None, None, list[bytes]]:
        return (yield from query.look_up(self._index.files(), wanted, self._log_at))

    def _log_at(self, offset: int, size: int) -> memoryview | bytes:
        dispatched = self._positions["dispatched"]
        if not self._positions["log_start"] <= offset < dispatched:
            return b""
        return self._view(offset, min(offset + size, dispatched))


def _step(turn: _Turn) -> Answer | None:
    """Continue one query; returns its answer once it has one."""
    try:
        next(turn.work)
    except StopIteration as end:
        found: list[bytes] = end.value
        return found
    except PenstockError as error:
        return error
    except OSError as error:
        if error.errno in RESOURCE_EXHAUSTED:
            raise
        return StoreDamaged(
            "the files of log or index cannot be read", error, verify(error.filename)
        )
    return None
