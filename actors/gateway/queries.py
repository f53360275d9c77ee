"""Queries by key: begun by requests, worked at in turns, answered when they have ended."""

from __future__ import annotations

from collections.abc import Callable

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.remoting.codes import Response
from penstock.remoting.fields import QueryAnswer, QueryFields
from penstock.shared.errors import InvalidArgument, PenstockError
from penstock.shared.index.query_turns import QueryTurns
from penstock.shared.process.actor import Stage
from penstock.shared.queue.reader import QueueReader
from penstock.shared.wire.messages import Query


class Queries:
    """All queries of the gateway that have no answer yet."""

    def __init__(
        self, stage: Stage, queues: QueueReader, answer: Callable[[Call, Reply], None]
    ) -> None:
        self._answer = answer
        clock = stage.clock.monotonic_ms
        self._turns = QueryTurns[int](stage.config, stage.positions, queues.log.view, clock)
        self._calls: dict[int, Call] = {}
        self._number = 0

    def take(self, call: Call, fields: QueryFields) -> Reply | None:
        """Begin a query. One that cannot find anything is answered at once, as by RocketMQ.

        Raises StoreUnavailable where too many are at work.
        """
        self._number += 1
        wanted = Query(
            self._number, fields.topic, fields.key, fields.max_num,
            fields.begin_timestamp, fields.end_timestamp, fields.is_unique,
        )  # fmt: skip
        try:
            self._turns.add(self._number, wanted)
        except InvalidArgument as error:
            return self._found([], str(error))
        self._calls[self._number] = call
        return None

    def work(self) -> int:
        """Go on with all queries; returns how many have ended, or can go on."""
        ended = self._turns.work()
        for number, _, found in ended:
            reply = refusal(found) if isinstance(found, PenstockError) else self._found(found)
            self._answer(self._calls.pop(number), reply)
        return len(ended) + self._turns.busy

    def _found(self, records: list[bytes], why: str = "") -> Reply:
        fields = QueryAnswer(*self._turns.last_update())
        if records:
            return Reply(fields, b"".join(records))
        remark = why or "no message of this topic and time has the key"
        return Reply(fields, code=Response.QUERY_NOT_FOUND, remark=remark)

    def release_deleted(self) -> None:
        self._turns.release_deleted()

    def close(self) -> None:
        self._turns.close()
