"""Blocks without a broker: what a member believes of offsets, and what it does when it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core import blocks
from penstock.client.core.blocks import Block, Input, Queue, Values
from penstock.client.core.sending.encoding import BatchMessage
from penstock.client.core.sending.records import Staged
from penstock.shared.errors import InvalidMessage, OffsetsMoved, TopicNotFound
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.messaging.offsets_record import NONE, decode_begin, decode_move
from tests.client.core.sending.test_records import records

TOPIC = "in"


class Log:
    """The broker's side: present values, and which inputs have had their effect, how often."""

    def __init__(self, queues: int) -> None:
        self.values: dict[int, int] = {}
        self.effects: dict[int, list[int]] = {queue: [] for queue in range(queues)}

    def store(self, moves: dict[int, tuple[int, int]], inputs: dict[int, range]) -> None:
        """Raises OffsetsMoved."""
        wrong = {
            queue: self.values.get(queue, NONE)
            for queue, (before, _) in moves.items()
            if before != self.values.get(queue, NONE)
        }
        if wrong:
            raise OffsetsMoved("moved", json.dumps({TOPIC: wrong}))
        for queue, (_, to) in moves.items():
            self.values[queue] = to
            self.effects[queue] += inputs[queue]


class Member:
    """Reads from where it is told, with holes where a filter leaves messages out."""

    def __init__(self, log: Log, starts: dict[int, int]) -> None:
        self.log, self.at, self.values = log, dict(starts), Values()
        self.claims = dict.fromkeys(starts, 0)

    def claim(self, queue: int, offset: int, *, same: bool = False) -> None:
        """The queue has been with somebody else; or the claim is the same, and its offset an older
        one."""
        self.claims[queue] += not same
        self.at[queue] = offset

    def work(self, counts: dict[int, int], *, unheard: bool = False) -> None:
        """One block; its answer may be `unheard`."""
        inputs: dict[Queue, Input] = {}
        for queue, count in counts.items():
            begin = self.at[queue]
            inputs[TOPIC, queue] = Input(begin, begin + count, self.claims[queue])
        if (passed := self.values.passed(inputs)) is not None:
            for (_, queue), offset in passed.items():
                self.at[queue] = offset
            return
        ranges = {queue: range(each.begin, each.end) for (_, queue), each in inputs.items()}
        while True:
            try:
                self.log.store(self.values.moves(inputs)[TOPIC], ranges)
            except OffsetsMoved as error:
                back = self.values.moved(inputs, error)
                if back is None:
                    continue
                for (_, queue), offset in back.items():
                    self.at[queue] = offset
                return
            if unheard:
                self.values.forget(inputs, self.values.moves(inputs))  # and the inputs come again
                return
            self.values.stored(inputs)
            for queue, each in ranges.items():
                self.at[queue] = each.stop
            return


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.dictionaries(st.integers(0, 1), st.integers(1, 4), min_size=1),
        st.sampled_from(
            ["heard", "heard", "unheard", "claims from zero", "claims at value", "same from zero"]
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_input_has_its_effect_once_in_order_whatever_members_believe(
    steps: list[tuple[int, dict[int, int], str]],
) -> None:
    log = Log(2)
    members = [Member(log, {0: 0, 1: 0}) for _ in range(3)]
    for number, counts, what in steps:
        member = members[number]
        for queue in () if "heard" in what else counts:
            known = log.values.get(queue, 0)
            member.claim(queue, known if "value" in what else 0, same="same" in what)
        member.work(counts, unheard=what == "unheard")
    for queue, effects in log.effects.items():
        assert effects == list(range(log.values.get(queue, 0)))


@given(STEPS)
def test_a_member_that_is_alone_goes_on_after_at_most_one_step_back(
    steps: list[tuple[int, dict[int, int], str]],
) -> None:
    log = Log(2)
    member = Member(log, {0: 0, 1: 0})
    for _, counts, what in steps:
        member.work(counts, unheard=what == "unheard")
    for _ in range(3):
        before = dict(log.values)
        member.work({0: 1, 1: 1})
    assert log.values == {0: before.get(0, 0) + 1, 1: before.get(1, 0) + 1}


class MixedMember:
    """Works alone on one queue: in blocks, and without them."""

    def __init__(self) -> None:
        self.log, self.values = Log(1), Values()
        self.at = self.given = self.claim = 0
        self.doubts = False

    def plain(self, count: int) -> None:
        """Handle that many without a block."""
        self._find_out()
        self.log.effects[0] += range(self.at, self.at + count)
        self.at += count

    def claim_again(self) -> None:
        """The coordinator has the log say where the group is."""
        self._find_out()
        self.claim += 1
        self.given = self.at
        if 0 in self.log.values:
            self.log.values[0] = self.at

    def _find_out(self) -> None:
        if self.doubts:
            self.block(1)

    def block(self, count: int, *, unheard: bool = False, lost: bool = False) -> None:
        """Its answer may be `unheard`, and the block not even stored."""
        name = TOPIC, 0
        self.doubts = unheard or lost
        while True:
            inputs: dict[Queue, Input] = {
                name: Input(self.at, self.at + count, self.claim, self.given)
            }
            if (passed := self.values.passed(inputs)) is not None:
                self.at = passed[name]
                return
            moves = self.values.moves(inputs)
            try:
                if not lost:
                    self.log.store(moves[TOPIC], {0: range(self.at, self.at + count)})
            except OffsetsMoved as error:
                if (back := self.values.moved(inputs, error)) is not None:
                    self.at = back[name]
                    return
                continue
            if unheard or lost:
                self.values.forget(inputs, moves)
                return
            self.values.stored(inputs)
            self.at += count
            return


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plain", "claim", "block", "unheard", "lost"]), st.integers(1, 4)
        ),
        max_size=30,
    )
)
def test_what_is_acknowledged_without_blocks_is_repeated_by_none(
    steps: list[tuple[str, int]],
) -> None:
    member = MixedMember()
    for what, count in [*steps, ("block", 1), ("block", 1), ("block", 1)]:
        if what == "plain":
            member.plain(count)
        elif what == "claim":
            member.claim_again()
        else:
            member.block(count, unheard=what == "unheard", lost=what == "lost")
    effects = member.log.effects[0]
    assert effects == list(range(len(effects))) and member.at == len(effects)


def test_a_group_s_first_block_is_sent_a_second_time_and_begins_where_it_has_read() -> None:
    values = Values()
    inputs: dict[Queue, Input] = {(TOPIC, 0): Input(40, 45, 1)}
    assert values.moves(inputs) == {TOPIC: {0: (40, 45)}}
    refused = OffsetsMoved("moved", json.dumps({TOPIC: {"0": NONE}}))
    assert values.moved(inputs, refused) is None
    assert values.moves(inputs) == {TOPIC: {0: (NONE, 45)}}
    values.stored(inputs)
    assert values.moves({(TOPIC, 0): Input(47, 50, 1)}) == {TOPIC: {0: (45, 50)}}, (
        "holes are passed"
    )


@pytest.mark.parametrize(("present", "goes_on"), [(50, 50), (10, 10)])
def test_who_began_elsewhere_than_the_log_says_goes_on_there(present: int, goes_on: int) -> None:
    values = Values()
    inputs: dict[Queue, Input] = {(TOPIC, 0): Input(40, 45, 1), (TOPIC, 1): Input(3, 5, 1)}
    values.moves(inputs)
    refused = OffsetsMoved("moved", json.dumps({TOPIC: {"0": present}}))
    assert values.moved(inputs, refused) == {(TOPIC, 0): goes_on, (TOPIC, 1): 3}
    # what lies before it has expired: the queue begins later, and the value is the log's
    later: dict[Queue, Input] = {(TOPIC, 0): Input(60, 61, 1)}
    assert values.moves(later) == {TOPIC: {0: (present, 61)}}


def test_queues_that_a_refusal_does_not_name_are_where_the_block_was_to_begin() -> None:
    values = Values()
    inputs: dict[Queue, Input] = {(TOPIC, 0): Input(40, 45, 1), (TOPIC, 1): Input(3, 5, 1)}
    moves = values.moves(inputs)
    values.stored(inputs)  # it was believed
    values.refused(inputs, moves, OffsetsMoved("moved", json.dumps({TOPIC: {"0": 50}})))
    again: dict[Queue, Input] = {(TOPIC, 0): Input(50, 51, 1), (TOPIC, 1): Input(3, 6, 1)}
    assert values.moves(again) == {TOPIC: {0: (50, 51), 1: (3, 6)}}


@pytest.mark.parametrize(("made", "more"), [(0, 4), (1, 2), (2, 0)])
def test_outputs_go_to_as_many_queues_as_a_frame_has_room_for(
    make_wire: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, made: int, more: int
) -> None:
    """Some are made already, each time for two queues; two runs are the block's own."""
    monkeypatch.setattr(blocks, "MAX_RUNS", 6)
    core = make_wire().core
    core.routes.queues["a"] = 9
    for too_many in (0, 1):
        block = Block(core)
        for queue in range(more + too_many):
            block.add("a", BatchMessage(b"x"), None, queue)
        for _ in range(made):
            block.put(records(core.encoder.terms.shape))
        if too_many:
            with pytest.raises(InvalidMessage, match="go to more than 4 queues: 5"):
                block.send("g", {TOPIC: {0: (0, 1)}}, 0)
        else:
            assert not block.send("g", {TOPIC: {0: (0, 1)}}, 0).done()
            assert len(block) == more + 3 * made


def test_outputs_that_the_broker_has_already_are_named_and_not_sent(
    make_wire: Callable[..., Any],
) -> None:
    core = make_wire().core
    core.terms.max_frame_bytes = 1 << 20
    block = Block(core)
    ids = tuple(offset_message_id(bytes(8), place) for place in (70, 9000))
    block.name(Staged(ids, core.terms.shape, 3))
    assert len(block) == 3
    assert not block.send("g", {TOPIC: {0: (0, 1)}}, 0).done()
    frame = core.outbox.take()
    assert frame.staged == (70, 9000)
    begin, offsets = (draft[0] for run in frame.runs for draft in run.drafts)
    assert decode_begin(begin) == 5, "the two around them are counted, too"
    assert decode_move(offsets).topics == {TOPIC: {0: (0, 1)}}


@pytest.mark.parametrize("queues", [1, 40])
def test_outputs_and_offsets_have_room_in_one_frame_together(
    make_wire: Callable[..., Any], queues: int
) -> None:
    """Of the limit each output takes what it is long; a queue's offsets take their part."""
    core = make_wire().core
    core.routes.queues["a"] = 1
    made = records(core.encoder.terms.shape)
    one = core.encoder.room("a", core.encoder.draft(BatchMessage(b"x" * 900), None))
    moves = {TOPIC: dict.fromkeys(range(queues), (0, 1))}
    full = 3 * one + len(made.payload)
    for spare in (-1, 0):
        core.encoder.terms.max_frame_bytes = limit = full + 4096 + spare
        block = Block(core)
        for _ in range(2):
            block.add("a", BatchMessage(b"x" * 900), None, 0)
        block.put(made)
        if spare < 0:
            with pytest.raises(InvalidMessage, match=f"take more than {limit} bytes"):
                block.add("a", BatchMessage(b"x" * 900), None, 0)
            with pytest.raises(InvalidMessage, match=f"take more than {limit} bytes"):
                for _ in range(1 + one // len(made.payload)):
                    block.put(made)
        else:
            block.add("a", BatchMessage(b"x" * 900), None, 0)
            core.encoder.terms.max_frame_bytes = limit + 64 * queues - 1
            with pytest.raises(InvalidMessage, match="take more than"):
                block.send("g", moves, 0)
            core.encoder.terms.max_frame_bytes = limit + 64 * queues
            assert not block.send("g", moves, 0).done()
    assert core.outbox and core.intake.unsettled == 3 + 2, "its own, and their frame"


def test_a_block_that_has_failed_is_told_of_by_its_end_alone(make_wire: Callable[..., Any]) -> None:
    wire = make_wire(timeout_ms=1000)
    core = wire.core
    wire.send("a", None, 0, "", 1)
    wire.heal(8)
    block = Block(core)
    block.add("a", BatchMessage(b"x"), None, 0)
    future = block.send("g", {TOPIC: {0: (0, 1)}}, wire.now_ms)
    core.fail_all(InvalidMessage("the end"))
    assert isinstance(future.exception(0), InvalidMessage)
    assert core.failures.take() is None, "nobody else needs to hear of its messages"


def test_a_block_that_is_refused_is_not_tried_again_in_parts(make_wire: Callable[..., Any]) -> None:
    wire = make_wire(timeout_ms=1000)
    for topic in "ab":
        wire.send(topic, None, 0, "", 1)
    wire.heal(8)
    block = Block(wire.core)
    for topic in "ab":
        block.add(topic, BatchMessage(b"x"), None, 0)
    wire.writer.gone = {"b"}
    before = len(wire.writer.log)
    future = block.send("g", {TOPIC: {0: (0, 1)}}, wire.now_ms)
    wire.heal(8)
    assert isinstance(future.exception(0), TopicNotFound)
    assert len(wire.writer.log) == before, "all of it or nothing"
