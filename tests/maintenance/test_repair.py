"""Repair: checkers are content after it, whole messages the same, and lost ones are named."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chaos.stepped.replay import settle
from penstock.maintenance.rebuild import rebuild_store
from penstock.maintenance.repair import Repair, plan_repair, repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import ConfigError
from penstock.shared.files.durable import make_directory
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.properties import LOST, decode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import (
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    SMALLEST_RECORD_BYTES,
    store_timestamp_ms,
)
from penstock.shared.formats.tombstone import LostMessage, lay_out
from penstock.shared.layout import segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.deleted_topics import DeletedTopics, save_deleted_topics
from penstock.shared.queue.known_queues import QueueEnd, replace_known_queues
from penstock.shared.store.directory import StoreDirectory

SEGMENT = 4096


def _repair(store: Any) -> Repair:
    return repair_store(store.paths, store.config, SystemClock(), None)


def _records(root: Path) -> list[Record]:
    with StoreDirectory(root) as store:
        return [
            decode_record(bytes(step[3])) for step in store.scan_log() if step[1] is Kind.RECORD
        ]


def test_of_a_log_that_is_nothing_but_a_torn_tail_nothing_is_to_be_repaired(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    store = stopped_store([make_record()], unclean=True)
    log = store.log()
    log[AT_MAGIC] ^= 4
    store.write_log(log)
    assert not plan_repair(store.paths, store.config).needed


def _assert_repaired(store: Any, before: list[Record], lost: set[tuple[int, int]]) -> None:
    """All but the lost ones are as they were, those are tombstones, and nothing is left to do."""
    report = verify_store(store.paths.root)
    assert report.problems == []
    after = {(r.queue_id, r.queue_offset): r for r in _records(store.paths.root) if r.topic != LOST}
    for record in before:
        key = (record.queue_id, record.queue_offset)
        if key in lost:
            assert not any(after[key].body)
            assert decode_properties(after[key].properties)[LOST] == "true"
        else:
            assert after[key] == record
    assert len(after) == len(before)
    assert not store.paths.quarantined.exists()
    assert not plan_repair(store.paths, store.config).needed
    assert store.recover().quarantined == ()


@pytest.mark.parametrize("queues", [True, False])
@pytest.mark.parametrize("unclean", [True, False])
def test_damage_in_the_middle_becomes_tombstones_and_everything_else_stays(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool, queues: bool
) -> None:
    store = stopped_store(twelve, unclean=unclean, queues=queues)
    starts = store.starts()
    whole = _records(store.paths.root)
    log = store.log()
    log[starts[2] + 120] ^= 1
    log[starts[3] + 6] ^= 1  # next to it: one range of two messages
    log[starts[10] + 8] ^= 1
    damaged = bytes(log)
    store.write_log(log)
    plan = plan_repair(store.paths, store.config)
    assert store.log() == damaged, "a plan changes nothing"
    expected = [
        [LostMessage("orders", 0, 1), LostMessage("orders", 1, 1)],
        [LostMessage("orders", 0, 5)],
    ]
    assert [each.lost for each in plan.ranges][0] == expected[0]
    done = _repair(store)
    assert done.applied and [each.lost for each in done.ranges][0] == expected[0]
    kept = store.paths.quarantine / f"{starts[2]}.bin"
    assert kept.read_bytes() == damaged[starts[2] : starts[4]]
    # of the last of its queue its entry tells, or else what is left of its record
    assert [each.lost for each in done.ranges] == expected
    _assert_repaired(store, whole, {(0, 1), (1, 1), (0, 5)})


def test_files_that_do_not_belong_go_and_segments_get_their_length(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve * 3)
    whole = _records(store.paths.root)
    ends = [record.physical_offset + record.total_size for record in whole]
    (store.paths.commit_log / "notes.txt").write_text("mine")
    os.mkfifo(store.paths.commit_log / "pipe")
    (store.paths.queue("orders", 0) / "x").symlink_to("/nowhere")
    (store.paths.queue("orders", 1) / segment_name(1)).write_bytes(bytes(1000))
    (store.paths.commit_log / segment_name(SEGMENT)).unlink()
    os.truncate(store.paths.commit_log / segment_name(2 * SEGMENT), 1000)
    with (store.paths.queue("orders", 0) / segment_name(0)).open("ab") as longer:
        longer.write(b"more")
    store.paths.checkpoint.write_bytes(b"short")
    plan = plan_repair(store.paths, store.config)
    assert len(plan.files) == 8
    done = _repair(store)
    assert done.files == plan.files
    lost = {
        (record.queue_id, record.queue_offset)
        for record, end in zip(whole, ends, strict=True)
        if SEGMENT <= record.physical_offset < 2 * SEGMENT
        or record.physical_offset >= 2 * SEGMENT
        and 2 * SEGMENT + 1000 < end <= 3 * SEGMENT
    }
    _assert_repaired(store, whole, lost)
    names = {path.name for path in store.paths.quarantine.iterdir()}
    assert {"commitlog--notes.txt", "commitlog--pipe", "checkpoint"} <= names
    assert (store.paths.quarantine / "commitlog--notes.txt").read_text() == "mine"


def test_a_second_damage_at_the_same_place_is_kept_beside_the_first(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """The disk is bad there. What the first repair has kept is shorter, and is not these bytes."""
    store = stopped_store(twelve)
    starts, kept = store.starts(), []
    for stop in (3, 5):
        log = store.log()
        for number in range(2, stop):
            log[starts[number] + 120] ^= 1
        store.write_log(log)
        done = _repair(store)
        (only,) = done.ranges
        assert Path(only.kept_in).read_bytes() == log[starts[2] : starts[stop]]
        kept.append(only.kept_in)
    assert kept == [str(store.paths.quarantine / f"{starts[2]}.bin{end}") for end in ("", ".1")]
    assert Path(kept[0]).stat().st_size == starts[3] - starts[2]


def test_a_segment_that_is_too_long_a_second_time_is_kept_again(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    segment = store.paths.commit_log / segment_name(0)
    for more in (b"one", b"other"):
        with segment.open("ab") as file:
            file.write(more)
        _repair(store)
        assert segment.stat().st_size == SEGMENT
    kept = [path.read_bytes()[SEGMENT:] for path in sorted(store.paths.quarantine.iterdir())]
    assert kept == [b"one", b"other"]


def test_a_queue_that_begins_mid_way_is_not_damaged(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, first_offsets={("orders", 1): 70})
    starts = store.starts()
    whole = _records(store.paths.root)
    assert not plan_repair(store.paths, store.config).needed
    log = store.log()
    log[starts[0] + 6] ^= 1
    store.write_log(log)
    assert [each.lost for each in _repair(store).ranges] == [[LostMessage("orders", 0, 0)]]
    assert _records(store.paths.root)[1:] == whole[1:]
    assert verify_store(store.paths.root).problems == []


def test_a_queue_whose_lost_first_message_just_had_room_in_front_begins_with_it(
    stopped_store: Callable[..., Any],
) -> None:
    store = stopped_store([Record("t", b"")] * 2, queues=False)
    assert store.starts()[1] == SMALLEST_RECORD_BYTES + len("t")
    log = store.log()
    log[: store.starts()[1]] = b"\x11" * store.starts()[1]
    store.write_log(log)
    assert [each.lost for each in _repair(store).ranges] == [[LostMessage("t", 0, 0)]]


def test_a_queue_offset_that_cannot_be_is_damage(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    whole = _records(store.paths.root)
    log = store.log()
    log[starts[8] + 20] = 0x40
    store.write_log(log)
    assert [each.lost for each in _repair(store).ranges] == [[LostMessage("orders", 0, 4)]]
    _assert_repaired(store, whole, {(0, 4)})


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(("number", "bent"), [(4, 1 << 40), (4, 3), (4, 1), (4, 5), (0, 3)])
def test_of_a_record_in_a_wrong_slot_a_check_advises_what_mends_it(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    number: int,
    bent: int,
    unclean: bool,
) -> None:
    """Its entry differs too; but queues made again from the same log are the same."""
    store = stopped_store(twelve, unclean=unclean)
    log, at = store.log(), store.starts()[number] + AT_QUEUE_OFFSET
    log[at : at + 8] = bent.to_bytes(8, "big")
    store.write_log(log)
    advice = verify_store(store.paths.root).advice
    assert advice == [f"penstock store repair {store.paths.root} --apply"]
    _repair(store)
    assert verify_store(store.paths.root).problems == []


@pytest.mark.parametrize("unclean", [False, True])
def test_what_is_whole_behind_a_lost_segment_and_a_lost_head_of_the_next_one_stays(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool
) -> None:
    """Zeros up to a segment's end and on the first bytes of the next look like a log's end."""
    store = stopped_store(twelve * 2, unclean=unclean)
    whole = _records(store.paths.root)
    (store.paths.commit_log / segment_name(SEGMENT)).unlink()
    last = store.paths.commit_log / segment_name(2 * SEGMENT)
    last.write_bytes(bytes(100) + last.read_bytes()[100:])
    _repair(store)
    lost = {
        (each.queue_id, each.queue_offset)
        for each in whole
        if SEGMENT <= each.physical_offset <= 2 * SEGMENT
    }
    assert whole[-1].physical_offset > 2 * SEGMENT, "there is something to be kept"
    _assert_repaired(store, whole, lost)


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(
    ("number", "bit"),
    [
        *[(6, 0), (6, 1), (7, 1), (2, 0), (4, 0), (0, 0), (0, 2)],  # slots of other messages
        *[(10, 1), (11, 3), (8, 3), (9, 4), (4, 3), (1, 3)],  # past the queue's end
    ],
)
def test_a_queue_offset_that_is_not_its_own_is_damage(
    stopped_store: Callable[..., Any], twelve: list[Record], number: int, bit: int, unclean: bool
) -> None:
    """One bit, which no checksum covers: a message whose slot it names is served all the same, and
    where no message has that, the entry of its own slot leads to it."""
    store = stopped_store(twelve, unclean=unclean)
    start = store.starts()[number]
    whole = _records(store.paths.root)
    log = store.log()
    log[start + AT_QUEUE_OFFSET + 7] ^= 1 << bit
    store.write_log(log)
    (found,) = _repair(store).ranges
    own = LostMessage("orders", number % 2, number // 2)
    assert (found.lost, found.damage.position) == ([own], start)
    _assert_repaired(store, whole, {(number % 2, number // 2)})


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(("number", "bit"), [(0, 1), (0, 6), (1, 0), (1, 6)])
def test_a_queue_s_first_message_that_names_another_queue_is_damage_where_others_have_expired(
    stopped_store: Callable[..., Any], twelve: list[Record], number: int, bit: int, unclean: bool
) -> None:
    """The log has nothing of the queue before it; the entry of its own slot leads to it."""
    firsts = {("orders", 0): 60, ("orders", 1): 70}
    store = stopped_store(twelve, base=SEGMENT, first_offsets=firsts, unclean=unclean)
    whole, log = _records(store.paths.root), store.log()
    log[store.starts()[number] - SEGMENT + AT_QUEUE_ID + 3] ^= 1 << bit
    store.write_log(log)
    (found,) = _repair(store).ranges
    assert found.lost == [LostMessage("orders", number, (60, 70)[number])]
    assert verify_store(store.paths.root).problems == []
    after = {(r.queue_id, r.queue_offset): r for r in _records(store.paths.root) if r.topic != LOST}
    rest = [each for index, each in enumerate(whole) if index != number]
    assert all(after[r.queue_id, r.queue_offset] == r for r in rest)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("number", "bit"), [(2, 5), (4, 3), (5, 4), (8, 3)])
def test_a_record_that_leaps_past_its_queue_s_end_is_damage_though_no_entry_leads_to_it(
    stopped_store: Callable[..., Any], twelve: list[Record], number: int, bit: int, started: bool
) -> None:
    """The next of its queue says which slot it had, also where a start has taken its word."""
    store = stopped_store(twelve, queues=False)
    start, whole, log = store.starts()[number], _records(store.paths.root), store.log()
    log[start + AT_QUEUE_OFFSET + 7] ^= 1 << bit
    store.write_log(log)
    if started:
        rebuild_store(store.paths, store.config, SystemClock(), queues=True, index=False)
    (found,) = _repair(store).ranges
    own = LostMessage("orders", number % 2, number // 2)
    assert (found.lost, found.damage.position) == ([own], start)
    after = {(r.queue_id, r.queue_offset): r for r in _records(store.paths.root) if r.topic != LOST}
    assert all(after[r.queue_id, r.queue_offset] == r for r in whole if r.physical_offset != start)
    assert verify_store(store.paths.root).problems == []


@pytest.mark.parametrize("queues", [True, False])
@pytest.mark.parametrize("apart", [False, True])
def test_many_messages_outweigh_a_first_one_that_contradicts_them(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record], apart: bool, queues: bool
) -> None:
    """Of a log whose beginning has expired the first record names a slot that is too low."""
    records = [make_record(body=bytes([65 + number]) * 40) for number in range(12)]
    if apart:  # records of another queue stand between: each is judged by itself
        records = [make_record(queue_id=number % 2, body=b"x" * 40) for number in range(24)]
    firsts = {("orders", 0): 60, ("orders", 1): 60}
    store = stopped_store(records, base=SEGMENT, first_offsets=firsts, unclean=True, queues=queues)
    whole = _records(store.paths.root)
    log = store.log()
    assert log[AT_QUEUE_OFFSET + 7] == 60
    log[AT_QUEUE_OFFSET + 7] ^= 32
    store.write_log(log)
    built = rebuild_store(store.paths, store.config, SystemClock(), queues=True, index=False)
    assert (built.misplaced, built.entries) == ([SEGMENT], len(whole) - 1)
    (found,) = _repair(store).ranges
    assert found.damage.position == SEGMENT
    after = {(r.queue_id, r.queue_offset): r for r in _records(store.paths.root) if r.topic != LOST}
    assert all(after[r.queue_id, r.queue_offset] == r for r in whole[1:])
    assert (0, 60 ^ 32) not in after
    with StoreDirectory(store.paths.root) as directory:
        queue = directory.queues()[0]
        served = queue.entries(61, 72)["offset"].tolist()
    assert served == [r.physical_offset for r in whole[1:] if r.queue_id == 0]
    assert verify_store(store.paths.root).problems == []


def test_a_topic_that_was_made_again_is_no_damage(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """RocketMQ's: its queues begin at 0 again, and the log has the old messages, too."""
    store = stopped_store([make_record(body=bytes([65 + number]) * 400) for number in range(7)])
    log = store.log()
    for number, start in enumerate(store.starts()[4:-1]):
        log[start + AT_QUEUE_OFFSET + 7] = number
    store.write_log(log)
    assert plan_repair(store.paths, store.config).ranges == []


def test_what_a_topic_that_was_created_again_has_lost_is_not_what_the_deleted_one_had(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """The log has the old messages too, which name the same slots."""
    records = [make_record(body=bytes([65 + number]) * 100) for number in range(12)]
    store = stopped_store(records, queues=False)
    starts, log = store.starts(), store.log()
    for number, start in enumerate(starts[5:-1]):
        log[start + AT_QUEUE_OFFSET + 7] = number
    store.write_log(log)
    deleted = DeletedTopics().with_rows(["orders"], starts[5], 1)
    make_directory(store.paths.own)
    save_deleted_topics(store.paths.deleted_topics, deleted.settled(set()))
    rebuild_store(store.paths, store.config, SystemClock(), queues=True, index=False)
    for number in (7, 8):
        log[starts[number] + 120] ^= 1
    store.write_log(log)
    lost = [LostMessage("orders", 0, 2), LostMessage("orders", 0, 3)]
    assert [each.lost for each in _repair(store).ranges] == [lost]
    assert verify_store(store.paths.root).problems == []


def test_a_wrong_configuration_is_not_a_wrong_store(
    stopped_store: Callable[..., Any], twelve: list[Record], make_config: Callable[..., Any]
) -> None:
    store = stopped_store(twelve)
    before = store.contents()
    other = make_config(mapped_file_size_commit_log_bytes=8192)
    with pytest.raises(ConfigError, match="has 4096, and 8192 is asked for"):
        repair_store(store.paths, other, SystemClock(), None)
    queues = make_config(mapped_file_size_consume_queue_bytes=2000)
    for act in (
        lambda: repair_store(store.paths, queues, SystemClock(), None),
        lambda: rebuild_store(store.paths, queues, SystemClock(), queues=True, index=False),
    ):
        with pytest.raises(ConfigError, match="has 1000, and 2000 is asked for"):
            act()
    found = store.contents()
    assert {name: found[name] for name in before} == before


def test_a_repair_killed_anywhere_is_run_again(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, unclean=True)
    starts = store.starts()
    whole = _records(store.paths.root)
    log = store.log()
    for number in (2, 3, 9):
        log[starts[number] + 120] ^= 1
    store.write_log(log)
    (store.paths.commit_log / "notes.txt").write_text("mine")
    for step in range(0, 40, 2):
        child = os.fork()
        if child == 0:
            left = step

            def count(event: str, args: tuple[Any, ...]) -> None:
                nonlocal left
                left -= event in ("os.remove", "os.rmdir", "os.rename", "os.mkdir", "open")
                left -= event in ("ctypes.call_function", "os.truncate", "os.listdir")
                if left < 0:
                    os._exit(9)

            sys.addaudithook(count)
            _repair(store)
            os._exit(0)
        os.waitpid(child, 0)
    _repair(store)
    _assert_repaired(store, whole, {(0, 1), (1, 1), (1, 4)})
    kept = {path.name: path.read_bytes() for path in store.paths.quarantine.glob("*.bin")}
    assert kept[f"{starts[2]}.bin"] == bytes(log[starts[2] : starts[4]])
    assert kept[f"{starts[9]}.bin"] == bytes(log[starts[9] : starts[10]])


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("point", ["repair.mid_range", "repair.replaced", "repair.rebuilt"])
def test_a_repair_says_the_same_when_one_before_it_was_killed(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    unclean: bool,
) -> None:
    """Of a range that is replaced in part the rest alone is damaged, and was said to be all."""
    store = stopped_store(twelve, unclean=unclean)
    starts, whole = store.starts(), _records(store.paths.root)
    log = store.log()
    for number in (2, 3, 4, 9):
        log[starts[number] + 120] ^= 1
    store.write_log(log)
    planned = plan_repair(store.paths, store.config).ranges
    assert [len(each.lost) for each in planned] == [3, 1]

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("penstock.maintenance.repair.crash_point", die)
            with pytest.raises(KeyboardInterrupt):
                _repair(store)
        again = plan_repair(store.paths, store.config).ranges
        assert [(each.lost, each.kept_in) for each in again] == [
            (each.lost, each.kept_in) for each in planned
        ]
    done = _repair(store).ranges
    assert [(each.lost, each.kept_in) for each in done] == [
        (each.lost, each.kept_in) for each in planned
    ]
    kept = {path.name: path.read_bytes() for path in store.paths.quarantine.iterdir()}
    assert kept == {
        f"{starts[2]}.bin": bytes(log[starts[2] : starts[5]]),
        f"{starts[9]}.bin": bytes(log[starts[9] : starts[10]]),
    }
    _assert_repaired(store, whole, {(0, 1), (1, 1), (0, 2), (1, 4)})
    assert plan_repair(store.paths, store.config).ranges == []


@pytest.mark.parametrize("records", [9, 12])
def test_a_repair_ends_where_the_log_did_and_not_at_a_blank_of_another_segment(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    records: int,
) -> None:
    """Two segments have changed places: the blank of the full one stands after the log's end, or
    goes beyond it, and looks like something whole that the damage ends at."""
    store = stopped_store(twelve[:records], unclean=True)
    end = store.starts()[-1]
    run = make_run(store.config)
    positions = Positions(run.positions, owner="supervisor")
    for name in ("wrote", "committed", "flushed"):
        positions.initialise(name, end)
    positions.close()
    store.paths.abort.write_text(str(run.supervisor_pid))
    log = store.log()
    store.write_log(log[SEGMENT:] + log[:SEGMENT])
    assert store.recover(run).log_end == end
    done = repair_store(store.paths, store.config, SystemClock(), run)
    assert done.ranges[-1].damage.end == end
    found = store.recover(run)
    assert (found.quarantined, found.log_end, found.torn_bytes) == ((), end, 0)
    assert not verify_store(store.paths.root).log_damaged


@pytest.mark.parametrize("listed", [False, True])
def test_messages_that_stood_where_another_segment_has_its_blank_are_lost_and_not_forgotten(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_record: Callable[..., Record],
    listed: bool,
) -> None:
    """A repair that took that blank for the segment's own would give their offsets again."""
    large = make_record(queue_id=0, body=b"x" * 2000)
    store = stopped_store([*twelve[:5], large, *twelve[5:8]], unclean=True)
    whole = _records(store.paths.root)
    assert whole[5].physical_offset == SEGMENT
    log = store.log()
    blank = SEGMENT + whole[4].physical_offset + whole[4].total_size
    assert whole[7].physical_offset > blank, "what is told of"
    store.write_log(log[SEGMENT:] + log[:SEGMENT])
    if listed:  # and no entry names the last one
        last = max((store.paths.queue("orders", 1)).iterdir())
        last.write_bytes(last.read_bytes()[: 20 * 3] + bytes(1000 - 20 * 3))
        end = QueueEnd(4, whole[8].physical_offset)
        replace_known_queues(store.paths.known_queues, {"orders/1": end})
    done = _repair(store)
    lost = {(each.queue_id, each.queue_offset) for each in whole}
    assert {(each.queue_id, each.queue_offset) for r in done.ranges for each in r.lost} == lost
    kinds = {each.kind for each in verify_store(store.paths.root).problems}
    # it is newer than all that is left, and no messages are
    assert kinds <= {"checkpoint-ahead"}
    found = store.recover()
    assert found.quarantined == ()
    assert found.restored_queues == [], "the list says where the tombstones are"


def test_a_repair_replaces_what_only_a_start_can_tell_to_be_torn(
    stopped_store: Callable[..., Any], twelve: list[Record], make_record: Callable[..., Record]
) -> None:
    """Else the record would be found torn, and the store be read-only, at each start after it."""
    torn = make_record(queue_id=1, properties=b"a\x01" + b"b" * 9 + bytes(9))
    store = stopped_store([*twelve[:10], torn, *twelve[11:]], unclean=True)
    starts = store.starts()
    # nobody knows of a flush, and what comes after is as old as the checkpoint
    newest_ms = store_timestamp_ms(store.log(), starts[9])
    store.paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint(newest_ms, newest_ms, 0)))
    log = store.log()
    log[starts[11] + 56 : starts[11] + 64] = (newest_ms - 1).to_bytes(8, "big")
    store.write_log(log)
    assert [each.position for each in store.recover().quarantined] == [starts[10]]
    done = _repair(store)
    assert [each.damage.position for each in done.ranges] == [starts[10]]
    assert store.recover().quarantined == ()


@given(
    st.integers(0, 300),
    st.booleans(),
    st.lists(
        st.builds(
            LostMessage,
            st.sampled_from(["a", "orders", "%RETRY%" + "g" * 140, "SCHEDULE_TOPIC_XXXX"]),
            st.integers(0, 17),
            st.integers(0, 1 << 40),
        ),
        max_size=4,
    ),
)
def test_what_is_laid_out_is_as_long_as_the_damage_and_whole(
    extra: int, to_end: bool, lost: list[LostMessage]
) -> None:
    least = sum(map(_least, lost))
    size = max(least + extra, 92)
    pieces = lay_out(12345, size, to_end, lost, 77)
    assert sum(map(len, pieces)) == size
    at, found = 12345, []
    for piece in pieces:
        if to_end and piece is pieces[-1] and piece[4] == 0xCB:
            assert int.from_bytes(piece[:4], "big") == len(piece)
            break
        record = decode_record(piece)
        assert record.physical_offset == at and record.store_timestamp_ms == 77
        found.append(record)
        at += len(piece)
    queued = [record for record in found if not record.sys_flag]
    assert [(r.topic, r.queue_id, r.queue_offset) for r in queued] == [tuple(x) for x in lost]


def _least(lost: LostMessage) -> int:
    return 91 + len(lost.topic) + (len(lost.topic) > 127)


@settings(max_examples=40)
@given(st.data())
def test_whatever_is_damaged_is_said_and_what_is_whole_is_kept(
    wreckable: Callable[..., Any], data: st.DataObject
) -> None:
    """Bit flips, zeroed ranges, swapped pages: each whole record is served, or lies in a range."""
    # in memory: a repair syncs a lot, and a disk is not what is tested here
    store = wreckable(Path(tempfile.mkdtemp(prefix="wreck-", dir="/dev/shm")))
    *starts, end = store.starts()
    sizes = dict(zip(starts, [*starts[1:], end], strict=True))
    log = store.log()
    whole = bytes(log)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "zeros", "swap"]))
        at = data.draw(st.integers(0, end - 1))
        if kind == "flip":
            log[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "zeros":
            stop = min(end, at + data.draw(st.integers(1, 900)))
            log[at:stop] = bytes(stop - at)
        else:
            other = data.draw(st.integers(0, max(0, end - 300)))
            at = min(at, other)
            log[at : at + 200], log[other : other + 200] = (
                log[other : other + 200],
                log[at : at + 200],
            )
            del log[len(whole) :]
    store.write_log(log)
    intact = {at for at in starts if log[at : sizes[at]] == whole[at : sizes[at]]}
    found = store.recover()
    named = [(each.position, each.end) for each in found.quarantined]
    if named:
        assert store.log() == log, "nothing of a damaged log is changed"
    now = store.log()
    for at in sorted(intact):
        inside = any(low <= at < high for low, high in named)
        assert inside or at < found.log_end and now[at : sizes[at]] == whole[at : sizes[at]]
    done = _repair(store)
    report = verify_store(store.paths.root)
    assert not report.log_damaged
    replaced = [(each.damage.position, each.damage.end) for each in done.ranges]
    broken = set(starts) - intact
    if all(any(low <= at < high for low, high in replaced) for at in broken):
        # else no checksum covers what was damaged
        assert report.problems == []
    assert {r.physical_offset for r in _records(store.paths.root)} >= {
        at for at in intact if not any(low <= at < high for low, high in named)
    }
    shutil.rmtree(store.paths.root.parent)


@pytest.mark.parametrize("lost", [(9, 11), (8, 9, 10, 11), (11,)])
def test_a_queue_goes_on_after_a_repair_where_the_last_run_s_memory_says_that_it_had_ended(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    lost: tuple[int, ...],
) -> None:
    """Its file is an older copy, the list knows of no end, and its last messages are damaged. A
    start later finds nothing of that memory."""
    store = stopped_store(twelve, unclean=True)
    log, starts, run = store.log(), store.starts(), make_run(store.config)
    positions = Positions(run.positions, owner="supervisor")
    for name in ("wrote", "committed", "flushed", "dispatched", "queued"):
        positions.initialise(name, starts[-1])
    positions.initialise("queue_count", 2)
    positions.close()
    table = QueueTable(run.queues, writable=True)
    for number in range(2):
        table.add(number, QueueKey("orders", number), 0, 6)
    table.close()
    store.paths.abort.write_text(str(run.supervisor_pid))
    with (store.paths.queue("orders", 1) / segment_name(0)).open("r+b") as older:
        older.seek(4 * ENTRY.size)
        older.write(bytes(2 * ENTRY.size))
    for number in lost:
        log[starts[number] + 120] ^= 1
    store.write_log(log)
    repair_store(store.paths, store.config, SystemClock(), run)
    settle(store.paths.root, store.config)
    with StoreDirectory(store.paths.root) as repaired:
        ends = {queue.queue_id: queue.max_offset for queue in repaired.queues()}
    assert ends == {0: 6, 1: 6}
    assert verify_store(store.paths.root).problems == []
