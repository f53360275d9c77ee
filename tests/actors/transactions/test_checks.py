"""A pass through all open half messages does to each of them what is due, and to no other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.actors.transactions import checks
from penstock.actors.transactions.endings import Ending
from penstock.actors.transactions.half_table import DISCARDED, PUT_BACK, ROLLED_BACK
from penstock.shared.formats.properties import REAL_QID, decode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import AT_MAGIC
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.messaging.half import (
    CHECK_IMMUNITY,
    CHECK_TIMES,
    PREPARED_QUEUE_OFFSET,
    read_half,
)
from penstock.shared.messaging.system_topics import HALF_TOPIC

HOUR_MS, INTERVAL_MS = 3_600_000, 2 * 3_600_000
TIMEOUT_MS, MOST_CHECKS, FEW = 20_000, 3, 4
STORED, OPEN = 40, 8

Scenes = Callable[..., Any]


class Due(NamedTuple):
    """What became of one: how it ends, how often it was asked for, what its copy says of that."""

    state: int = 0
    asked: int = 0
    told: str = ""


def limit_ms(record: Record) -> int:
    """At this age it is asked for."""
    immunity_s = read_half(record.properties).immunity_s
    return immunity_s * 1000 if immunity_s >= 0 else TIMEOUT_MS


def kept_since_ms(record: Record) -> int:
    """Its age counts from here: a copy is stored later than its message."""
    is_copy = read_half(record.properties).first_offset >= 0
    return record.born_timestamp_ms if is_copy else record.store_timestamp_ms


def due(
    halves: list[Record], ending: set[int], now_ms: int, most_remembered: int, is_there: bool
) -> Iterator[tuple[int, Due]]:
    """What is due for the open ones, in a few words, the oldest first."""
    for at, half in enumerate(halves):
        times, later = read_half(half.properties).check_times, STORED - half.queue_offset
        if half.queue_offset in ending:
            yield half.queue_offset, Due(ROLLED_BACK)
            continue
        if times >= MOST_CHECKS or now_ms - kept_since_ms(half) > HOUR_MS:
            yield half.queue_offset, Due(DISCARDED)
            continue
        asked = is_there and now_ms - half.store_timestamp_ms >= limit_ms(half)
        if later > most_remembered and later > OPEN * FEW:
            yield half.queue_offset, Due(PUT_BACK, asked, str(times + asked))
            continue
        yield half.queue_offset, Due(0, asked)
        if not is_there:  # nobody is there for the others either
            for each in halves[at + 1 :]:
                yield each.queue_offset, Due(ROLLED_BACK * (each.queue_offset in ending))
            return


@pytest.mark.parametrize("is_there", [True, False], ids=["a producer", "no producer"])
@pytest.mark.parametrize("seed", range(24))
def test_a_pass_does_to_each_message_what_is_due(scene: Scenes, seed: int, is_there: bool) -> None:
    """In the millisecond in which that changes for one of them, or the one before."""
    chance = random.Random(seed)
    broker = scene(
        transaction_check_interval_ms=INTERVAL_MS,
        transaction_time_out_ms=TIMEOUT_MS,
        transaction_check_max=MOST_CHECKS,
        file_reserved_time_h=1,
    )
    clock, actor, producer = broker.broker.clock, broker.actor, broker.producer()
    clock.advance(INTERVAL_MS - HOUR_MS)
    stored = []
    for number in range(STORED):
        if number == STORED // 4:  # the first are as old as the store keeps messages
            clock.advance(INTERVAL_MS - TIMEOUT_MS - clock.monotonic_ms())
        more = {
            CHECK_IMMUNITY: str(chance.choice((-1, -1, 0, 1, 21))),
            CHECK_TIMES: str(chance.choice((0, 0, 0, MOST_CHECKS - 1, MOST_CHECKS))),
            PREPARED_QUEUE_OFFSET: str(chance.choice((-1, -1, 0, 7))),
        }
        stored.append(broker.half(skew_ms=-chance.choice((0, HOUR_MS - 10_000)), **more))
    still = {*chance.sample(range(8), 3), 8, *chance.sample(range(9, STORED), OPEN - 4)}
    for number in set(range(STORED)) - still:
        producer.tell(stored[number], "rollback")
    assert {producer.answer().outcome for _ in range(STORED - OPEN)} == {"rollback"}
    broker.until(lambda: actor._follower.table.open == OPEN and not len(actor._endings))
    halves = [each for each in broker.queue(HALF_TOPIC) if each.queue_offset in still]
    ending = set(chance.sample(sorted(still), chance.choice((0, 0, 2))))
    producer.register()
    (peer,) = actor._producers._groups["shop"]
    actor._checks.most_remembered = chance.choice(
        [0, *(STORED - each for each in still if each < 8)]
    )

    def wanted(now_ms: int) -> dict[int, Due]:
        return dict(due(halves, ending, now_ms, actor._checks.most_remembered, is_there))

    moments = {each.store_timestamp_ms + limit_ms(each) for each in halves}
    moments |= {kept_since_ms(each) + HOUR_MS + 1 for each in halves}
    assert clock.monotonic_ms() < INTERVAL_MS, "a pass has been made already"
    begin_ms = clock.now_ms() - clock.monotonic_ms()
    changes = [
        each for each in sorted(moments)
        if each > begin_ms + INTERVAL_MS and wanted(each) != wanted(each - 1)
    ]  # fmt: skip
    clock.advance(chance.choice(changes or [begin_ms + INTERVAL_MS + 1]) - clock.now_ms())
    clock.advance(-chance.choice((0, 1)))
    actor._producers.register("shop", peer, clock.monotonic_ms() if is_there else 0)
    actor._producers.register("shop too", b"silent", 0)
    for half in (each for each in halves if each.queue_offset in ending):
        actor._endings.put(Ending(half.queue_offset, ROLLED_BACK, None), half)

    assert actor._checks.turn()
    for offset, what in wanted(clock.now_ms()).items():
        found = actor._endings.get(offset)
        is_copy = found is not None and found.state == PUT_BACK
        told = decode_properties(found.copy.properties)[CHECK_TIMES] if is_copy else ""
        state = found.state if found is not None else 0
        assert (offset, state, actor._follower.table.state(offset), told) == (offset, *what)
    assert len(actor._producers) == is_there, "who is silent is forgotten"


def test_a_pass_takes_turns_and_waits_while_many_are_ending(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LOOKED_AT_ONCE", 4)
    monkeypatch.setattr(checks, "MOST_WAITING", 7)
    broker = scene(
        transaction_check_interval_ms=INTERVAL_MS,
        transaction_time_out_ms=2 * INTERVAL_MS,
        file_reserved_time_h=1,
    )
    clock, found, producer = broker.broker.clock, broker.actor._checks, broker.producer()
    for _ in range(9):
        broker.half()
    # the first nine are given up, and of the others nobody is asked, however long the rest takes
    clock.advance(HOUR_MS + HOUR_MS // 2)
    for _ in range(9):
        broker.half()
    broker.dispatched()
    producer.register()
    (peer,) = broker.actor._producers._groups["shop"]
    assert 0 < found.wait_ms() == INTERVAL_MS - clock.monotonic_ms()
    clock.advance(INTERVAL_MS - 1 - clock.monotonic_ms())
    assert (found.wait_ms(), found.turn()) == (1, 0)
    clock.advance(1)
    broker.actor._producers.register("shop", peer, clock.monotonic_ms())
    assert found.wait_ms() == 0
    # the turn that begins a pass counts that as a look
    assert [found.turn() for _ in range(4)] == [4, 4, 0, 0]
    assert len(broker.actor._endings) == 7
    broker.until(lambda: not len(broker.actor._endings))
    assert broker.broker.positions["transactions_discarded"] == 9
    assert found.wait_ms() == INTERVAL_MS - (clock.monotonic_ms() - INTERVAL_MS)
    clock.advance(INTERVAL_MS + 5)
    assert found.wait_ms() == 0, "not a time that is over"


def test_after_a_pass_that_began_late_the_next_one_comes_an_interval_later(scene: Scenes) -> None:
    """Else those that nobody could ask for long would be asked several times in a row."""
    broker = scene(transaction_check_interval_ms=INTERVAL_MS)
    found = broker.actor._checks
    broker.is_ready()
    broker.broker.clock.advance(3 * INTERVAL_MS)
    found.turn()
    assert found.wait_ms() == INTERVAL_MS


def test_a_pass_ends_at_what_is_stored_after_it_began(scene: Scenes) -> None:
    """Where the clock is set back it may be all."""
    broker = scene(transaction_check_interval_ms=INTERVAL_MS)
    clock, table = broker.broker.clock, broker.actor._follower.table
    halves = [broker.half(**{CHECK_IMMUNITY: "0"}) for _ in range(3)]
    broker.dispatched()
    broker.producer().register()
    (peer,) = broker.actor._producers._groups["shop"]
    clock.advance(INTERVAL_MS - clock.monotonic_ms())
    broker.actor._producers.register("shop", peer, clock.monotonic_ms())
    second = broker.queue(HALF_TOPIC)[1].store_timestamp_ms
    clock.jump(second - clock.now_ms())
    broker.actor._checks.turn()
    assert [table.state(each.offset) for each in halves] == [1, 0, 0]


def test_where_the_clock_is_set_back_amid_a_pass_the_rest_are_asked_for(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their age by that clock shows nothing any more, and the next pass may be hours away."""
    monkeypatch.setattr(checks, "LOOKED_AT_ONCE", 1)
    broker = scene(transaction_check_interval_ms=INTERVAL_MS)
    clock, actor, half = broker.broker.clock, broker.actor, broker.half()
    broker.dispatched()
    broker.producer().register()
    (peer,) = actor._producers._groups["shop"]
    clock.advance(INTERVAL_MS - clock.monotonic_ms())
    actor._producers.register("shop", peer, clock.monotonic_ms())
    assert actor._checks.turn() == 1, "the pass has begun"
    clock.jump(-2 * INTERVAL_MS)
    assert actor._checks.turn() == 1
    assert actor._follower.table.state(half.offset) == 1


def test_what_cannot_be_asked_for_keeps_nobody_from_being_asked_about_the_next(
    scene: Scenes,
) -> None:
    """One that has expired ends, one that cannot be read now stays, and what is no half message,
    which another broker may have stored, leaves no copy."""
    broker = scene(transaction_check_interval_ms=INTERVAL_MS, file_reserved_time_h=3)
    clock, actor = broker.broker.clock, broker.actor
    _, bent, no_half, fine = (broker.half(**{CHECK_IMMUNITY: "0"}) for _ in range(4))
    broker.dispatched()
    broker.producer().register()
    (peer,) = actor._producers._groups["shop"]
    segment = broker.broker.paths.commit_log / segment_name(0)
    name_at = segment.read_bytes().index(REAL_QID.encode(), no_half.position)
    with segment.open("r+b") as file:
        for at in (bent.position + AT_MAGIC, name_at):
            file.seek(at)
            file.write(b"none")
    table = QueueTable(broker.broker.run.queues, writable=True)
    slots = {key: slot for slot, key in table.keys(0, broker.broker.positions["queue_count"])}
    table.publish_min_offset(slots[QueueKey(HALF_TOPIC, 0)], 1)
    table.close()
    clock.advance(INTERVAL_MS - clock.monotonic_ms())
    actor._producers.register("shop", peer, clock.monotonic_ms())
    # the turn that begins a pass counts that as a look
    assert actor._checks.turn() == 5
    states = [actor._follower.table.state(offset) for offset in range(4)]
    assert states == [DISCARDED, 0, 0, 1]
    ending = actor._endings.get(no_half.offset)
    assert (ending.state, ending.copy) == (DISCARDED, None)
    assert actor._endings.get(bent.offset) is actor._endings.get(fine.offset) is None
