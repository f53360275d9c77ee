"""What becomes of half messages whose frame was refused, or not flushed in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from penstock.actors.transactions import endings
from penstock.actors.transactions.endings import Ending, Endings
from penstock.actors.transactions.half_queues import HalfQueues
from penstock.actors.transactions.half_table import COMMITTED
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.clock import ManualClock
from penstock.shared.errors import InvalidMessage, PenstockError, QueueNotFound
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import Record, pack_host
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.half import CHECK_TIMES, discarded
from penstock.shared.messaging.system_topics import HALF_TOPIC
from penstock.shared.messaging.system_topics import TRANS_CHECK_MAX_TIME_TOPIC as GIVEN_UP
from penstock.shared.wire.messages import (
    Append,
    OutOfStep,
    Refused,
    Welcome,
    decode_produce_request,
    refusal,
)

if TYPE_CHECKING:
    from penstock.shared.queue.reader import QueueReader

HOST = pack_host("127.0.0.1", 10911)
Scenes = Callable[..., Any]


class Writing:
    """The endings of an actor whose writer is played by hand, and who has no earlier run."""

    def __init__(self, queues_left: int = 4) -> None:
        self.sender = RecordSender("", "transactions", 1)
        self.endings = Endings(
            *(self.sender, HalfQueues(cast("QueueReader", None)), Shape(), HOST, 0, ManualClock()),
            lambda topic: queues_left,
        )
        self.frames()
        self.welcome()

    def welcome(self) -> None:
        """Open the session that the sender asks for."""
        asked = self.sender._producer, self.sender._session, 1
        self.sender.take(Welcome(*asked, 5000, 1 << 20, 1 << 20, 1, 8, False, False), 0)

    def commit(self, number: int) -> Ending:
        """A half message, of which this is the offset, ends with a copy for orders/3."""
        copy = Record("orders", b"%d" % number, b"", 3, born_host=HOST)
        ending = Ending(number, COMMITTED, copy)
        self.endings.put(ending, Record("half", b"", b"", physical_offset=100))
        return ending

    def frames(self) -> list[Append]:
        """What the sender sends now."""
        found = [decode_produce_request(parts[0]) for parts in self.sender.outgoing(0)]
        return [each for each in found if isinstance(each, Append)]

    def refuse(self, frame: Append, error: PenstockError) -> list[Any]:
        """The endings that are over with this answer."""
        self.sender.take(refusal(error, frame.seq, frame.session), 0)
        return list(self.endings.settled())


def _sent(frames: list[Append]) -> list[tuple[int, bool]]:
    """Of each frame how many copies it has, and whether the writer is to look for each of them."""
    return [
        (sum(run.count for run in frame.runs if run.topic == "orders"), frame.scattered)
        for frame in frames
    ]


def test_one_that_may_be_stored_already_is_in_no_frame_with_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For such a frame the writer would not look, and the message would be there twice."""
    monkeypatch.setattr(endings, "MAX_IN_FLIGHT", 1)
    it = Writing()
    for number in range(2):
        it.commit(number)
    assert it.endings.leave() == 1
    (frame,) = it.frames()
    it.commit(2)
    assert it.endings.leave() == 0
    it.sender.take(OutOfStep(frame.producer, frame.session, frame.seq), 0)  # another writer
    it.frames()
    it.welcome()
    (again,) = it.frames()
    assert it.refuse(again, QueueNotFound("there is no such queue", 3)) == []
    monkeypatch.setattr(endings, "MAX_IN_FLIGHT", 8)
    assert it.endings.leave() == 3
    sent = it.frames()
    it.welcome()
    sent += it.frames()
    assert _sent([frame, again, *sent]) == [
        *((2, False), (2, False)),
        *((1, False), (1, True), (1, True)),
    ]


def test_one_whose_topic_is_gone_or_that_is_wrong_is_over_with_its_refusal() -> None:
    gone, wrong = QueueNotFound("there is no such queue", 3), InvalidMessage("it is wrong", 3)
    for queues_left, error in ((0, gone), (4, wrong)):
        it = Writing(queues_left)
        ending = it.commit(0)
        it.endings.leave()
        (frame,) = it.frames()
        ((found, why),) = it.refuse(frame, error)
        assert found is ending and not found.stored
        assert why is not None and why.status == error.status
        assert len(it.endings) == 0


def test_where_the_disk_does_not_answer_in_time_that_is_told_and_the_outcome_counts(
    scene: Scenes,
) -> None:
    it = scene()
    half, other, producer = it.half(b"a"), it.half(b"b"), it.producer()
    it.dispatched()
    flusher = it.others.pop(1)
    wrote = it.broker.positions["wrote"]
    producer.tell(half, "commit")
    it.until(lambda: it.broker.positions["wrote"] > wrote, "the frame")
    it.broker.clock.advance(it.broker.config.sync_flush_timeout_ms)
    answer = producer.answer()
    assert isinstance(answer, Refused) and answer.status == "FLUSH_DISK_TIMEOUT"
    it.others.insert(1, flusher)
    assert producer.end(other, "commit").outcome == "commit"
    assert producer.end(half, "rollback").outcome == "commit"
    it.dispatched()
    assert [each.body for each in it.queue("orders", 1)] == [b"a", b"b"]


@pytest.mark.parametrize("crc", [False, True])
def test_what_an_earlier_run_has_given_up_is_kept_once_though_its_mark_is_lost(
    scene: Scenes, crc: bool
) -> None:
    """And one with the same body, whose copy is lost as well, is not taken for it."""
    it = scene(
        transaction_check_max=2, transaction_check_interval_ms=8000, enabled_append_prop_crc=crc
    )
    halves = [it.half(**{CHECK_TIMES: "2"}) for _ in range(2)]
    it.dispatched()
    copy = discarded(it.queue(HALF_TOPIC)[1])
    it.put(replace(copy, properties=with_prop_crc_room(copy.properties, crc)))
    it.dispatched()
    positions = it.broker.positions
    positions.initialise("run_began", positions["wrote"])
    it.crash()
    it.until(lambda: it.pass_time(1000) or positions["transactions_discarded"] == 2, "both")
    it.dispatched()
    kept = [decode_properties(each.properties)["UNIQ_KEY"] for each in it.queue(GIVEN_UP)]
    assert sorted(kept) == [half.key for half in halves]
