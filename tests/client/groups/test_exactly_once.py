"""Blocks that work exactly once, with a real broker: what counts, what does not, what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.chaos.clients.copier import FROM, GROUP, Reading
from penstock.client.core import blocks
from penstock.client.core.message import Message
from penstock.client.groups.exactly_once import BlockOutputs, ExactlyOnce
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.block_producer import BlockProducer
from penstock.client.sending.producer import Producer
from penstock.errors import InvalidArgument, InvalidMessage, StoreUnavailable
from penstock.shared.messaging.offsets_record import begin_of, decode_move, read_body
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC

OUT = "made"


class Bench:
    def __init__(self, broker: Any, count: int = 10) -> None:
        self.store = broker.store
        with Producer(store=self.store) as producer:
            producer.create_topic(FROM, 1)
            for number in range(count):
                producer.send(FROM, b"%d" % number)
        self._works: list[ExactlyOnce] = []

    def member(self) -> tuple[Reading, ExactlyOnce]:
        reading = Reading(self.store)
        work = ExactlyOnce(GROUP, reading, lambda: BlockProducer(store=self.store))
        self._works.append(work)
        return reading, work

    def read(self, topic: str) -> list[Message]:
        with Consumer(store=self.store, topic=topic, follow=False) as consumer:
            return list(consumer)

    def made(self) -> list[bytes]:
        return [bytes(message.body) for message in self.read(OUT)]

    def close(self) -> None:
        for work in self._works:
            work.close()


@pytest.fixture
def bench(start_broker: Callable[..., Any]) -> Iterator[Bench]:
    made = Bench(start_broker())
    yield made
    made.close()


def bodies(taken: list[Message]) -> list[bytes]:
    return [bytes(message.body) for message in taken]


def copy(reading: Reading, work: ExactlyOnce, most: int) -> tuple[list[bytes], bool]:
    taken: list[Message] = []
    while not taken:
        taken = reading.take(most)
    with BlockOutputs(work) as out:
        for body in bodies(taken):
            out.send(OUT, b"of " + body)
    return bodies(taken), out.stored


def test_outputs_and_offsets_are_ordinary_messages_and_the_offsets_say_what_is_done(
    bench: Bench,
) -> None:
    reading, work = bench.member()
    done, stored = copy(reading, work, 4)
    assert stored and sorted(bench.made()) == [b"of " + each for each in done]
    first, last = bench.read(OFFSETS_TOPIC)
    assert (first.tags, first.keys, last.tags, last.keys) == ("begin", GROUP, "offsets", GROUP)
    assert read_body(bytes(first.body)) is None
    move = decode_move(bytes(last.body))
    assert move.topics == {FROM: {0: (-1, len(done))}}
    reading.close()


def test_whoever_asks_for_the_outcome_of_a_block_on_its_way_waits_for_it(bench: Bench) -> None:
    reading, work = bench.member()
    copy(reading, work, 2)
    taken: list[Message] = []
    while not taken:
        taken = reading.take(2)
    with BlockOutputs(work, ahead=3) as out:
        for body in bodies(taken):
            out.send(OUT, body)
    assert out.stored
    reading.close()


def test_a_block_that_raises_stores_nothing_and_its_inputs_come_again(bench: Bench) -> None:
    reading, work = bench.member()
    copy(reading, work, 3)
    with pytest.raises(ZeroDivisionError), BlockOutputs(work) as out:
        taken = bodies(reading.take(3))
        out.send(OUT, b"never")
        raise ZeroDivisionError
    assert out.stored is False
    again, stored = copy(reading, work, 3)
    assert again == taken and stored
    assert sorted(bench.made()) == [b"of %d" % number for number in range(6)]
    reading.close()


def test_of_two_that_have_read_the_same_one_stores_and_the_other_goes_on_after_it(
    bench: Bench,
) -> None:
    (one, first), (two, second) = bench.member(), bench.member()
    assert copy(one, first, 4)[1] and copy(one, first, 4)[1]
    zombie, stored = copy(two, second, 6)
    assert zombie[0] == b"0" and not stored
    assert copy(two, second, 6) == ([b"8", b"9"], True)
    assert sorted(bench.made()) == [b"of %d" % number for number in range(10)]
    one.close()
    two.close()


def test_what_the_broker_refuses_is_raised_whole_and_the_inputs_come_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of ordinary messages would be parted, and its sound runs stored alone."""
    reading, work = bench.member()
    with monkeypatch.context() as patched:
        patched.setattr(blocks, "begin_of", lambda group, records: begin_of(group, records + 1))
        with pytest.raises(InvalidMessage, match="its first one says another number"):
            copy(reading, work, 4)
    assert copy(reading, work, 4) == ([b"0", b"1", b"2", b"3"], True)
    assert sorted(bench.made()) == [b"of %d" % number for number in range(4)]
    reading.close()


def test_a_block_without_outputs_moves_the_offsets_and_one_without_inputs_is_refused(
    bench: Bench,
) -> None:
    reading, work = bench.member()
    reading.take(5)
    with BlockOutputs(work) as out:
        pass
    assert out.stored and len(bench.read(OFFSETS_TOPIC)) == 1
    with pytest.raises(InvalidArgument, match="outputs and no inputs"), BlockOutputs(work) as out:
        out.send(OUT, b"of nothing")
    with pytest.raises(StoreUnavailable, match="the block has ended"):
        out.send(OUT, b"too late")
    assert copy(reading, work, 5)[0][0] == b"5"
    reading.close()


def test_more_than_a_frame_takes_is_refused_where_it_is_sent(bench: Bench) -> None:
    reading, work = bench.member()
    copy(reading, work, 1)
    with pytest.raises(InvalidMessage, match="which are stored at once"), BlockOutputs(work) as out:
        reading.take(3)
        for _ in range(40):
            out.send(OUT, bytes(60_000))
    assert copy(reading, work, 1) == ([b"1"], True)
    reading.close()
