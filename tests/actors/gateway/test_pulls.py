"""Pulls that wait in the gateway, queues that grow just before they are counted, and what filters
may take of a turn."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.pulls import FILTERS_MS, SHARE_MS, Pulls, _Pull
from penstock.actors.reput import Reput
from penstock.remoting.codes import Request
from penstock.remoting.command import Command
from penstock.remoting.fields import PULL_WAITS, PullFields
from penstock.shared.filters.message_filter import parse_filter
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.queue.reader import QueueReader

NONE = cast(Any, None)


class Fresh:
    """What nobody looks at."""

    is_behind = False


def test_queues_that_grew_just_before_a_pull_was_counted_are_looked_at_again() -> None:
    """The reput has seen nobody wait, and notified nobody."""
    positions = cast(Any, {"queued": 7})
    fresh = cast(Any, Fresh())
    pulls = Pulls(NONE, fresh, NONE, NONE, positions, "flushed", NONE, NONE, lambda: 0, NONE)
    assert not pulls.has_grown
    pulls._queued = 7
    ours, theirs = socket.socketpair()
    with ours, theirs:
        by = Connection(ours, ("127.0.0.1", 1), 0)
        fields = PullFields("G", "t", 0, 0, 1, PULL_WAITS, 0, 1000)
        pulls._hold(_Pull(Call(by, Command(Request.PULL_MESSAGE, 1), 0), fields, None, 1000, 0))
        assert not pulls.has_grown
        positions["queued"] = 8
        assert pulls.has_grown
        positions["queued"], fresh.is_behind = 7, True
        assert pulls.has_grown, "and so is the log's end"


def test_filters_have_some_ms_of_a_turn_and_each_has_a_share_however_many_there_are(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """By a clock that goes on by a millisecond at each look."""
    broker, clock = pipeline(), count()
    actors = [broker.start(each) for each in (Committer, Flusher, Reput)]
    for number in range(40):
        broker.append(properties={"n": str(number)})
    while broker.positions["queued"] < broker.positions["wrote"]:
        work(*actors)
        broker.clock.advance(100)
    queues = QueueReader(broker.config, broker.run, broker.positions)
    pulls = Pulls(
        queues, NONE, NONE, NONE, broker.positions, "wrote", NONE, NONE, lambda: next(clock), NONE
    )
    slot = queues.queues("orders")[0]
    fields = PullFields("G", "orders", 0, 0, 32, 0, 0, 0)
    pull = _Pull(NONE, fields, parse_filter("SQL92", "n > 1000"), 0, 0)
    for now_ms in (5, 6):
        # the first has all that there is, and one message is looked at without a clock
        looked = [pulls._records(pull, slot, 0, 40, now_ms)[1] for _ in range(4)]
        assert looked == [FILTERS_MS, *[SHARE_MS] * 3]
    queues.close()


def test_a_queue_that_is_deleted_while_a_pull_reads_it_is_looked_up_again(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline()
    actors = [broker.start(each) for each in (Committer, Flusher, Reput)]
    broker.append()
    while broker.positions["queued"] < broker.positions["wrote"]:
        work(*actors)
        broker.clock.advance(100)
    queues = QueueReader(broker.config, broker.run, broker.positions)
    table, real = QueueTable(broker.run.queues, writable=True), queues.range

    def range_of(slot: int) -> tuple[int, int]:
        found = real(slot)
        table.mark_deleted(slot)
        return found

    monkeypatch.setattr(queues, "range", range_of)
    free = cast(Any, SimpleNamespace(check_pull=lambda *asked: None))
    answers: list[Any] = []
    pulls = Pulls(
        queues, NONE, free, free, broker.positions, "wrote", NONE,
        lambda call, reply: answers.append(reply), lambda: 0, NONE,
    )  # fmt: skip
    pull = _Pull(NONE, PullFields("G", "orders", 0, 0, 32, 0, 0, 0), None, 1000, 0)
    assert pulls._try(pull, 5) is pull and not answers
    queues.close()
