"""Rebuilding from the log: what RocketMQ wrote comes out again, and a crash leaves old or new."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock.maintenance.rebuild import Rebuilt, rebuild_store
from penstock.maintenance.side_by_side import run_side_by_side
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET
from penstock.shared.layout import segment_name
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)

Contents = dict[str, bytes]


def _rebuild(store: Any, *, queues: bool = True, index: bool = False) -> Rebuilt:
    return rebuild_store(store.paths, store.config, SystemClock(), queues=queues, index=index)


def _tree(root: Path) -> Contents:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("state", ["there", "missing", "wrong"])
def test_queues_come_out_as_they_were_written(
    stopped_store: Callable[..., Any], twelve: list[Record], state: str
) -> None:
    store = stopped_store(twelve, first_offsets={("orders", 1): 70})
    before = _tree(store.paths.consume_queue)
    for path in store.paths.queue("orders", 0).iterdir():
        if state == "missing":
            path.unlink()
        elif state == "wrong":
            path.write_bytes(bytes(1000))
    done = _rebuild(store)
    assert _tree(store.paths.consume_queue) == before
    assert (done.messages, done.entries, done.queues, done.lost) == (12, 12, 2, 0)
    assert not store.paths.rebuild.exists()
    assert verify_store(store.paths.root).ok


@pytest.mark.parametrize("processes", [1, 2])
def test_it_makes_no_difference_how_the_log_is_cut(
    stopped_store: Callable[..., Any], make_record: Callable[..., Any], processes: int
) -> None:
    # a body may hold what looks like a record at this very place: no cut may stand there for good
    at = len(encode_record(make_record(body=b""))) - len("orders") - 1 - 2
    inner = encode_record(replace(make_record(body=b"x" * 300), physical_offset=at))
    records = [make_record(body=inner)]
    keys = [b"KEYS\x01k%d k\x02" % number for number in range(60)]
    records += [make_record(queue_id=n % 3, body=b"y" * 80, properties=keys[n]) for n in range(60)]
    store = stopped_store(records)
    moved: list[tuple[int, int]] = []
    whole, trees = _rebuild(store, index=True), [_tree(store.paths.consume_queue)]
    done = rebuild_store(
        store.paths,
        store.config,
        SystemClock(),
        queues=True,
        index=True,
        progress=lambda *now: moved.append(now),
        run=partial(run_side_by_side, processes=processes),
        part_bytes=700,
    )
    trees.append(_tree(store.paths.consume_queue))
    assert trees[0] == trees[1] and verify_store(store.paths.root).ok
    assert replace(done, seconds=0.0) == replace(whole, seconds=0.0) and done.keys
    assert moved == sorted(moved) and moved[-1][0] <= moved[-1][1]


def test_a_log_without_a_segment_is_rebuilt_to_nothing(stopped_store: Callable[..., Any]) -> None:
    store = stopped_store([])
    assert not any(store.paths.commit_log.iterdir())
    done = _rebuild(store, index=True)
    assert (done.messages, done.queues, done.keys, done.lost) == (0, 0, 0, 0)
    assert verify_store(store.paths.root).ok


def test_a_queue_without_a_message_in_the_log_keeps_where_it_goes_on(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, base=1 << 20)
    at_rest = store.paths.queue("resting", 3)
    at_rest.mkdir(parents=True)
    (at_rest / segment_name(0)).write_bytes(ENTRY.pack(0, 100, 0).ljust(1000, b"\0"))
    (store.paths.queue("orders", 0).parent / "notes").mkdir()
    (store.paths.queue("orders", 0).parent / "notes" / "todo.txt").write_text("keep me")
    stray = store.paths.queue("orders", 0) / "stray.txt"
    stray.write_text("keep me too")
    before = _tree(store.paths.consume_queue)
    done = _rebuild(store)
    assert before.pop("orders/0/stray.txt") == b"keep me too"
    assert _tree(store.paths.consume_queue) == before
    assert done.kept_queues == 2
    aside = store.paths.quarantine / "consumequeue--orders--0--stray.txt"
    assert aside.read_text() == "keep me too"


def test_lost_messages_keep_their_slots(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """In the middle of the queue, and at its end, where only the old entries know of them."""
    store = stopped_store(twelve)
    *records, end = store.starts()
    log = store.log()
    for number in (4, 10):
        log[records[number] + 150] ^= 1
    store.write_log(log)
    before = _tree(store.paths.consume_queue)
    done = _rebuild(store)
    assert done.lost == 2
    assert _tree(store.paths.consume_queue) == before


def test_a_record_whose_queue_offset_cannot_be_is_left_out_and_named(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """No checksum covers it. It makes no huge file, and keeps nobody from the others."""
    store = stopped_store(twelve)
    before = _tree(store.paths.consume_queue)
    at = store.starts()[8]
    log = store.log()
    log[at + 22] = 0x40
    store.write_log(log)
    done = _rebuild(store)
    assert (done.misplaced, done.lost, done.entries) == ([at], 1, 11)
    found = _tree(store.paths.consume_queue)
    assert found.keys() == before.keys()
    assert sum(a != b for name in found for a, b in _entries(found[name], before[name])) == 1


def _name_slots(store: Any, slots: dict[int, int]) -> None:
    """Records of these numbers name these slots, and no queue's files know better."""
    log, starts = store.log(), store.starts()
    for number, slot in slots.items():
        at = starts[number] + AT_QUEUE_OFFSET
        log[at : at + 8] = slot.to_bytes(8, "big")
    store.write_log(log)
    shutil.rmtree(store.paths.consume_queue)


def test_a_queue_s_first_record_waits_for_the_next_one_in_the_next_segment(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """It names a slot for which the log has no room: with an entry there, it would have a file."""
    store = stopped_store([make_record(body=bytes(3600)), *[make_record(body=bytes(400))] * 5])
    before = set(_tree(store.paths.consume_queue))
    _name_slots(store, {0: 0x4000})
    done = _rebuild(store)
    assert done.misplaced == store.starts()[:1]
    assert set(_tree(store.paths.consume_queue)) == before


def test_a_queue_that_begins_with_the_second_record_has_its_gaps_filled_and_nothing_before_it(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    store = stopped_store([make_record(body=bytes(400))] * 4)
    _name_slots(store, {0: 5, 1: 3020, 2: 3023, 3: 3024})
    done = _rebuild(store)
    starts = store.starts()
    assert done.misplaced == starts[:1] and done.lost == 2
    ((name, raw),) = _tree(store.paths.consume_queue).items()
    found = [position for position, _, _ in ENTRY.iter_unpack(raw)]
    first = int(name.rpartition("/")[2]) // ENTRY.size
    # what comes before a queue's first message leads to nothing, and a lost one to what follows it
    assert found[3019 - first : 3025 - first] == [0, starts[1], *[starts[2]] * 3, starts[3]]


def test_a_topic_that_was_made_again_gets_no_messages_of_the_deleted_one(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """They stand in the same run of the log, and had slots that the new queue does not have yet."""
    store = stopped_store([make_record(body=bytes(100))] * 8)
    _name_slots(store, {5: 0, 6: 1, 7: 2})
    starts = store.starts()
    row = DeletedTopic(number=1, topic="orders", log_end=starts[5], at_ms=1, is_done=True)
    save_deleted_topics(store.paths.deleted_topics, DeletedTopics(1, (row,)))
    _rebuild(store)
    (raw,) = _tree(store.paths.consume_queue).values()
    found = [position for position, size, _ in ENTRY.iter_unpack(raw) if size]
    assert found == starts[5:8]


@pytest.mark.parametrize("bit", [0, 1, 2])
@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("field", ["queue", "offset"])
def test_a_record_that_names_another_message_s_slot_does_not_get_it(
    stopped_store: Callable[..., Any], twelve: list[Record], field: str, number: int, bit: int
) -> None:
    """Of a queue's number, too: then the old entries say whose slot it is, and where it stood."""
    store = stopped_store(twelve)
    before = _tree(store.paths.consume_queue)
    at = store.starts()[number]
    log = store.log()
    log[at + (AT_QUEUE_OFFSET + 7 if field == "offset" else AT_QUEUE_OFFSET - 5)] ^= 1 << bit
    store.write_log(log)
    done = _rebuild(store)
    found = _tree(store.paths.consume_queue)
    if field == "queue":
        assert done.misplaced == [at] and found == before
    for name in before:
        for old, new in _entries(before[name], found.get(name, bytes(1000))):
            (position, size, _) = ENTRY.unpack(old)
            assert old == new or position == at or not size


def _entries(*queues: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries that stand in the same place."""
    one, other = ([raw[at : at + 20] for at in range(0, len(raw), 20)] for raw in queues)
    yield from zip(one, other, strict=True)


def _die_at(step: int) -> None:
    """Let this process die in front of its n-th step that changes a file or a name."""
    left = step

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        changes = event in ("os.remove", "os.rmdir", "os.rename", "os.mkdir", "os.link")
        changes |= event == "open" and isinstance(args[2], int) and bool(args[2] & os.O_ACCMODE)
        changes |= event == "ctypes.call_function"
        left -= changes
        if changes and left < 0:
            os._exit(9)

    sys.addaudithook(count)


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_a_rebuild_that_is_killed_leaves_the_old_or_the_new(
    stopped_store: Callable[..., Any], twelve: list[Record], step: int
) -> None:
    store = stopped_store(twelve)
    good = _tree(store.paths.consume_queue)
    first = store.paths.queue("orders", 0) / segment_name(0)
    first.write_bytes(bytes(1000))
    bad = _tree(store.paths.consume_queue)
    child = os.fork()
    if child == 0:
        _die_at(step)
        _rebuild(store, index=True)
        os._exit(0)
    os.waitpid(child, 0)
    assert _tree(store.paths.consume_queue) in (good, bad)
    _rebuild(store, index=True)
    assert _tree(store.paths.consume_queue) == good
    assert not store.paths.rebuild.exists()


def test_a_start_removes_what_a_killed_rebuild_left(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    (store.paths.rebuild / "consumequeue" / "orders").mkdir(parents=True)
    (store.paths.rebuild / "consumequeue" / "orders" / "x").write_bytes(b"x")
    store.recover()
    assert not store.paths.rebuild.exists()


def test_the_index_is_made_anew_and_foreign_names_stay(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    keyed = [msgspec.structs.replace(each, properties=b"KEYS\x01k1 k2\x02") for each in twelve]
    store = stopped_store(keyed)
    store = store._replace(
        config=msgspec.structs.replace(store.config, max_hash_slot_num=20, max_index_num=50)
    )
    store.paths.index.mkdir()
    (store.paths.index / "notes.txt").write_text("keep me")
    done = _rebuild(store, queues=False, index=True)
    assert (done.index_files, done.keys, done.queues) == (1, 24, 0)
    assert (store.paths.index / "notes.txt").read_text() == "keep me"
    assert verify_store(store.paths.root).ok
