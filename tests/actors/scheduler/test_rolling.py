"""What waits longer than segments stay is stored again, comes once, and frees the old segment."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.actors.scheduler.keeping import SAVE_MS
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.messaging.delayed import Delay
from penstock.shared.names import MAX_PROPERTIES_BYTES
from penstock.shared.wire.messages import CreateTopic, DeleteTopic, UpdateTopic, encode

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def fill(it: Any, segments: int, topic: str = "orders", age_ms: int = 60 * HOUR_MS) -> None:
    """Store messages until this many more segments are full; and they are old."""
    goal = it.broker.positions["wrote"] + segments * it.broker.config.max_message_size_bytes * 4
    while it.broker.positions["wrote"] < goal:
        it.put(Record(topic, bytes(8000), b"", 3))
    old_s = (it.now_ms - age_ms) / 1000
    for path in it.broker.paths.commit_log.iterdir():
        os.utime(path, (old_s, old_s))


def wheel(it: Any) -> list[Record]:
    return list(it.queue("rmq_sys_wheel_timer", 0))


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_about_to_expire_is_stored_again_and_comes_once(
    scene: Callable[..., Any], killed: bool
) -> None:
    it, dice = scene(), random.Random(3)
    positions = it.broker.positions
    due_ms = it.now_ms + 2 * HOUR_MS
    keys = [it.send(Delay(out_ms=due_ms + number)) for number in range(20)]
    recalled = it.send(Delay(out_ms=due_ms + 5))
    it.send(Delay(out_ms=due_ms + 5, recalls=recalled))
    soon = it.send(Delay(out_ms=it.now_ms + 5 * 60_000))
    fill(it, 2)
    assert positions["delay_floor"] <= 1

    def rolls() -> list[Record]:
        return [r for r in wheel(it) if "TIMER_ROLL_TIMES" in decode_properties(r.properties)]

    it.until(lambda: rolls(), "the first that is stored again", ms=500)
    while killed and len(rolls()) < 22:
        it.turn(dice.choice([1, 20, 300]))
        it.crash()
    it.until(lambda: len(rolls()) >= 22, "all are stored again", ms=50)
    assert len(rolls()) == 22 and {r.reconsume_times for r in rolls()} == {0}
    first = rolls()[0].physical_offset
    it.until(lambda: soon in it.bodies(), "what was due soon", ms=20_000)
    it.until(lambda: positions["delay_floor"] > 1, "the old records may go", ms=20_000)
    assert positions["delay_floor"] <= first
    it.until(lambda: len(it.bodies()) >= 21, "all others", ms=20_000)
    for _ in range(40):
        it.turn(1000)
    assert it.bodies() == [soon, *keys]
    assert len(rolls()) == 22, "and no second time"
    for each in it.queue()[1:]:
        assert each.store_timestamp_ms >= due_ms


def test_what_is_rolled_in_the_hour_that_is_under_way_comes_once(
    scene: Callable[..., Any],
) -> None:
    """Its minute is not in memory yet. If it were, a consumer would get the old record, too."""
    it = scene()
    hour_ms = (it.now_ms // HOUR_MS + 1) * HOUR_MS
    keys = [it.send(Delay(out_ms=hour_ms + 40 * MINUTE_MS + number)) for number in range(3)]
    it.until(lambda: it.now_ms >= hour_ms, "that hour", ms=20_000)
    for _ in range(30):
        it.turn(1000)
    fill(it, 2)
    it.until(lambda: len(wheel(it)) == 2 * len(keys), "all are stored again", ms=50)
    assert not it.bodies()
    it.until(lambda: len(it.bodies()) >= len(keys), "all", ms=20_000)
    for _ in range(40):
        it.turn(1000)
    assert it.bodies() == keys


def test_what_waits_in_segments_that_stay_is_not_stored_again(scene: Callable[..., Any]) -> None:
    """Else all that waits would be written once more whenever a segment is full."""
    it = scene(file_reserved_time_h=72)
    key = it.send(Delay(out_ms=it.now_ms + 2 * HOUR_MS))
    fill(it, 2, age_ms=HOUR_MS)
    for _ in range(100):
        it.turn(10_000)
    assert len(wheel(it)) == 1 and not it.bodies()
    it.until(it.bodies, "the message", ms=20_000)
    assert it.bodies() == [key] and len(wheel(it)) == 1


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first run"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_an_end_amid_a_file_that_is_rolled_stores_nothing_again_twice(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, killed: bool, is_first: bool
) -> None:
    """Some of it is stored again, and that is known, and the rest is not on its way."""
    monkeypatch.setattr("penstock.actors.scheduler.rolling.ENTRIES_AT_ONCE", 2)
    it = scene(is_first)
    due_ms = it.now_ms + 2 * HOUR_MS
    keys = [it.send(Delay(out_ms=due_ms + number)) for number in range(7)]
    fill(it, 2)
    it.until(lambda: it.actor._rolling._batches, "the first that is stored again", ms=50)
    it.actor._put_ms = 1 << 60  # nothing more is put
    it.until(it.actor.drained, "their answers")
    if killed:
        it.actor._keeping._save_ms = -(1 << 60)  # just then it is saved
        it.actor._keep(it.now_ms)
        it.crash()
    else:
        it.stop()
        it.start()
    assert len(wheel(it)) < 2 * len(keys), "else this shows nothing"
    it.until(lambda: len(it.bodies()) >= len(keys), "all", ms=20_000)
    for _ in range(40):
        it.turn(1000)
    assert it.bodies() == keys and len(wheel(it)) == 2 * len(keys)


def test_a_file_is_rolled_when_each_of_its_frames_has_its_outcome(
    scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death before that has to store the others again."""
    monkeypatch.setattr("penstock.actors.scheduler.rolling.ENTRIES_AT_ONCE", 2)
    it = scene()
    due_ms = it.now_ms + 2 * HOUR_MS
    keys = [it.send(Delay(out_ms=due_ms + number)) for number in range(6)]
    fill(it, 2)
    rolling = it.actor._rolling
    it.until(lambda: rolling._batches, "the first that is stored again", ms=50)
    it.until(lambda: it.actor._sender.has_room, "a session", ms=0)
    for _ in range(50):  # without the writer, so that none has its outcome
        it.actor.work()
        it.broker.clock.advance(1)
    first, *others = rolling._batches
    minute = rolling.minute
    assert others and not len(rolling._left)
    rolling.settle(first, True)
    assert [*rolling._batches] == others and rolling.minute == minute
    it.until(lambda: len(wheel(it)) == 2 * len(keys), "all are stored again", ms=50)
    it.until(lambda: rolling.minute != minute, "the end of the file")


@pytest.mark.parametrize("is_deleted", [False, True], ids=["fewer queues", "deleted"])
def test_what_is_rolled_goes_where_its_topic_still_has_a_queue(
    scene: Callable[..., Any], is_deleted: bool
) -> None:
    it = scene()
    positions = it.broker.positions
    it._tell(encode(CreateTopic(8, "stays", 4)))
    due_ms = it.now_ms + 2 * HOUR_MS
    keys = [it.send(Delay(out_ms=due_ms + number), queue=3) for number in range(5)]
    if is_deleted:
        it._tell(encode(DeleteTopic(9, "orders")))
    else:
        it._tell(encode(UpdateTopic(9, "orders", read_queues=2, write_queues=2)))
    fill(it, 2, "stays")
    if is_deleted:
        it.until(lambda: positions["undelivered"] == len(keys), "the count", ms=500)
    else:
        it.until(lambda: len(wheel(it)) == 2 * len(keys), "all are stored again", ms=50)
        it.until(lambda: len(it.bodies(1)) >= len(keys), "all", ms=20_000)
        assert it.bodies(1) == keys and positions["undelivered"] == 0
    it.until(lambda: not positions["pending_delayed"], "the end", ms=20_000)
    assert positions["undelivered"] == (len(keys) if is_deleted else 0)


@pytest.mark.parametrize("times", ["²", "-1", "9" * 5000, "1.5"])
def test_whatever_a_message_says_of_its_rolls_it_is_stored_again(
    scene: Callable[..., Any], times: str
) -> None:
    it = scene()
    place = {"REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "K", "TIMER_ROLL_TIMES": times}
    own = encode_properties(place | {"TIMER_OUT_MS": str(it.now_ms + 2 * HOUR_MS)})
    it.put(Record("rmq_sys_wheel_timer", b"x", own))
    fill(it, 2)
    it.until(lambda: len(wheel(it)) == 2, "it is stored again", ms=500)
    assert decode_properties(wheel(it)[1].properties)["TIMER_ROLL_TIMES"] == "1"
    it.until(it.bodies, "the message", ms=20_000)


def test_a_death_right_after_files_that_were_rolled_stores_nothing_again_twice(
    scene: Callable[..., Any],
) -> None:
    """Several files are done in less time than there is between two saves."""
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + hours * HOUR_MS)) for hours in range(2, 9)]
    fill(it, 2)
    it.until(lambda: it.actor._rolling.roll, "a roll", ms=500)
    for _ in range(2):
        enough = len(wheel(it)) + 3
        it.until(partial(lambda least: len(wheel(it)) >= least, enough), "some more")
        it.crash()
    it.until(lambda: len(wheel(it)) >= 2 * len(keys), "all are stored again", ms=50)
    it.until(lambda: len(it.bodies()) >= len(keys), "all", ms=20_000)
    for _ in range(40):
        it.turn(1000)
    assert it.bodies() == keys and len(wheel(it)) == 2 * len(keys)


def test_after_a_death_the_hour_that_was_rolled_is_in_doubt_and_no_other(
    scene: Callable[..., Any],
) -> None:
    """What is looked for in the log costs the writer a look at all of its end."""
    it = scene()
    hour_ms = (it.now_ms // HOUR_MS + 2) * HOUR_MS
    keys = [it.send(Delay(out_ms=hour_ms + minute * MINUTE_MS)) for minute in (59, 60)]
    fill(it, 2)
    it.crash()
    assert it.actor._rolling.is_sure, "nothing was rolled before"
    it.until(lambda: it.actor._rolling.roll, "a roll", ms=500)
    wrote = it.broker.positions["wrote"]
    it.until(lambda: it.broker.positions["wrote"] > wrote, "the first that is stored again")
    it.crash()
    assert not it.actor._rolling.is_sure
    it.until(lambda: it.actor._rolling.is_sure, "the end of the doubt")
    assert it.actor._rolling.roll is not None, "amid the roll"
    it.until(lambda: len(it.bodies()) >= len(keys), "all", ms=20_000)
    assert it.bodies() == keys and len(wheel(it)) == 2 * len(keys)


def test_a_roll_waits_for_no_save_that_is_due_later(scene: Callable[..., Any]) -> None:
    """Each of its files is saved before the next is begun: that must not take as long as usual."""
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + hours * HOUR_MS)) for hours in range(2, 9)]
    fill(it, 2)
    it.until(lambda: it.actor._rolling.roll, "a roll", ms=500)
    began_ms = it.now_ms
    it.until(lambda: len(wheel(it)) == 2 * len(keys), "all are stored again")
    assert it.now_ms - began_ms < (len(keys) - 1) * SAVE_MS


def test_no_more_is_rolled_while_the_disk_does_not_take_what_is_done(
    scene: Callable[..., Any],
) -> None:
    """A death would have all of it stored again, and it would come twice."""
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + hours * HOUR_MS)) for hours in range(2, 9)]
    fill(it, 2)
    it.until(lambda: it.actor._rolling.roll, "a roll", ms=500)
    handle, before = it.actor._keeping._file._handle, len(wheel(it))
    kept, refusing = os.dup(handle), os.open(it.broker.paths.scheduler, os.O_RDONLY)
    os.dup2(refusing, handle)  # a write is refused from now on
    for _ in range(50):
        it.turn(100)
    assert len(wheel(it)) <= before + 1, "the file that it was at"
    os.dup2(kept, handle)
    for each in (kept, refusing):
        os.close(each)
    it.until(lambda: len(wheel(it)) == 2 * len(keys), "all are stored again", ms=50)


def test_what_comes_due_while_it_is_rolled_comes_once(scene: Callable[..., Any]) -> None:
    """The broker was away meanwhile: by its old record it would come, and again by the new one."""
    it = scene()
    due_ms = it.now_ms + 15 * MINUTE_MS
    times = [due_ms + MINUTE_MS * number for number in range(5)]
    keys = [it.send(Delay(out_ms=at_ms)) for at_ms in times]
    fill(it, 2)
    it.until(lambda: it.actor._rolling.roll, "a roll", ms=500)
    it.until(lambda: len(wheel(it)) >= len(keys) + 2, "the first that are stored again")
    it.crash()
    it.broker.clock.advance(HOUR_MS)
    it.until(lambda: len(it.bodies()) >= len(keys), "all")
    for _ in range(40):
        it.turn(1000)
    assert it.bodies() == keys


@pytest.mark.parametrize("free", [0, 18, 19])
def test_what_has_no_room_to_say_that_it_is_rolled_is_stored_again_and_comes(
    scene: Callable[..., Any], free: int
) -> None:
    it = scene()
    own = {"REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": "K", "note": "x"}
    own["TIMER_OUT_MS"] = str(it.now_ms + 2 * HOUR_MS)
    own["note"] *= 1 + MAX_PROPERTIES_BYTES - free - len(encode_properties(own))
    it.put(Record("rmq_sys_wheel_timer", b"x", encode_properties(own)))
    fill(it, 2)
    it.until(lambda: len(wheel(it)) == 2, "it is stored again", ms=500)
    assert len(it.await_bodies(1, ms=20_000)) == 1 and it.broker.positions["undelivered"] == 0
    assert decode_properties(it.queue()[0].properties)["note"] == own["note"]
