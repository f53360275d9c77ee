"""The delay levels say how far they are, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.actors.scheduler.actor import PACE_MS
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.queue_entry import BLANK_ENTRY
from penstock.shared.formats.record_layout import AT_MAGIC
from penstock.shared.layout import CQ_ENTRY_BYTES, segment_name
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.messaging.delayed import Delay
from penstock.shared.process.doorbells import QUIET_TICK_MS

pytestmark = pytest.mark.takes(3)

# between messages that are to come due one after the other
APART_MS = 150


def test_a_level_that_has_never_had_a_message_has_none_that_waits(
    scene: Callable[..., Any],
) -> None:
    it = scene()
    for level in it.actor._levels:
        assert (level.ends(), level.pending, level.first_place()) == ((0, 0), 0, -1)
        assert level.is_sure and level.turn(it.now_ms, 0) == 0


@pytest.mark.parametrize("lost", [(), (0, 7, 8, 18, 19)], ids=["whole", "lost"])
def test_what_a_level_calls_done_is_stored_at_any_moment_and_it_is_all_in_the_end(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    """Wherever a life ends, the next goes on from there. Looks and frames are short, so that some
    have their outcome while others are on their way; and some come due when those before are done,
    as sockets may be so slow that all outcomes come at once. The writer dies amid them, or the log
    has lost some, which nobody waits for."""
    monkeypatch.setattr("penstock.actors.scheduler.levels.ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr("penstock.actors.scheduler.copies.MOST_IN_FRAME", 2)
    it = scene()
    level, has_died, seen, due = it.actor._levels[0], bool(lost), set(), 0
    sent = []
    for _ in range(4):
        sent += [it.send(Delay(1)) for _ in range(5)]
        it.broker.clock.advance(APART_MS)
    it.until(lambda: level.pending == 20, "their entries")
    places = [each.physical_offset for each in it.broker.stored(SCHEDULE_TOPIC, 0)]
    for number in lost:
        _overwrite_magic(it.broker.paths.commit_log, places[number])
    kept = [number for number in range(20) if number not in lost]
    it.broker.clock.advance(1000 - 5 * APART_MS)

    def is_over() -> bool:
        nonlocal has_died, due
        done, stored = level.done, len(it.queue())
        assert done <= [*kept, 20][stored], "what is on its way may be lost"
        assert level.pending == 20 - done
        assert level.first_place() == [*places, -1][done]
        seen.add(done)
        if done > 6 and not has_died:
            has_died = True
            it.crash_writer()
        if done == due < 20:
            due += 5
            it.broker.clock.advance(APART_MS)
        return done == 20

    it.until(is_over, "all of them")
    assert it.bodies() == [sent[number] for number in kept]
    assert len(seen) > 4, "else this shows nothing"
    counts = it.broker.positions
    it.until(lambda: counts["delivered"] + counts["undelivered"] == 20, "the counts", ms=50)
    assert counts["undelivered"] == len(lost)


def test_what_may_be_stored_is_sent_again_where_damage_keeps_the_writer_from_knowing(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice is better than never."""
    monkeypatch.setattr("penstock.actors.scheduler.levels.ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr("penstock.actors.scheduler.copies.MOST_IN_FRAME", 2)
    it = scene()
    level = it.actor._levels[0]
    sent = [it.send(Delay(1)) for _ in range(20)]
    it.until(lambda: level.pending == 20, "their entries")
    places = [each.physical_offset for each in it.broker.stored(SCHEDULE_TOPIC, 0)]
    lost = (0, 7, 8, 18, 19)
    for number in lost:
        _overwrite_magic(it.broker.paths.commit_log, places[number])
    it.broker.clock.advance(1000)
    it.until(lambda: level.done > 6, "some of them")
    it.crash_writer()
    it.until(lambda: level.done == 20, "all of them")
    assert set(it.bodies()) == {sent[number] for number in range(20) if number not in lost}
    counts = it.broker.positions
    it.until(lambda: counts["undelivered"] == len(lost), "the counts", ms=50)


def test_who_sleeps_as_long_as_it_says_is_there_in_the_very_ms_and_sleeps_in_between(
    scene: Callable[..., Any],
) -> None:
    """Among what comes together one is lost and one has a blank entry, which takes no turn of its
    own: the rest would come after the next sleep."""
    it = scene()
    positions = it.broker.positions
    keys = [it.send(Delay(level)) for level in [2, 2, 2, 2, 2, 3, 3, 4]]
    it.until(lambda: positions["queued"] == positions["wrote"], "their entries")
    waits = it.queue(SCHEDULE_TOPIC, 1)
    began_ms, sleeps = waits[0].store_timestamp_ms, 0
    _overwrite_magic(it.broker.paths.commit_log, waits[1].physical_offset)
    with open(it.broker.paths.queue(SCHEDULE_TOPIC, 1) / segment_name(0), "r+b") as file:
        file.seek(3 * CQ_ENTRY_BYTES)
        file.write(BLANK_ENTRY)
    while len(it.bodies()) < 6:
        assert sleeps < 40, "it wakes for nothing"
        it.broker.clock.advance(it.actor.idle_ms())
        sleeps += 1
        _settle(it)
    assert it.bodies() == [keys[number] for number in (0, 2, 4, 5, 6, 7)]
    times = [each.store_timestamp_ms - began_ms for each in it.queue()]
    assert times == [5000, 5000, 5000, 10_000, 10_000, 30_000]
    it.broker.clock.advance(QUIET_TICK_MS)
    it.actor.work()
    for _ in range(3):
        assert it.actor.idle_ms() == QUIET_TICK_MS
        it.broker.clock.advance(QUIET_TICK_MS)
        assert it.actor.work() == 0, "it does nothing"


def test_a_turn_makes_copies_of_some_bytes_and_the_next_goes_on(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = scene()
    level, keys = it.actor._levels[0], [it.send(Delay(1)) for _ in range(6)]
    it.until(lambda: level.pending == 6, "their entries")
    monkeypatch.setattr("penstock.actors.scheduler.levels.TURN_BYTES", 200)
    it.broker.clock.advance(1000)
    for done in (2, 4, 6):
        it.actor.work()
        assert level.next == done and (it.actor.idle_ms() <= PACE_MS or done == 6)
        it.until(lambda: it.actor._sender.has_room, "it has left", ms=0)
        it.broker.clock.advance(PACE_MS)
    assert [each.body.decode() for each in it.await_bodies(6)] == keys


def test_what_has_expired_is_passed_over_and_counted_and_what_is_left_comes(
    scene: Callable[..., Any],
) -> None:
    it = scene()
    level, keys = it.actor._levels[0], [it.send(Delay(1)) for _ in range(6)]
    it.until(lambda: level.pending == 6, "their entries")
    table = QueueTable(it.broker.run.queues, writable=True)
    slot = it.actor._queues.queues(SCHEDULE_TOPIC)[0]
    for first, pending in ((0, 6), (1, 5), (4, 2)):
        table.publish_min_offset(slot, first)
        assert (level.pending, level.ends()) == (pending, (first, 6))
        assert level.first_place() == it.queue(SCHEDULE_TOPIC, 0)[0].physical_offset
    table.close()
    assert [each.body.decode() for each in it.await_bodies(2)] == keys[4:]
    assert (level.done, level.pending) == (6, 0)
    assert (it.broker.positions["undelivered"], it.broker.positions["delivered"]) == (4, 2)


def test_what_was_to_wait_longer_than_its_level_says_now_waits_that_long_from_now(
    scene: Callable[..., Any],
) -> None:
    """The levels have been made shorter. Each waits from when it is the first, and none longer than
    it was to wait at first."""
    it = scene(message_delay_level="4s 1d")
    shorter = msgspec.structs.replace(it.broker.config, message_delay_level="1s 1d")
    began_ms, keys = it.now_ms, [it.send(Delay(1)) for _ in range(4)]
    it.until(lambda: it.actor._levels[0].pending == 4, "their entries")
    it.broker.config = shorter
    it.crash()
    it.until(lambda: it.actor._keeping.has_begun, "it has begun", ms=0)
    seen_ms = it.now_ms - began_ms
    while len(it.bodies()) < 4:
        it.broker.clock.advance(10)
        _settle(it)
    assert it.bodies() == keys
    times = [each.store_timestamp_ms - began_ms for each in it.queue()]
    for at_ms, least_ms in zip(times, (seen_ms, times[0], 3000, 3000), strict=True):
        assert 1000 <= at_ms - least_ms < 1500, (seen_ms, times)


def _settle(it: Any) -> None:
    """What is due now is put, and is in its queue when the clock has moved a little: no turn of the
    scheduler comes in between."""
    positions, actor = it.broker.positions, it.actor
    wrote = positions["wrote"]
    actor.work()
    if len(actor._sender):
        it.until(lambda: positions["wrote"] > wrote, "the writer has it", ms=0)
    it.actor = None
    it.until(lambda: positions["queued"] == positions["wrote"], "it has its entry", ms=10)
    it.actor = actor
    it.until(lambda: not len(actor._sender), "its answer", ms=0)


def _overwrite_magic(log: Path, place: int) -> None:
    """Whoever reads there finds no record."""
    base = max(int(each.name) for each in log.iterdir() if int(each.name) <= place)
    with open(log / segment_name(base), "r+b") as file:
        file.seek(place - base + AT_MAGIC)
        file.write(bytes(4))
