"""A reader of queues that come and go, and a plain model of each: its next offset, if paused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from penstock.client.core.groups.assigned_core import REFUSED_MS, STALE_MS, AssignedCore
from penstock.client.core.reading.records_at_hand import AHEAD_BYTES
from penstock.client.core.start import StartAt
from penstock.client.core.timeouts import MAX_REPEAT_MS, REPEAT_MS
from penstock.shared.errors import (
    NoPermission,
    PenstockError,
    QueueNotFound,
    QueueUnreadable,
    TopicNotFound,
)
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_QUEUE_ID
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal
from penstock.shared.wire.pulled_parts import Place

QUEUES = range(3)
QUEUE = st.sampled_from(QUEUES)


def _core() -> AssignedCore:
    usual: dict[str, Any] = {"timeout_ms": 10**9, "max_body_bytes": 1000, "direct": False}
    return AssignedCore("tcp://x:1", "orders", selection=None, **usual)


class AnyHistory(RuleBasedStateMachine):
    """Queues are added, paused and removed while answers come, are late or never come."""

    def __init__(self, make_reader: Callable[..., Any]) -> None:
        super().__init__()
        self.reader, self.core, self.now_ms = make_reader(), _core(), 1000
        self.requests: list[tuple[bytes, ...]] = []
        self.answers: list[list[bytes]] = []
        # of each queue that is read, the offset that comes next
        self.model: dict[int, int] = {}
        self.paused: set[int] = set()

    @rule(queue_id=QUEUE, at_most=st.integers(1, 9))
    def some_of_a_new_queue_are_at_hand(self, queue_id: int, at_most: int) -> None:
        self.reader.append(queue_id, 9)
        self.add(queue_id, 0)
        self.time_passes(MAX_REPEAT_MS)
        self.ask(True)
        self.read(at_most, True)
        self.arrive()

    @rule(queue_id=QUEUE, count=st.integers(1, 9))
    def messages_come(self, queue_id: int, count: int) -> None:
        self.reader.append(queue_id, count)

    @rule(queue_id=QUEUE, low=st.integers(0, 9))
    def expire(self, queue_id: int, low: int) -> None:
        self.reader.expire(queue_id, low)

    @rule(queue_id=QUEUE, offset=st.integers(0, 9))
    def add(self, queue_id: int, offset: int) -> None:
        known = self.reader.queues.get(queue_id)
        self.model[queue_id] = min(offset, len(known.bodies) if known else 0)
        self.paused.discard(queue_id)
        self.core.add(queue_id, self.model[queue_id])

    @rule(queue_id=QUEUE)
    def remove(self, queue_id: int) -> None:
        self.model.pop(queue_id, None)
        self.paused.discard(queue_id)
        self.core.remove(queue_id)

    @rule(queue_id=QUEUE, paused=st.booleans())
    def pause(self, queue_id: int, paused: bool) -> None:
        if queue_id in self.model:
            self.core.pause(queue_id, paused)
            (self.paused.add if paused else self.paused.discard)(queue_id)

    @rule(ms=st.sampled_from([1, STALE_MS, REPEAT_MS, MAX_REPEAT_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(connected=st.booleans())
    def ask(self, connected: bool) -> None:
        for parts in self.core.outgoing(self.now_ms):
            asked = messages.decode_consume_request(parts[0])
            assert isinstance(asked, messages.Pull)
            if connected:
                self.requests.append(parts)
            else:
                self.core.not_connected(self.now_ms)

    @rule(at_most=st.integers(0, 5), final=st.booleans())
    def read(self, at_most: int, final: bool) -> None:
        for parts in self.requests[-1:]:
            answer, held = self.reader.answer(parts, at_most, final)
            if answer is not None:
                self.answers.append(answer)
            self.requests = [] if held is None else [held]

    @rule()
    def connection_ends(self) -> None:
        self.requests, self.answers = [], []
        self.core.connection_lost()

    @rule()
    def arrive(self) -> None:
        answers, self.answers = self.answers, []
        for answer in answers:
            self.core.received(answer, self.now_ms)

    @rule()
    def take(self) -> None:
        taken = self.core.take_queue()
        if taken is None:
            return
        at = self.model[taken.queue_id]
        low = self.reader.queues[taken.queue_id].low
        offsets = [each.queue_offset for each in taken.messages]
        if offsets:
            assert offsets == list(range(at, taken.stop)), "each once, in order"
        else:
            assert at < taken.stop <= low, "it has expired"
        assert (taken.size > 0) == bool(offsets)
        self.model[taken.queue_id] = taken.stop

    @invariant()
    def what_waits_is_what_is_counted(self) -> None:
        assert self.core._at_hand.size_bytes == sum(part.size for part in self.core._at_hand._parts)
        assert self.core.positions.keys() == self.model.keys()
        for queue_id, at in self.core.positions.items():
            low = self.reader.queues[queue_id].low if queue_id in self.reader.queues else 0
            assert at == self.model[queue_id] or self.model[queue_id] < at <= low
        assert {each for each in self.model if self.core.is_paused(each)} == self.paused

    @invariant()
    def it_sleeps_no_longer_than_it_may(self) -> None:
        assert 0 <= self.core.wait_ms(self.now_ms) <= MAX_REPEAT_MS

    def teardown(self) -> None:
        """When everything works, all that is asked for comes."""
        for _ in range(60):
            self.time_passes(MAX_REPEAT_MS)
            self.ask(True)
            self.read(1000, True)
            self.arrive()
            while self.core.ready:
                self.take()
        for queue_id, at in self.model.items():
            known = self.reader.queues.get(queue_id)
            assert queue_id in self.paused or at == (len(known.bodies) if known else 0)


def test_any_history_gives_each_message_of_a_queue_once_and_in_order(
    make_reader: Callable[..., Any],
) -> None:
    few = settings(stateful_step_count=40)
    run_state_machine_as_test(partial(AnyHistory, make_reader), settings=few)


def test_a_paused_queue_is_not_asked_for_and_the_others_are(
    make_reader: Callable[..., Any],
) -> None:
    core = _core()
    for queue_id in QUEUES:
        core.add(queue_id, 5)
    core.pause(1, True)
    ((header,),) = core.outgoing(0)
    asked = messages.decode_consume_request(header)
    assert isinstance(asked, messages.Pull) and asked.cursors == {0: 5, 2: 5}


def test_a_held_pull_is_asked_for_again_each_time_later_and_soon_after_a_lost_connection() -> None:
    core = _core()
    core.add(0, 0)
    sent: list[int] = []
    for now_ms in range(20_000):
        if core.outgoing(now_ms):
            sent.append(now_ms)
        if sent[-1] == now_ms:
            assert core.wait_ms(now_ms) > 0
    gaps = [after - before for before, after in zip(sent, sent[1:], strict=False)]
    assert gaps[:4] == [REPEAT_MS, 2 * REPEAT_MS, 4 * REPEAT_MS, 8 * REPEAT_MS]
    assert set(gaps[4:]) == {MAX_REPEAT_MS}
    core.connection_lost()
    assert core.wait_ms(sent[-1] + 150) == REPEAT_MS - 150
    assert not core.outgoing(sent[-1] + REPEAT_MS - 1) and core.outgoing(sent[-1] + REPEAT_MS)


def test_a_pull_that_does_not_name_a_new_queue_is_replaced_when_it_is_stale() -> None:
    core = _core()
    core.add(0, 0)
    assert core.outgoing(0) and not core.outgoing(10)
    cursors, now_ms = {0: 0}, 10
    for queue_id in (1, 2):  # the second one is waited for as long as the first
        core.add(queue_id, 7)
        cursors[queue_id] = 7
        now_ms += 10
        assert not core.outgoing(now_ms) and not core.outgoing(now_ms + STALE_MS - 1)
        assert core.wait_ms(now_ms) == STALE_MS
        now_ms += STALE_MS
        ((header,),) = core.outgoing(now_ms)
        asked = messages.decode_consume_request(header)
        assert isinstance(asked, messages.Pull) and asked.cursors == cursors
        assert core.wait_ms(now_ms) == REPEAT_MS, "nothing is stale any more"


def test_a_pull_without_a_queue_that_is_paused_again_is_not_replaced() -> None:
    core = _core()
    core.add(0, 0)
    assert core.outgoing(0)
    for now_ms, queue_id in ((10, 1), (10 + STALE_MS, 2)):
        core.add(queue_id, 7)
        assert not core.outgoing(now_ms) and core.wait_ms(now_ms) == STALE_MS
        core.pause(queue_id, True)
        assert not core.outgoing(now_ms + 5) and core.wait_ms(now_ms + 5) > STALE_MS


def test_nor_is_one_that_names_a_queue_which_is_paused_by_now() -> None:
    core = _core()
    for queue_id in (0, 1):
        core.add(queue_id, 0)
    assert core.outgoing(0)
    core.pause(1, True)
    assert not core.outgoing(10) and core.wait_ms(10) == REPEAT_MS - 10
    assert not core.outgoing(10 + STALE_MS)


def test_when_enough_is_at_hand_nothing_is_asked_for_until_it_is_taken(
    make_reader: Callable[..., Any],
) -> None:
    core, reader = _core(), make_reader()
    for queue_id in (0, 1):
        reader.append(queue_id, AHEAD_BYTES // 150)
        core.add(queue_id, 0)
    rounds = 0
    while requests := core.outgoing(rounds * REPEAT_MS):
        answer, _ = reader.answer(requests[0], 2000, True)
        core.received(answer, rounds * REPEAT_MS)
        rounds += 1
    assert rounds > 3 and core.cursors[1] > 0, "answers have parts of both queues"
    assert core._at_hand.size_bytes >= AHEAD_BYTES
    sizes = 0
    while taken := core.take_queue():
        sizes += taken.size
    assert sizes >= AHEAD_BYTES and core._at_hand.size_bytes == 0
    assert core.outgoing(rounds * REPEAT_MS)


def test_a_queue_with_a_damaged_message_is_told_of_once_while_the_others_go_on(
    make_reader: Callable[..., Any],
) -> None:
    core, reader = _core(), make_reader()
    for queue_id in (0, 1):
        reader.append(queue_id, 4)
        core.add(queue_id, 0)
    answer, _ = reader.answer(core.outgoing(0)[0], 8, True)
    raw = bytearray(answer[1])
    third = raw.index(b"0/2") - AT_BODY_V4
    raw[third + AT_QUEUE_ID : third + AT_QUEUE_ID + 4] = (7).to_bytes(4, "big")
    core.received([answer[0], bytes(raw)], 0)
    taken = [core.take_queue() for _ in range(2)]
    assert [(each.queue_id, each.stop) for each in taken if each] == [(0, 2), (1, 4)]
    with pytest.raises(QueueUnreadable, match="topic orders, queue 0, offset 2"):
        core.take_queue()
    assert core.take_queue() is None, "it is told once"
    assert core.positions == {0: 2, 1: 4}
    ((header,),) = core.outgoing(REPEAT_MS)
    asked = messages.decode_consume_request(header)
    assert isinstance(asked, messages.Pull) and asked.cursors == {1: 4}


def told(core: AssignedCore, error: PenstockError, now_ms: int) -> None:
    """The request that leaves now is refused."""
    ((header,),) = core.outgoing(now_ms)
    number = messages.decode_consume_request(header).request
    core.received([encode(refusal(error, number))], now_ms)
    assert core.take_queue() is None


def test_a_topic_that_may_not_be_read_for_now_is_waited_for_and_the_log_says_so_once(
    make_reader: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    core, reader, now_ms = _core(), make_reader(), 1000
    reader.append(0, 1)
    core.add(0, 0)
    for _ in range(2):
        told(core, NoPermission("the topic cannot be read", "orders"), now_ms)
        assert core.outgoing(now_ms + REFUSED_MS - 1) == []
        assert core.wait_ms(now_ms + REFUSED_MS - 1) == 1
        now_ms += REFUSED_MS
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("topic orders is waited for: ")
    answer, _ = reader.answer(core.outgoing(now_ms)[0], 1, True)
    core.received(answer, now_ms)
    assert core.take_queue() is not None
    now_ms += REPEAT_MS
    told(core, NoPermission("the topic cannot be read", "orders"), now_ms)
    assert len(caplog.records) == 2, "it could be read meanwhile"
    core.add(1, 0)
    core.remove(1)
    assert core.outgoing(now_ms + 1), "the refusal may have been of a queue that is gone"


@pytest.mark.parametrize("error", [TopicNotFound("none", "x"), QueueNotFound("none", "x")])
def test_what_is_gone_is_waited_for_without_a_word_unless_everything_is_read(
    error: PenstockError, caplog: pytest.LogCaptureFixture
) -> None:
    core = _core()
    core.add(0, 0)
    told(core, error, 1000)
    assert core.outgoing(1000 + REFUSED_MS - 1) == [] and core.outgoing(1000 + REFUSED_MS)
    assert not caplog.records
    usual: dict[str, Any] = {"timeout_ms": 10**9, "max_body_bytes": 1000, "direct": False}
    every = AssignedCore("tcp://x:1", "orders", selection=None, everything=StartAt(), **usual)
    with pytest.raises(type(error)):
        told(every, error, 1000)


def test_a_reader_sleeps_while_it_has_no_queue_or_something_at_hand(
    make_reader: Callable[..., Any],
) -> None:
    core, reader = _core(), make_reader()
    reader.append(0, 1)
    assert core.wait_ms(1000) == REPEAT_MS
    core.add(0, 0)
    assert core.wait_ms(1000) == 0
    answer, _ = reader.answer(core.outgoing(1000)[0], 1, True)
    core.received(
        [encode(replace(messages.decode_consume_answer(answer[0]), credit=0)), answer[1]], 1000
    )
    assert core.wait_ms(1000) == REPEAT_MS, "until that is taken"
    assert core.take_queue() is not None
    assert core.wait_ms(1000) == 0


def test_an_answer_that_is_fetched_when_its_queue_is_gone_is_dropped(
    make_reader: Callable[..., Any],
) -> None:
    for is_gone in (False, True):
        core, reader = _core(), make_reader()
        reader.append(0, 2)
        core.add(0, 0)
        answer, _ = reader.answer(core.outgoing(1000)[0], 2, True)
        places = replace(messages.decode_consume_answer(answer[0]), places=(Place(0, 1),), credit=0)
        core.received([encode(places), b""], 1000)
        assert core.has_unread and core.wait_ms(1000) == REPEAT_MS
        if is_gone:
            core.remove(0)
            assert not core.has_unread
        core.fetched(memoryview(answer[1]))
        taken = core.take_queue()
        assert (taken is None) == is_gone
        assert taken is None or taken.stop == 2


def test_a_queue_that_was_put_aside_is_read_at_once_by_whoever_has_it_next(
    make_reader: Callable[..., Any],
) -> None:
    core, reader = _core(), make_reader()
    reader.append(0, 1)
    core.add(0, 0)
    answer, _ = reader.answer(core.outgoing(1000)[0], 1, True)
    raw = bytearray(answer[1])
    raw[AT_QUEUE_ID : AT_QUEUE_ID + 4] = (7).to_bytes(4, "big")
    core.received([answer[0], bytes(raw)], 1000)
    with pytest.raises(QueueUnreadable):
        core.take_queue()
    assert core.outgoing(1000 + REPEAT_MS) == []
    core.remove(0)
    core.add(0, 0)
    assert core.outgoing(1000 + REPEAT_MS) and core.take_queue() is None


def test_a_queue_that_ends_before_its_offset_goes_on_at_its_end_and_that_is_to_be_committed() -> (
    None
):
    core = _core()
    core.add(0, 5)
    ((header,),) = core.outgoing(1000)
    number = messages.decode_consume_request(header).request
    part = messages.QueueSlice(0, 5, 2, 0, 2, 0)
    core.received([encode(messages.Pulled(number, (part,), (0,), "")), b""], 1000)
    taken = core.take_queue()
    assert taken is not None and (taken.messages, taken.size, taken.stop) == ([], 0, 2)
    assert core.take_queue() is None and core.positions == {0: 2}
