"""Single answers that a consumer core may hear, and what it asks next."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Part
from penstock.client.core.selection import choose
from penstock.client.core.timeouts import REPEAT_MS
from penstock.shared.errors import (
    ProtocolError,
    QueueNotFound,
    QueueUnreadable,
    StoreDamaged,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import MOST_CREDIT, QueueRange, QueueSlice, encode, refusal


class Talk:
    """A core that has heard of its topic's queues, and has a pull on its way."""

    def __init__(self, counts: list[int], ends: Any = None, **how: Any) -> None:
        self.now_ms = 1000
        self.core = ConsumerCore("tcp://broker", "t", self.now_ms, timeout_ms=60_000, **how)
        if ends is not None:
            self.core.end_at(ends)
        self.describe(counts)
        self.pull = self.asked()

    def asked(self) -> Any:
        ((header,),) = self.core.outgoing(self.now_ms)
        return messages.decode_consume_request(header)

    def hear(self, answer: Any, payload: bytes = b"") -> None:
        self.core.received([encode(answer), payload], self.now_ms)

    def bring(self, offset: int, bodies: list[bytes]) -> None:
        """Queue 0's messages from that offset on, as the answer to the pull."""
        stop = offset + len(bodies)
        records = b"".join(
            encode_record(Record("t", body, queue_id=0, queue_offset=at))
            for at, body in enumerate(bodies, offset)
        )
        part = QueueSlice(0, offset, stop, 0, stop, len(records))
        self.hear(messages.Pulled(self.pull.request, (part,), (0,), ""), records)

    def describe(self, counts: list[int]) -> None:
        asked = self.asked()
        assert isinstance(asked, messages.Describe)
        queues = tuple(QueueRange(each, 0, count, count) for each, count in enumerate(counts))
        self.hear(messages.Described(asked.request, "t", True, queues))


def test_a_topic_that_has_lost_queues_is_asked_about_and_read_on_where_it_was() -> None:
    talk = Talk([4, 5, 6])
    pulled = tuple(QueueSlice(queue, 0, 2, 0, 9, 0) for queue in (0, 1, 2))
    talk.hear(messages.Pulled(talk.pull.request, pulled, (0, 1, 2), ""))
    again = talk.asked()
    talk.hear(refusal(QueueNotFound("no such queue", 2), again.request))
    talk.describe([4, 0])
    assert talk.core.cursors == {0: 2, 1: 2}
    pull = talk.asked()
    assert isinstance(pull, messages.Pull) and pull.cursors == {0: 2, 1: 2}
    assert pull.known_queues == 1, "one of its queues has messages"


@pytest.mark.parametrize("follow", [True, False])
def test_a_topic_that_has_gone_meanwhile_is_an_error_and_not_an_empty_topic(follow: bool) -> None:
    talk = Talk([4, 5], follow=follow)
    talk.hear(refusal(QueueNotFound("no such queue", 1), talk.pull.request))
    asked = talk.asked()
    assert isinstance(asked, messages.Describe)
    with pytest.raises(TopicNotFound):
        talk.hear(messages.Described(asked.request, "t", False, ()))


def test_of_queues_that_it_named_one_that_is_not_there_is_an_error() -> None:
    talk = Talk([4, 5, 6], queues=[0, 2])
    talk.hear(refusal(QueueNotFound("no such queue", 2), talk.pull.request))
    with pytest.raises(QueueNotFound):
        talk.core.take()


def test_nor_may_a_start_name_one_where_the_consumer_does_not_wait_for_it() -> None:
    """It was left out, and who had written 9 for 0 read queue 0 from its beginning."""
    with pytest.raises(QueueNotFound, match="9"):
        Talk([4, 5], start={0: 1, 9: 2}, follow=False)
    assert Talk([4, 5], start={1: 2}, follow=False).core.cursors == {0: 0, 1: 2}
    assert Talk([4, 5], start={9: 2}).core.cursors == {0: 0, 1: 0}, "it may come"


def test_a_queue_that_ends_before_the_offset_is_read_on_from_its_end_and_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talk = Talk([9], start={0: 7})
    talk.hear(messages.Pulled(talk.pull.request, (QueueSlice(0, 7, 4, 0, 4, 0),), (0,), ""))
    assert talk.core.cursors == {0: 4} and talk.core.starts == {0: 7}
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "queue 0 of t ends at offset 4: going on there instead of at 7"


def test_a_slice_without_a_byte_moves_on_and_one_that_is_longer_than_the_answer_does_not() -> None:
    talk = Talk([9])
    talk.hear(messages.Pulled(talk.pull.request, (QueueSlice(0, 0, 5, 0, 9, 0),), (0,), ""))
    assert talk.core.cursors == {0: 5} and talk.core.take() == []
    pull = talk.asked()
    assert pull.cursors == {0: 5}
    for size in (-1, 1):
        answer = messages.Pulled(pull.request, (QueueSlice(0, 5, 6, 0, 9, size),), (0,), "")
        with pytest.raises(ProtocolError, match="shorter than its header says"):
            talk.hear(answer)
        pull = talk.asked()
        assert pull.cursors == {0: 5}


def test_who_has_heard_of_a_new_queue_waits_for_what_comes_and_not_for_news_of_it() -> None:
    """A pull that knew of fewer would be answered at once, again and again."""
    talk = Talk([4, 0])
    assert talk.pull.known_queues == 1
    for known in ((0,), (0, 1), (0, 1, 2)):
        pulled = tuple(
            QueueSlice(queue, talk.core.cursors[queue], 1, 0, 9, 0) for queue in known if queue < 2
        )
        talk.hear(messages.Pulled(talk.pull.request, pulled, known, ""))
        talk.pull = talk.asked()
        assert talk.pull.known_queues == len(known)
        assert talk.pull.cursors.keys() == {0, 1, *known}


def test_a_consumer_that_follows_asks_once_for_several_answers_and_again_after_a_lost_one() -> None:
    talk = Talk([0])
    assert talk.pull.credit == MOST_CREDIT > 1
    for offset in (0, 1):
        part = QueueSlice(0, offset, offset + 1, 0, offset + 1, 0)
        talk.hear(messages.Pulled(talk.pull.request, (part,), (0,), "", credit=9 - offset))
        assert talk.core.outgoing(talk.now_ms) == []
    assert talk.core.cursors == {0: 2}
    part = QueueSlice(0, 3, 4, 0, 4, 0)
    talk.hear(messages.Pulled(talk.pull.request, (part,), (0,), "", credit=6))
    again = talk.asked()
    assert again.cursors == {0: 2} and again.credit == MOST_CREDIT
    assert again.request == talk.pull.request + 1, "what comes to the other is dropped"


def test_a_pull_that_goes_on_and_is_silent_is_replaced_by_one_from_where_the_consumer_is() -> None:
    talk = Talk([0])
    part = QueueSlice(0, 0, 1, 0, 1, 0)
    talk.hear(messages.Pulled(talk.pull.request, (part,), (0,), "", credit=9))
    talk.now_ms += REPEAT_MS
    again = talk.asked()
    assert again.cursors == {0: 1} and again.request == talk.pull.request + 1


def test_one_that_stops_at_the_end_asks_for_one_answer() -> None:
    assert Talk([4], follow=False).pull.credit == 1


def test_a_consumer_follows_by_the_socket_and_asks_steadily_unless_it_is_told_otherwise() -> None:
    talk = Talk([4])
    assert talk.pull.credit == MOST_CREDIT and not talk.pull.direct
    talk.now_ms += REPEAT_MS
    assert talk.asked() == talk.pull and not talk.core.is_waiting_long


@pytest.mark.parametrize("ends", [{1: 3}, {1: 3, 2: 99}])
def test_one_that_stops_ends_before_the_offset_that_it_was_given_for_a_queue(ends: Any) -> None:
    talk = Talk([4, 9, 5], ends, follow=False)
    assert talk.core.left == 4 + 3 + 5
    assert Talk([4, 9], 2, follow=False).core.left == 2 + 2
    assert Talk([4, 9], {0: 0, 1: 1}, follow=False).pull.cursors == {1: 0}


def test_one_that_stops_goes_on_after_what_has_come_and_never_past_the_end() -> None:
    talk = Talk([9], follow=False)
    for offset, stop, at in ((0, 3, 3), (3, 12, 9)):
        part = QueueSlice(0, offset, stop, 0, 12, 0)
        talk.hear(messages.Pulled(talk.pull.request, (part,), (0,), ""))
        assert talk.core.cursors == {0: at}
        if at < 9:
            talk.pull = talk.asked()
    assert talk.core.outgoing(talk.now_ms) == []
    assert talk.core.wait_ms(talk.now_ms) == REPEAT_MS, "there is nothing to wait for"


@pytest.mark.parametrize("selection", [None, choose("TagA", "", "", 0)])
def test_bodies_are_of_those_messages_that_would_be_taken_whole(selection: Any) -> None:
    """What is past the end, or is not wanted, is left out of an answer by the client itself."""
    talk = Talk([2], follow=False, selection=selection)
    talk.bring(0, [b"a", b"b", b"too late"])
    bodies = [bytes(getattr(each, "body", each)) for each in talk.core.take_bodies()]
    assert bodies == ([] if selection else [b"a", b"b"])
    assert talk.core.finished


def test_a_refusal_that_says_nothing_of_queues_is_raised_and_nothing_is_asked_again() -> None:
    talk = Talk([4])
    talk.hear(refusal(StoreUnavailable("the reader is not there", 0), talk.pull.request))
    assert talk.core.outgoing(talk.now_ms) == []
    with pytest.raises(StoreUnavailable):
        talk.core.take()
    assert isinstance(talk.asked(), messages.Pull)


def test_a_queue_waits_too_where_nobody_can_say_which_of_its_messages_is_damaged() -> None:
    def of_part(part: Part) -> tuple[list[int], bool]:
        raise StoreDamaged("a record that the broker has sent is damaged", "one of them")

    talk = Talk([2])
    talk.bring(0, [b"a", b"b"])
    with pytest.raises(QueueUnreadable, match="one of them"):
        talk.core.take_as(of_part, list)
    assert talk.core.cursors == {0: 0} and not talk.core.ready
