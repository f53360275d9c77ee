"""The scheduler: nothing early, everything once, whoever dies; what waits stays in the log."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.scheduler import progress
from penstock.actors.scheduler.copies import LOOK_MS
from penstock.actors.scheduler.keeping import DOCUMENT_MS, SAVE_MS, _Sync
from penstock.actors.scheduler.timer_files import HOUR_MS, MINUTE_MS
from penstock.actors.writer import Writer
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, pack_host
from penstock.shared.index.directory import index_files
from penstock.shared.messaging.delayed import (
    RECALL_COMING,
    Delay,
    delayed,
    recall_key,
    timer_due_ms,
)
from penstock.shared.messaging.delivered import Copy
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.rocketmq_json import parse_fastjson
from penstock.shared.store.topics import Topics, load_topics, save_topics
from penstock.shared.wire.messages import CreateTopic, DeleteTopic, UpdateTopic, encode

pytestmark = pytest.mark.takes(20)

HOST = pack_host("127.0.0.1", 4711)
Maker = Callable[..., Any]
LEVEL_MS = (1000, 5000, 10_000)


def test_by_level_a_message_comes_when_its_level_is_over_and_not_before(scene: Maker) -> None:
    it = scene()
    first, second = it.send(Delay(1)), it.send(Delay(2))
    (one,) = it.await_bodies(1)
    assert one.body.decode() == first
    assert one.store_timestamp_ms >= it.queue("SCHEDULE_TOPIC_XXXX", 0)[0].store_timestamp_ms + 1000
    assert decode_properties(one.properties)["DELAY"] == "1"
    found = it.await_bodies(2)
    assert [each.body.decode() for each in found] == [first, second]
    waited = it.queue("SCHEDULE_TOPIC_XXXX", 1)[0].store_timestamp_ms
    assert found[1].store_timestamp_ms >= waited + 5000


@pytest.mark.parametrize("timed", [False, True])
def test_a_message_comes_in_the_very_ms_that_it_is_due(scene: Maker, timed: bool) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 1500) if timed else Delay(1))
    it.until(lambda: it.broker.positions["pending_delayed"], "the scheduler knows it")
    (waits,) = it.queue("rmq_sys_wheel_timer" if timed else "SCHEDULE_TOPIC_XXXX", 0)
    due_ms = timer_due_ms(waits.properties, 0) if timed else waits.store_timestamp_ms + 1000
    it.broker.clock.advance(due_ms - it.now_ms)
    it.until(it.bodies, "the message, while the clock stands still", ms=0)
    assert [each.store_timestamp_ms for each in it.queue()] == [due_ms]


def test_at_any_time_messages_come_in_the_order_of_their_times(
    scene: Maker, dice: random.Random
) -> None:
    it = scene()
    times = [it.now_ms + dice.randrange(100, 90_000) for _ in range(60)]
    keys = {it.send(Delay(out_ms=at)): at for at in times}
    found = it.await_bodies(60, ms=50)
    assert len(found) == 60 == len({each.body for each in found})
    for each in found:
        due_ms = keys[each.body.decode()]
        assert each.store_timestamp_ms - due_ms >= 0
    assert [keys[each.body.decode()] for each in found] == sorted(times)


def test_what_was_due_already_comes_at_once_and_a_relative_time_counts_from_the_store_time(
    scene: Maker,
) -> None:
    it = scene()
    late = it.send(Delay(out_ms=it.now_ms - 5000))
    slow = it.send(Delay(out_ms=it.now_ms - 5000, delay_ms=3000))
    found = it.await_bodies(2)
    assert [each.body.decode() for each in found] == [late, slow]
    stored = it.queue("rmq_sys_wheel_timer", 0)[1].store_timestamp_ms
    assert found[1].store_timestamp_ms >= stored + 3000


def test_what_is_due_is_put_every_five_ms_and_not_each_ms(scene: Maker) -> None:
    """Else what comes due in each ms has a frame of its own, which costs more than what is in it.

    Before anything is put it is said up to when.
    """
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 1000))
    it.await_bodies(1, ms=1)
    said = set()
    for _ in range(50):
        it.turn()
        said.add(it.broker.positions["delay_sent"])
    assert 50 // 5 <= len(said) <= 50 // 5 + 1


def test_a_recalled_message_does_not_come(scene: Maker) -> None:
    it = scene()
    due_ms = it.now_ms + 3000
    gone = it.send(Delay(out_ms=due_ms))
    stays = it.send(Delay(out_ms=due_ms))
    it.send(Delay(out_ms=due_ms, recalls=gone))
    (found,) = it.await_bodies(1)
    assert found.body.decode() == stays
    assert it.broker.positions["undelivered"] == 0 and it.broker.positions["pending_delayed"] == 0


def test_what_is_due_waits_for_recalls_that_are_stored_and_not_read_yet(scene: Maker) -> None:
    it = scene()
    due_ms = it.now_ms + 60_000
    gone, stays = it.send(Delay(out_ms=due_ms)), it.send(Delay(out_ms=due_ms))
    for _ in range(30):
        it.turn()
    # what brings the recall into the queue is held up, and then the messages are due
    others, it.others = it.others, []
    it.send(Delay(out_ms=due_ms, recalls=gone))
    for _ in range(30):
        it.turn(3000)
    assert it.bodies() == []
    it.others = others
    (found,) = it.await_bodies(1)
    assert found.body.decode() == stays


def test_what_is_due_comes_however_many_recalls_there_are(scene: Maker) -> None:
    """Each time waits for the recalls before it, and not for those that come meanwhile."""
    it = scene()
    key = it.send(Delay(out_ms=it.now_ms + 100))
    other = it.send(Delay(out_ms=it.now_ms + 900_000))

    def come() -> list[str]:
        it.send(Delay(out_ms=it.now_ms + 900_000, recalls=other))
        found: list[str] = it.bodies()
        return found

    assert it.until(come, "what was due, among recalls", ms=20) == [key]


def test_a_recall_is_refused_once_its_message_may_be_taken(scene: Maker) -> None:
    """By what the scheduler has said, too: its clock may be ahead of the writer's."""
    it = scene()
    due_ms = it.now_ms + 60_000
    key = it.send(Delay(out_ms=due_ms))
    recall = delayed(
        Record("orders", b"0", encode_properties({"UNIQ_KEY": "R"}), 1, born_host=HOST),
        Delay(out_ms=due_ms, recalls=key),
    )
    for _ in range(10):
        it.turn()
    positions = it.broker.stage_of(it.actor).positions
    positions.publish("delay_sent", due_ms)
    refused = it.try_put(recall)
    assert refused.status == "MESSAGE_ILLEGAL" and "its time has come" in refused.what, refused
    assert it.broker.positions["recalled"] <= it.broker.positions["wrote"]
    (found,) = it.await_bodies(1, ms=3000)
    assert found.body.decode() == key


def test_a_writer_that_died_with_a_recall_holds_up_what_is_due_no_longer(scene: Maker) -> None:
    it = scene()
    key = it.send(Delay(out_ms=it.now_ms + 60_000))
    for _ in range(10):
        it.turn()
    it.broker.stage_of(it.writer).positions.publish("recalled", RECALL_COMING)
    for _ in range(30):
        it.turn(3000)
    assert it.bodies() == []
    it.crash_writer()
    (found,) = it.await_bodies(1)
    assert found.body.decode() == key


@pytest.mark.parametrize("raw", [b"\xff", b"a/b", "²".encode()], ids=["bytes", "path", "digit"])
def test_what_waits_for_a_name_that_no_topic_may_have_ends_nothing(
    scene: Maker, raw: bytes
) -> None:
    """A topic of retries is made when it is needed, so that there is none refuses nothing."""
    it = scene()
    place = b"REAL_TOPIC\x01%RETRY%" + raw + b"\x02REAL_QID\x010\x02UNIQ_KEY\x01K\x02"
    timed = Record(TIMER_TOPIC, b"x", place + b"TIMER_OUT_MS\x01%d\x02" % (it.now_ms + 50))
    by_level = Record(SCHEDULE_TOPIC, b"x", place + b"DELAY\x011\x02")
    answers = [it.try_put(timed), it.try_put(by_level)]
    key = it.send(Delay(2))
    assert [each.body.decode() for each in it.await_bodies(1)] == [key]
    assert [each.status for each in answers] == ["TOPIC_NOT_EXIST"] * 2
    # a store may have it all the same: it was another's
    assert it.actor._targets.place(Copy(b"%RETRY%" + raw, 0, b"")) is None
    assert not it.actor._targets.missing and list(it.actor._targets.lost().values()) == [1]


def test_what_is_stored_comes_once_though_its_frame_is_refused_when_it_is_sent_again(
    scene: Maker,
) -> None:
    it = scene()
    it._tell(encode(CreateTopic(8, "gone", 1)))
    due_ms = it.now_ms + 300
    key = it.send(Delay(out_ms=due_ms))
    other = Record("gone", b"x", encode_properties({"UNIQ_KEY": "OTHER"}), born_host=HOST)
    it.put(delayed(other, Delay(out_ms=due_ms)))
    positions = it.broker.positions
    it.until(lambda: positions["pending_delayed"] == 2, "the scheduler knows both")
    it.broker.clock.advance(due_ms - it.now_ms)
    wrote, actor = positions["wrote"], it.actor
    it.others, others = [actor], it.others
    it.until(lambda: positions["wrote"] > wrote, "the frame, which nobody flushes")
    it.others, it.actor = others, None
    it.crash_writer()
    it._tell(encode(DeleteTopic(9, "gone")))
    it.actor = actor
    assert [each.body.decode() for each in it.await_bodies(1)] == [key]
    it.until(lambda: positions["undelivered"] == 1, "the other one, which has no topic")


@pytest.mark.parametrize("sent", ["before", "after"])
def test_offsets_ahead_of_their_queues_pass_over_nothing(scene: Maker, sent: str) -> None:
    """A power failure takes what was not flushed, of messages that were delivered already. What
    comes then has their offsets; some may have come before the scheduler looks."""
    it = scene()
    it.broker.crash(it.actor)
    it.actor = None
    it.progress(levels={1: 3}, indexed=3, synced=3, run="a", boot="b", begun="a")
    if sent == "after":
        it.start()
    by_level = [it.send(Delay(1)) for _ in range(5)]
    timed = [it.send(Delay(out_ms=it.now_ms + 5000)) for _ in range(5)]
    if sent == "before":
        positions = it.broker.positions
        it.until(lambda: positions["queued"] == positions["wrote"], "the queues")
        it.start()
    assert [each.body.decode() for each in it.await_bodies(10)] == by_level + timed


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_killed_each_message_comes_once_and_none_early(scene: Maker, seed: int) -> None:
    it, dice = scene(), random.Random(seed)
    due: dict[str, int] = {}
    level: list[str] = []
    for _ in range(12):
        for _ in range(5):
            wait_ms = dice.choice([-50, 5, 300, 2500, 70_000])
            due[it.send(Delay(out_ms=it.now_ms + wait_ms))] = it.now_ms + wait_ms
        level.append(it.send(Delay(1)))
        due[level[-1]] = it.now_ms
        for _ in range(dice.randrange(40)):
            it.turn(dice.choice([1, 7, 40]))
        kind = dice.randrange(3)
        if kind:
            it.crash()
        if kind != 1:
            it.crash_writer()
    found = it.await_bodies(len(due), ms=100)
    bodies = [each.body.decode() for each in found]
    assert sorted(bodies) == sorted(due), "each once"
    assert [body for body in bodies if body in level] == level, "in the order of the level"
    for each in found:
        assert each.store_timestamp_ms >= due[each.body.decode()]


def test_after_a_stop_in_order_nothing_is_doubted_and_rocketmq_finds_its_file(scene: Maker) -> None:
    it = scene()
    it.send(Delay(1))
    it.await_bodies(1)
    later = it.send(Delay(3))
    it.broker.stop(it.actor)
    it.actor = None
    raw = (it.broker.paths.root / "config" / "delayOffset.json").read_text()
    assert parse_fastjson(raw)["offsetTable"] == {"1": 1}
    it.start()
    found = it.await_bodies(2, ms=50)
    assert found[1].body.decode() == later


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first run"])
def test_a_life_that_stops_before_it_has_looked_leaves_the_doubt_to_the_next(
    scene: Maker, is_first: bool
) -> None:
    """It stops in order, and knows nothing more of what was on its way than it was told."""
    it = scene(is_first)
    if is_first:  # what it has put may be stored at the very beginning of the log
        it.actor._keeping._save_ms = 1 << 60  # nothing is saved any more
        assert it.actor._progress.floor == 0
    it.send(Delay(1))
    it.send(Delay(out_ms=it.now_ms + 900))
    if not is_first:
        it.until(lambda: it.broker.positions["pending_delayed"] == 2, "both are known")
        it.actor._keeping._save_ms = 1 << 60
    it.until(lambda: len(it.queue()) == 2, "both are stored", ms=50)
    it.crash()
    it.stop()
    it.start()
    assert len(it.await_bodies(2, ms=50)) == 2


@pytest.mark.parametrize("late", [False, True], ids=["in one ms", "found too late"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_an_end_amid_those_that_come_together_leaves_each_once(
    scene: Maker, monkeypatch: pytest.MonkeyPatch, killed: bool, late: bool
) -> None:
    """Some are stored, and that is known, and the others are not even put."""
    monkeypatch.setattr("penstock.actors.scheduler.timers.TAKEN_AT_ONCE", 2)
    it = scene()
    if late:
        it.send(Delay(out_ms=it.now_ms - 10), queue=2)
        it.until(lambda: it.bodies(2), "one that was due after all of them")
        # it stands in its queue before the scheduler hears so, and is not one of those below
        it.until(lambda: not it.actor._timers._on_way, "its answer")
    own = [encode_properties({"UNIQ_KEY": f"K{at}"}) for at in range(6)]
    found = [Record("orders", b"x%d" % at, own[at], 1, born_host=HOST) for at in range(6)]
    it.put(*[delayed(each, Delay(out_ms=it.now_ms - 5000)) for each in found])
    it.until(lambda: it.actor._timers._on_way, "some of them are put")
    it.actor._put_ms = 1 << 60  # nothing more is put
    it.until(lambda: it.queue() and not len(it.actor._sender), "some of them")
    if killed:
        it.actor._keeping._save_ms = -(1 << 60)  # just then it is saved
        it.actor._keep(it.now_ms)
        it.crash()
    else:
        it.stop()
        it.start()
    assert len(it.queue()) < 6, "else this shows nothing"
    assert sorted(each.body for each in it.await_bodies(6)) == [each.body for each in found]


def _levels(file: Path) -> Any:
    return parse_fastjson(file.read_text())["offsetTable"]


def test_while_it_runs_rocketmqs_file_is_written_now_and_then(scene: Maker) -> None:
    """Of a broker that is killed there is no other word for another one."""
    it = scene()
    file = it.broker.paths.root / "config" / "delayOffset.json"
    for number in (1, 2):
        it.send(Delay(1))
        it.await_bodies(number)
        it.until(lambda: not len(it.actor._sender), "its answer")
        it.broker.clock.advance(DOCUMENT_MS)
        # it waits until what was sent has its outcome
        it.until(lambda at=number: file.exists() and _levels(file) == {"1": at}, "its file")
    it.send(Delay(1))
    it.broker.clock.advance(1000)
    # the clock stands still: by a slow machine it would become late enough for the file
    it.until(lambda: len(it.queue()) == 3, "the third message", ms=0)
    it.until(lambda: not len(it.actor._sender), "its answer", ms=0)
    it.turn(SAVE_MS)
    it.turn()
    assert _levels(file) == {"1": 2}, "not at every save"


def test_another_brokers_delay_offsets_count(scene: Maker) -> None:
    """It has run in between, and delivered the first message in its way."""
    it = scene()
    first = it.send(Delay(1))
    second = it.send(Delay(1))
    it.broker.stop(it.actor)
    it.actor = None
    it.broker.clock.advance(1500)
    it.put(Record("orders", b"what it stored after that", b"", 2, born_host=HOST))
    file = it.broker.paths.root / "config" / "delayOffset.json"
    file.write_text(json.dumps({"dataVersion": {"counter": 7}, "offsetTable": {"1": 1}}))
    _in_another_run(it)
    it.until(lambda: it.bodies(), "the second", ms=50)
    assert it.bodies() == [second] and first not in it.bodies()


def test_delay_offsets_with_a_bent_digit_pass_over_nothing_that_was_not_due(scene: Maker) -> None:
    """They may be another broker's. But nobody delivers early, so what was due after the newest
    message of the store has not come."""
    it = scene()
    it.send(Delay(1))
    it.await_bodies(1)
    waiting = [it.send(Delay(1)) for _ in range(5)]
    it.until(lambda: it.broker.positions["pending_delayed"] == 5, "their entries")
    it.stop()
    file = it.broker.paths.root / "config" / "delayOffset.json"
    file.write_text(file.read_text().replace('"1": 1', '"1": 9'))
    _in_another_run(it)
    assert [each.body.decode() for each in it.await_bodies(6, ms=50)][1:] == waiting


def _in_another_run(it: Any) -> None:
    """The broker is started again, as far as the scheduler can see."""
    it.progress(run="an earlier one", begun="an earlier one")
    it.broker.positions.initialise("run_began", it.broker.positions["wrote"])
    it.start()


def test_without_delay_offsets_what_rocketmq_delivered_is_found(scene: Maker) -> None:
    """A store that ran elsewhere: what is in the real topic already does not come once more."""
    it = scene()
    it.send(Delay(1))
    timed = it.send(Delay(out_ms=it.now_ms + 900))
    it.await_bodies(2)
    waiting = it.send(Delay(1)), it.send(Delay(out_ms=it.now_ms + 700))
    it.broker.stop(it.actor)
    it.actor = None
    for name in ("config/delayOffset.json", "config/delayOffset.json.bak", "penstock/scheduler"):
        (it.broker.paths.root / name).unlink(missing_ok=True)
    it.start()
    found = [each.body.decode() for each in it.await_bodies(4)]
    assert len(found) == 4 and {*waiting} < {*found} and found.count(timed) == 1
    assert it.broker.positions["undelivered"] == 0, "what has come is not lost"
    # an index file that expires takes its room until the last one closes it
    (file,) = index_files(it.broker.paths.index)

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(file))

    before = mapped()
    it.actor.release_deleted()
    assert mapped() == before
    file.unlink()
    it.actor.release_deleted()
    assert mapped() < before


def test_after_a_power_failure_timers_that_were_not_synced_are_read_again(scene: Maker) -> None:
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + 3000 + at)) for at in range(5)]
    it.until(lambda: it.broker.positions["pending_delayed"] == 5, "the files")
    it.broker.crash(it.actor)
    it.actor = None
    for file in it.broker.paths.timers.iterdir():
        file.unlink()
    it.progress(boot="another")
    it.start()
    assert [each.body.decode() for each in it.await_bodies(5)] == keys


def test_after_a_sync_that_failed_no_later_one_vouches_for_what_was_written_before(
    scene: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of it once, and what it could not write counts as written from then on."""
    answers = [-1]

    class Disk:
        @staticmethod
        def syncfs(handle: int) -> int:
            return answers.pop() if answers else 0

    monkeypatch.setattr("penstock.actors.scheduler.keeping._libc", Disk)
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + 400_000 + at)) for at in range(3)]
    it.until(lambda: it.broker.positions["pending_delayed"] == 3, "the files")
    with pytest.raises(StoreUnavailable):
        it.until(lambda: it.actor._progress.synced, "a sync", ms=500)
    for file in it.broker.paths.timers.iterdir():
        file.write_bytes(bytes(file.stat().st_size))  # as the disk has them, and they are read
    it.crash()
    assert [each.body.decode() for each in it.await_bodies(3, ms=500)] == keys
    assert it.actor._progress.synced == 3 and it.actor._progress.boot


def test_a_life_does_not_end_before_it_knows_the_outcome_of_its_last_sync(
    scene: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that failed nobody else is told, and the next life would read the same files."""
    is_awaited = threading.Event()

    class Disk:
        @staticmethod
        def syncfs(handle: int) -> int:
            is_awaited.wait()
            return -1

    class Sync(_Sync):
        def join(self, timeout: float | None = None) -> None:
            is_awaited.set()
            super().join(timeout)

    monkeypatch.setattr("penstock.actors.scheduler.keeping._libc", Disk)
    monkeypatch.setattr("penstock.actors.scheduler.keeping._Sync", Sync)
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 400_000))
    it.until(lambda: it.broker.positions["pending_delayed"] == 1, "the file")
    it.until(lambda: it.actor._keeping._sync, "a sync", ms=500)
    assert it.actor._progress.boot
    it.stop()
    is_awaited.set()
    assert it.progress().boot == ""


def test_a_life_that_puts_nothing_into_the_files_syncs_what_the_one_before_has_put(
    scene: Maker,
) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 400_000))
    it.until(lambda: it.broker.positions["pending_delayed"] == 1, "the file")
    it.crash()
    it.until(lambda: it.actor._progress.synced == 1, "a sync", ms=500)


@pytest.mark.parametrize("boot", ["another", ""], ids=["power failure", "failed sync"])
def test_a_death_amid_what_is_read_again_repeats_nothing(scene: Maker, boot: str) -> None:
    """What the files lack is read again from where they were synced, and of that some has come."""
    it = scene()
    first = [it.send(Delay(out_ms=it.now_ms + 10 + at)) for at in range(5)]
    assert len(it.await_bodies(5)) == 5
    later = it.send(Delay(out_ms=it.now_ms + 90_000))
    it.until(lambda: it.broker.positions["pending_delayed"] == 1, "the files")
    it.stop()
    for file in it.broker.paths.timers.iterdir():
        file.unlink()
    progress = it.progress(boot=boot)
    assert progress.indexed == 6 and not progress.synced, "else this shows nothing"
    it.start()
    it.crash()
    it.crash()
    assert [each.body.decode() for each in it.await_bodies(6, ms=500)] == [*first, later]


@pytest.mark.parametrize("first", [False, True], ids=["after a stop", "of a new store"])
def test_a_power_failure_soon_after_a_start_does_not_bring_back_the_word_before_it(
    scene: Maker, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Nothing has come since, said a stop. Whoever finds that again must not believe it."""
    it = scene(message_index_enable=False)
    it.stop()
    file = it.broker.paths.scheduler
    synced = {"before": file.read_bytes()}
    if first:
        file.unlink()
        it.broker.paths.delay_offsets.unlink(missing_ok=True)
    sync, sync_names = os.fdatasync, progress.sync_directory

    def fdatasync(handle: int) -> None:
        sync(handle)
        if os.path.samestat(os.fstat(handle), file.stat()):
            synced["now"] = file.read_bytes()

    def sync_directory(directory: Path) -> None:
        sync_names(directory)
        if directory == file.parent:
            synced["name"] = b""

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(progress, "sync_directory", sync_directory)
    it.start()
    key = it.send(Delay(out_ms=it.now_ms + 300))
    it.await_bodies(1)
    it.broker.crash(it.actor)
    it.actor = None
    if first and "name" not in synced:
        file.unlink()
    else:
        file.write_bytes(synced.get("now", synced["before"]))
        it.progress(run="of another boot", boot="another")
    it.start()
    it.send(Delay(out_ms=it.now_ms + 300))
    assert [each.body.decode() for each in it.await_bodies(2)].count(key) == 1


def test_the_cleaner_is_told_soon_after_a_start_and_not_before_that_is_known(scene: Maker) -> None:
    it = scene()
    positions = it.broker.positions
    it.until(lambda: positions["delay_floor"], "a word that nothing waits")
    first = it.send(Delay(out_ms=it.now_ms + 60_000))
    it.broker.stop(it.actor)
    it.actor = None
    positions.initialise("delay_floor", 0)
    it.start()
    it.actor._timers._catch_up = 1 << 62  # its queue is not read yet
    for _ in range(300):
        it.turn()
    assert not positions["delay_floor"]
    it.actor._timers._catch_up = 0
    it.until(lambda: positions["delay_floor"], "the word")
    assert positions["delay_floor"] == 1 and first not in it.bodies()


def test_the_cleaner_is_told_below_what_nothing_waits(scene: Maker) -> None:
    it = scene()
    positions = it.broker.positions
    it.send(Delay(1))
    place = positions["wrote"]
    kept = it.send(Delay(5))  # a minute: more than all that comes before it takes
    it.until(lambda: positions["delay_floor"] == place, "the first is delivered", ms=5)
    for _ in range(5):
        it.send(Delay(out_ms=it.now_ms - 1), queue=2)
    it.until(lambda: len(it.queue(queue_id=2)) == 5, "the others")
    assert positions["delay_floor"] == place, "one waits still"
    it.until(lambda: kept in it.bodies(), "the last", ms=50)
    it.until(lambda: positions["delay_floor"] > place and not positions["pending_delayed"], ms=50)


def test_a_topic_that_is_gone_holds_nobody_up(
    scene: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scene()
    document = parse_fastjson(it.broker.paths.topics.read_text())
    it.send(Delay(1))
    kept = it.send(Delay(2), queue=3)
    document["topicConfigTable"]["orders"]["writeQueueNums"] = 2
    it.broker.paths.topics.write_text(json.dumps(document))
    it.until(lambda: kept in it.bodies(1), "the queue that is left", ms=50)
    gone = it.send(Delay(1))
    it._tell(encode(DeleteTopic(9, "orders")))
    it.until(lambda: it.broker.positions["undelivered"] == 1, "the count", ms=50)
    assert gone not in it.bodies()
    assert "topic orders, which is gone" in capfd.readouterr().err
    assert "orders" not in load_topics(it.broker.paths.topics).names()


def test_a_topic_that_no_file_has_and_nobody_deleted_is_made_for_what_is_due(scene: Maker) -> None:
    """A store without its topics.json: RocketMQ delivers there whatever the file says."""
    it = scene()
    it.put(Record("orders", b"before", encode_properties({"UNIQ_KEY": "X"}), 2, born_host=HOST))
    timed, level = it.send(Delay(out_ms=it.now_ms + 900), queue=3), it.send(Delay(1))
    it.broker.crash(it.writer)
    it.broker.paths.topics.unlink()
    it.writer = it.broker.start(Writer)
    it.until(lambda: timed in it.bodies(3) and level in it.bodies(1), "both", ms=20)
    assert it.broker.positions["undelivered"] == 0
    assert load_topics(it.broker.paths.topics).read_queues("orders") == 8


def test_a_damaged_file_of_topics_holds_up_nothing_that_was_known_before(
    scene: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scene()
    sent = it.send(Delay(1))
    it.turn()
    it.broker.paths.topics.write_bytes(b"{")
    it.until(lambda: sent in it.bodies(), "the message", ms=20)
    assert "topics stay as they were: [STORE_DAMAGED]" in capfd.readouterr().err


def test_a_start_with_a_damaged_file_of_topics_delivers_when_it_is_mended(
    scene: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scene()
    sent, file = it.send(Delay(1)), it.broker.paths.topics
    whole = file.read_bytes()
    file.write_bytes(b"{")
    it.crash()
    for _ in range(200):
        it.turn(20)
    assert it.bodies() == [] and it.broker.positions["undelivered"] == 0
    assert it.actor.idle_ms() > 1, "what is due is not looked at all the time"
    assert capfd.readouterr().err.count("[STORE_DAMAGED]") == 1
    file.write_bytes(whole)
    it.until(lambda: it.bodies() == [sent], "the message", ms=20)


def test_a_topic_that_cannot_be_made_is_told_and_counted(
    scene: Maker, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scene(max_queues=8)
    others = [it.send(Delay(out_ms=it.now_ms + 700 + at), queue=1) for at in range(3)]
    it.broker.crash(it.writer)
    it.broker.paths.topics.unlink()
    topics = Topics()
    topics.put("others", 8, 1)
    save_topics(it.broker.paths.topics, topics)
    it.writer = it.broker.start(Writer)
    it.until(lambda: it.broker.positions["undelivered"] == len(others), "the count", ms=20)
    assert "more than 8 queues" in capfd.readouterr().err


def test_what_is_due_in_a_queue_that_goes_just_then_goes_to_one_that_is_left(scene: Maker) -> None:
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + 500 + at * 20), queue=3) for at in range(60)]
    it.until(lambda: it.bodies(3), "the first", ms=10)
    # the scheduler looks at topics now and then, and what it has sent may be on its way
    it._tell(encode(UpdateTopic(9, "orders", read_queues=2, write_queues=2)))
    it.until(lambda: len(it.bodies(3)) + len(it.bodies(1)) >= 60, "all", ms=10)
    # what is refused is put again one by one, and what is due next may be on its way by then
    assert sorted(it.bodies(3) + it.bodies(1)) == keys and it.bodies(1)
    assert it.broker.positions["undelivered"] == 0
    now_ms = it.now_ms
    it.until(lambda: it.broker.positions["delay_over"] >= now_ms, "nothing is on its way", ms=10)


def test_what_is_refused_for_its_queue_goes_to_one_that_is_left_before_the_next_look_at_topics(
    scene: Maker,
) -> None:
    it = scene()
    clock, targets = it.broker.clock, it.actor._targets
    it.until(lambda: clock.monotonic_ms() == targets._looked_ms + 1, "a look at topics")
    looked_ms = targets._looked_ms
    key = it.send(Delay(out_ms=it.now_ms + 20), queue=3)
    it._tell(encode(UpdateTopic(9, "orders", read_queues=2, write_queues=2)))
    for _ in range(40):
        it.turn()
    it.until(lambda: it.bodies(1), "what was refused", ms=0)
    assert it.bodies(1) == [key] and not it.bodies(3)
    assert targets._looked_ms > looked_ms and clock.monotonic_ms() < looked_ms + LOOK_MS


def test_a_disk_that_refuses_at_its_start_holds_it_up_and_ends_nothing(scene: Maker) -> None:
    it = scene()
    sent = it.send(Delay(1))
    it.until(lambda: it.broker.positions["pending_delayed"], "the scheduler knows it")
    it.broker.crash(it.actor)
    progress = it.broker.paths.scheduler
    progress.unlink()
    progress.symlink_to(progress.parent / "nowhere" / "file")  # no file can be made there
    it.start()
    for _ in range(50):
        it.turn(100)
    assert it.bodies() == [], "it sent before it had written down that it is there"
    progress.unlink()
    assert [each.body.decode() for each in it.await_bodies(1)] == [sent]


def test_recall_keys_are_rocketmqs() -> None:
    assert recall_key("orders", "K") == "orders+K"


def test_what_is_far_comes_once_whoever_dies_while_its_hour_is_split(
    scene: Maker, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a power failure may take the minutes' files, but not what was synced of the hour's."""
    monkeypatch.setattr("penstock.actors.scheduler.calendar.SPLIT_AT_ONCE", 7)
    it = scene()
    hour_ms = (it.now_ms // 3_600_000 + 3) * 3_600_000
    keys = {it.send(Delay(out_ms=at)): at for at in dice.sample(range(hour_ms, hour_ms + 200), 60)}
    gone = it.send(Delay(out_ms=hour_ms + 201))
    it.send(Delay(out_ms=hour_ms + 201, recalls=gone))
    it.until(lambda: it.broker.positions["pending_delayed"] == 62, "the hour's file")
    assert [path.name for path in it.broker.paths.timers.iterdir()] == [f"{hour_ms // 3_600_000}h"]
    split_ms = hour_ms - 600_000
    while it.now_ms < split_ms - 100_000:
        it.turn(100_000)
    for _ in range(40):
        it.turn(max(1, split_ms - it.now_ms))
        if dice.random() < 0.2:
            it.crash()
    assert len([path for path in it.broker.paths.timers.iterdir()]) > 1, "it is split"
    it.crash()
    for path in it.broker.paths.timers.iterdir():
        if path.name.isdigit():
            path.unlink()
    it.progress(boot="another", synced=it.progress().indexed)
    it.crash()
    found = [each.body.decode() for each in it.await_bodies(60, ms=5000)]
    assert [keys[key] for key in found] == sorted(keys.values())


def test_after_a_death_only_what_was_on_its_way_is_sent_again(scene: Maker) -> None:
    """Whatever was saved of it: retries take time, and would hold up what is due next."""
    it = scene()
    # none is due before all are known, however many turns that takes
    dues = [it.now_ms + 600_000 + at for at in range(40)]
    for due_ms in dues:
        it.send(Delay(out_ms=due_ms))
    it.until(lambda: it.broker.positions["pending_delayed"] == 40, "all are known")
    it.actor._keeping._save_ms = 1 << 60  # nothing is saved any more
    it.broker.clock.advance(dues[0] - it.now_ms)
    it.until(lambda: it.broker.positions["delay_over"] >= dues[-1], "all are delivered")
    later = it.send(Delay(out_ms=it.now_ms + 3000))
    saved_ms = it.actor._progress.delivered_ms
    it.crash()
    assert saved_ms < dues[-1], "else this shows nothing"
    assert it.actor._timers.delivered_ms() >= dues[-1]
    assert not it.actor._timers._around.doubt.holds(it.now_ms + 3000, 0)
    assert it.await_bodies(41)[-1].body.decode() == later


def test_what_the_queue_lacks_after_a_start_of_the_broker_comes_once(
    scene: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life has put it into a file and has not saved that; the next one meets a reput that has the
    queue still to write again."""
    it = scene()
    keys = [it.send(Delay(out_ms=it.now_ms + 2000 + at)) for at in range(5)]
    timers = it.broker.paths.timers
    it.until(lambda: timers.is_dir() and any(timers.iterdir()), "the file")
    whole = QueueReader.range, QueueReader.queued
    monkeypatch.setattr(QueueReader, "range", lambda self, slot: (0, 0))
    monkeypatch.setattr(QueueReader, "queued", 0)
    it.crash()
    for _ in range(30):
        it.turn(100)
    monkeypatch.setattr(QueueReader, "range", whole[0])
    monkeypatch.setattr(QueueReader, "queued", whole[1])
    assert [each.body.decode() for each in it.await_bodies(5)] == keys


def test_what_is_due_together_comes_from_all_the_segments_that_have_it(scene: Maker) -> None:
    it = scene()
    due_ms = it.now_ms + 3000
    sent = [it.send(Delay(out_ms=due_ms), PAD="x" * 15_000) for _ in range(12)]
    assert it.broker.positions["wrote"] > 2 * it.broker.config.mapped_file_size_commit_log_bytes
    assert [each.body.decode() for each in it.await_bodies(12)] == sent


def test_what_waits_in_an_hour_that_is_split_is_counted_once_by_the_next_life(
    scene: Maker,
) -> None:
    it = scene()
    due_ms = it.now_ms + 3 * HOUR_MS
    for _ in range(3):
        it.send(Delay(out_ms=due_ms))
    it.until(lambda: it.broker.positions["pending_delayed"] == 3, "the hour's file")
    it.broker.clock.advance(3 * HOUR_MS - MINUTE_MS)
    it.until(lambda: it.actor._timers.calendar.whole_hour >= due_ms // HOUR_MS, "its minutes")
    it.turn(SAVE_MS), it.turn()
    it.crash()
    for _ in range(30):
        it.turn(20)
        assert it.broker.positions["pending_delayed"] <= 3
    assert it.broker.positions["pending_delayed"] == 3


def test_what_a_death_leaves_in_doubt_goes_in_full_frames_and_comes_once(
    scene: Maker, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predecessor's frames were others: of each of these any message may be stored."""
    it = scene()
    due_ms = it.now_ms + 6000  # so that all are known before any is due
    keys = [it.send(Delay(out_ms=due_ms + dice.randrange(60))) for _ in range(120)]
    keys += [it.send(Delay(2)) for _ in range(30)]
    it.until(lambda: it.broker.positions["pending_delayed"] == 150, "all are known")
    it.actor._keeping._save_ms = 1 << 60  # nothing is saved any more
    # of what is due some is stored, and not the first of it
    monkeypatch.setattr("penstock.actors.scheduler.copies.MOST_IN_FRAME", 7)
    put, frames = RecordSender.put, []

    def put_some(self: Any, runs: Any, records: bytes, tag: Any, maybe: bool = False) -> None:
        frames.append(len(tag.copies))
        if dice.random() < 0.5:
            put(self, runs, records, tag, maybe)

    monkeypatch.setattr(RecordSender, "put", put_some)
    it.until(lambda: sum(frames) == 150, "all are on their way, or lost")
    it.until(lambda: not len(it.actor._sender), "their answers")
    positions = it.broker.positions
    it.until(lambda: positions["queued"] == positions["wrote"], "the queues")
    stored = len(it.queue())
    assert 20 < stored < 130
    monkeypatch.undo()
    sent: list[int] = []

    def count(self: Any, runs: Any, records: bytes, tag: Any, maybe: bool = False) -> None:
        sent.append(len(tag.copies))
        put(self, runs, records, tag, maybe)

    monkeypatch.setattr(RecordSender, "put", count)
    it.crash()
    found = [each.body.decode() for each in it.await_bodies(150)]
    assert sorted(found) == sorted(keys), "each once"
    # what was stored of the first ones is over, and not doubted
    assert 150 - stored <= sum(sent) <= 150 and len(sent) < 10, "in full frames"
