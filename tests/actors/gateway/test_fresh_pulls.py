"""Pulls at the ends of queues are answered with what the log has and the queues do not have yet."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.group_counts import GroupCounts
from penstock.actors.gateway.grouping.settings import GroupSettings
from penstock.actors.gateway.pulls import CATCH_UP_MS, LATELY_MS, Pulls
from penstock.actors.gateway.services import Services
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import TopicTable
from penstock.actors.reput import Reput
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import PULL_WAITS, PullAnswer, PullFields
from penstock.shared.filters.message_filter import parse_filter
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import record_at
from penstock.shared.process.doorbells import AHEAD_BYTES
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import load_topics, save_topics

WAIT_MS = 30_000


class Scene:
    """The gateway's pulls over a broker that a test drives, one client, and what it is answered."""

    def __init__(self, broker: Any, client: socket.socket) -> None:
        self.broker, self.clock = broker, broker.clock
        self._others = [broker.start(each) for each in (Committer, Flusher, Reput)]
        topics = load_topics(broker.paths.topics)
        topics.put("orders", 4, 0)
        save_topics(broker.paths.topics, topics)
        self.connection = Connection(client, ("127.0.0.1", 1), 0)
        self._answers: list[tuple[int, Reply]] = []
        self._number = 0
        self.start()

    def start(self) -> None:
        """A gateway that knows nothing yet."""
        broker = self.broker
        self.queues = QueueReader(broker.config, broker.run, broker.positions)
        self.fresh = FreshRecords(broker.config, broker.positions, self.queues.log, AHEAD_BYTES)
        topics = TopicTable(broker.config, broker.positions)
        topics.look()
        self.pulls = Pulls(
            self.queues, self.fresh, topics, GroupSettings(broker.config), broker.positions,
            "wrote", Serving(self._answer, self._fail), self._answer,
            self.clock.monotonic_ms, GroupCounts(),
        )  # fmt: skip
        self.turn()

    def _answer(self, call: Call, reply: Reply) -> None:
        self._answers.append((call.command.opaque, reply))

    def _fail(self, call: Call, error: Exception) -> None:
        raise error

    def pull(
        self,
        offset: int,
        most: int = 32,
        flag: int = PULL_WAITS,
        tags: str = "*",
        wait_ms: int = WAIT_MS,
    ) -> int:
        self._number += 1
        fields = PullFields("G", "orders", 0, offset, most, flag, 0, wait_ms)
        call = Call(
            self.connection, Command(Request.PULL_MESSAGE, self._number), self.clock.monotonic_ms()
        )
        chosen = None if tags == "*" else parse_filter("TAG", tags)
        self.pulls.take(call, fields, chosen)
        self.turn()
        return self._number

    def turn(self) -> None:
        self.pulls.work(self.clock.monotonic_ms())

    def dispatch(self) -> None:
        """The queues get what the log has."""
        positions = self.broker.positions
        while positions["queued"] < positions["wrote"]:
            for each in self._others:
                each.work()
            self.clock.advance(1)

    def answers(self) -> list[tuple[int, Response, list[int], PullAnswer]]:
        """Number, code, offsets of the messages, and where the client goes on."""
        taken, self._answers = self._answers, []
        found = []
        for number, reply in taken:
            assert isinstance(reply.fields, PullAnswer), reply
            offsets, at = [], 0
            while at < len(reply.body):
                record = decode_record(bytes(reply.body), at)
                offsets.append(record.queue_offset)
                at += record.total_size
            found.append((number, reply.code, offsets, reply.fields))
        return found


@pytest.fixture
def scene(pipeline: Callable[..., Any]) -> Iterator[Scene]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = Scene(pipeline(flush_disk_type="async"), ours)
        made.broker.append()
        made.dispatch()
        made.turn()
        yield made
        made.queues.close()


def test_a_pull_at_the_end_has_each_message_before_its_queue_does(scene: Scene) -> None:
    for offset in (1, 2):
        number = scene.pull(offset)
        assert scene.answers() == [] and scene.pulls.waiting == 1
        scene.broker.append()
        assert scene.pulls.has_grown
        scene.turn()
        assert scene.answers() == [
            (number, Response.SUCCESS, [offset], PullAnswer(offset + 1, 0, offset + 1))
        ]
        assert scene.pulls.waiting == 0
    assert scene.queues.range(scene.queues.queues("orders")[0]) == (0, 1), "no entry has come"
    number = scene.pull(3)
    scene.dispatch()
    scene.turn()
    assert scene.answers() == [] and not scene.pulls.has_grown, "it is none that the client has"
    scene.broker.append()
    scene.turn()
    assert scene.answers() == [(number, Response.SUCCESS, [3], PullAnswer(4, 0, 4))]


def test_a_message_that_only_the_queue_will_have_is_waited_for_though_a_later_one_is_here(
    scene: Scene,
) -> None:
    """A gateway that has just begun to look at the log knows nothing of what was stored before."""
    scene.start()
    scene.broker.append()
    number = scene.pull(1)
    scene.broker.append()
    scene.turn()
    assert scene.answers() == []
    last = scene.pull(1, flag=0)
    assert scene.answers() == [(last, Response.PULL_NOT_FOUND, [], PullAnswer(1, 0, 1))]
    scene.dispatch()
    scene.turn()
    assert scene.answers() == [(number, Response.SUCCESS, [1, 2], PullAnswer(3, 0, 3))]


def test_a_pull_has_no_more_of_the_newest_messages_than_it_asks_for(scene: Scene) -> None:
    number = scene.pull(1, most=2)
    scene.broker.append(5)
    scene.turn()
    assert scene.answers() == [(number, Response.SUCCESS, [1, 2], PullAnswer(3, 0, 6))]
    second = scene.pull(3)
    assert scene.answers() == [(second, Response.SUCCESS, [3, 4, 5], PullAnswer(6, 0, 6))]


def test_a_pull_that_may_not_wait_stands_at_the_log_s_end(scene: Scene) -> None:
    scene.pull(1)
    scene.broker.append()
    scene.turn()
    scene.answers()
    number = scene.pull(2, flag=0)
    scene.turn()
    assert scene.answers() == [(number, Response.PULL_NOT_FOUND, [], PullAnswer(2, 0, 2))]


def test_a_message_that_stands_in_the_pool_alone_is_found_by_its_place_and_is_the_queues_last(
    scene: Scene,
) -> None:
    """Its client may give it back at once, or ask how far the queue is."""
    positions, config = scene.broker.positions, scene.broker.config
    parts: Any = SimpleNamespace(
        config=config, positions=positions, queues=scene.queues, fresh=scene.fresh
    )
    services, log_at = cast(Services, parts), partial(Services.log_at, parts)
    scene.pull(1)
    first = positions["wrote"]
    scene.broker.append(2)
    scene.turn()
    assert positions["committed"] == first
    raw = record_at(log_at, first)
    assert raw is not None and decode_record(raw).queue_offset == 1
    assert Services.range_of(services, "orders", 0) == (0, 3)
    assert Services.range_of(services, "orders", 1) == (0, 0)
    wrote = positions["wrote"]
    assert (log_at(wrote, 4), len(log_at(wrote - 4, 9)), len(log_at(0, wrote))) == (b"", 4, wrote)
    segment_bytes = config.mapped_file_size_commit_log_bytes
    scene.broker.append(4, size=segment_bytes // 4)
    assert len(log_at(first, 2 * segment_bytes)) == segment_bytes - first, "not past its segment"
    before = log_at(0, wrote)
    scene.dispatch()
    assert log_at(0, wrote) == before and Services.range_of(services, "orders", 0)[1] == 7
    scene.pull(7)
    scene.broker.append()
    scene.turn()
    assert Services.range_of(services, "orders", 0)[1] == 8
    positions.initialise("deleted_topics", 1)
    assert Services.range_of(services, "orders", 0)[1] == 7, "it may be of the one that was deleted"


def test_a_pull_that_may_not_wait_has_the_newest_too_and_takes_them_from_none_that_waits(
    scene: Scene,
) -> None:
    first = scene.pull(1)
    scene.broker.append()
    fields = PullFields("G", "orders", 0, 1, 32, 0, 0, 0)
    call = Call(scene.connection, Command(Request.PULL_MESSAGE, 99), scene.clock.monotonic_ms())
    scene.pulls.take(call, fields, None)
    scene.turn()
    found = [(number, offsets) for number, _, offsets, _ in scene.answers()]
    assert found == [(99, [1]), (first, [1])]


def test_a_pull_past_its_queue_s_end_is_looked_at_when_something_may_have_come_for_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.pull(1)
    scene.broker.append()
    scene.turn()
    scene.answers()
    scene.pull(2)
    reads, read = [], scene.pulls._read

    def counted(*asked: Any) -> Any:
        reads.append(asked)
        return read(*asked)

    monkeypatch.setattr(scene.pulls, "_read", counted)
    scene.broker.append(topic="others")
    scene.broker.append(queue_id=1)
    scene.turn()
    assert reads == []
    scene.broker.append()
    scene.turn()
    assert (len(reads), len(scene.answers())) == (1, 1)
    scene.broker.append()
    scene.turn()
    assert scene.fresh.is_behind, "without a pull the log is not looked at"


def test_a_filter_looks_at_queues_and_its_client_counts_for_a_while(scene: Scene) -> None:
    number = scene.pull(1, tags="a")
    assert (scene.pulls.waiting, scene.pulls.filtered(scene.clock.monotonic_ms())) == (0, 1)
    scene.broker.append(properties={"TAGS": "a"})
    scene.turn()
    assert scene.answers() == []
    other = scene.pull(1, tags="b", flag=0)
    assert scene.answers() == [(other, Response.PULL_NOT_FOUND, [], PullAnswer(1, 0, 1))]
    scene.dispatch()
    scene.turn()
    assert scene.answers() == [(number, Response.SUCCESS, [1], PullAnswer(2, 0, 2))]
    assert (scene.pulls.waiting, scene.pulls.filtered(scene.clock.monotonic_ms())) == (0, 1)
    scene.clock.advance(LATELY_MS)
    scene.pull(2)
    assert (scene.pulls.waiting, scene.pulls.filtered(scene.clock.monotonic_ms())) == (1, 0)


@pytest.mark.parametrize("wait_ms", [0, CATCH_UP_MS // 2, WAIT_MS])
def test_nobody_is_moved_back_by_queues_that_are_late(scene: Scene, wait_ms: int) -> None:
    """The gateway that told of these messages has died, and the reput stands still."""
    scene.broker.append(2)
    scene.start()
    number = scene.pull(3, wait_ms=wait_ms)
    scene.clock.advance(max(CATCH_UP_MS, wait_ms) - 1)
    scene.turn()
    assert scene.answers() == []
    scene.clock.advance(1 + CATCH_UP_MS // 10)  # times are looked at as often
    scene.turn()
    assert scene.answers() == [(number, Response.PULL_NOT_FOUND, [], PullAnswer(3, 0, 1))]
    scene.pull(3, wait_ms=wait_ms)
    scene.dispatch()
    scene.turn()
    assert scene.answers() == [] or not wait_ms
    past = scene.pull(4)
    assert scene.answers()[-1] == (past, Response.PULL_OFFSET_MOVED, [], PullAnswer(3, 0, 3))
