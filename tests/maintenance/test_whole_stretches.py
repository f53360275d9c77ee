"""A repair's look through the log finds the same with stretches taken as one, and without."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.maintenance import damage_walk, whole_stretches
from penstock.maintenance.damage_walk import Look, Walk
from penstock.maintenance.repair import plan_repair, repair_store
from penstock.maintenance.repair_ranges import RangePlan, plan_ranges
from penstock.maintenance.whole_stretches import Stretch
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_QUEUE_ID, AT_QUEUE_OFFSET
from penstock.shared.formats.tombstone import LostMessage
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import damage_between, load_quarantine
from penstock.shared.log.scan import Step
from penstock.shared.store.directory import StoreDirectory
from tests.wrecks import SEGMENT, WRECKS, wreck

ROOMY = 1 << 18


def _nothing(store: StoreDirectory) -> Generator[Stretch, None, None]:
    yield from ()


def _look(processes: int, part_bytes: int, window_bytes: int) -> Look:
    return partial(
        whole_stretches.whole_stretches,
        processes=processes,
        part_bytes=part_bytes,
        window_bytes=window_bytes,
    )


def _plan(paths: StorePaths, config: Config, look: Look, recovered: Any = None) -> RangePlan:
    return plan_ranges(paths, config, recovered, None, load_quarantine(paths), look)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Log offsets of the records that the walk was given one by one."""
    seen: list[int] = []

    def but(*asked: Any) -> Generator[Step, None, None]:
        for step in whole_stretches.steps_but(*asked):
            if step[1] is Kind.RECORD:
                seen.append(step[0])
            yield step

    monkeypatch.setattr(damage_walk, "steps_but", but)
    return seen


@settings(max_examples=60)
@given(st.data())
def test_whatever_is_damaged_the_plan_is_the_same(
    wreckable: Callable[..., Any], data: st.DataObject
) -> None:
    """Flips, zeros, pieces and segments that change places, slots that are others'; of a log that
    is cut anywhere, looked at before a start has, and after."""
    store = wreckable(Path(tempfile.mkdtemp(prefix="look-", dir="/dev/shm")))
    starts, log = store.starts(), store.log()
    dice = random.Random(data.draw(st.integers(0, 1 << 32)))
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from([*WRECKS, "queue", "slot"]))
        if kind == "queue":
            record = dice.choice(starts[:-1])
            log[record + AT_QUEUE_ID + 3] ^= 1
        elif kind == "slot":
            record = dice.choice(starts[:-1])
            slot = dice.choice([0, 1, 5, 6, 7, 90, 1 << 40])
            log[record + AT_QUEUE_OFFSET : record + AT_QUEUE_OFFSET + 8] = slot.to_bytes(8)
        else:
            wreck(kind, log, starts, dice)
    store.write_log(log)
    recovered = store.recover() if data.draw(st.booleans()) else None
    if recovered is not None and data.draw(st.booleans()):
        # a start may know that it ended sooner, and that something was torn
        low, high = sorted(dice.choice(starts) for _ in range(2))
        torn = damage_between(store.paths, SEGMENT, low, high, "torn")
        log_end = dice.choice(starts)
        recovered = replace(recovered, log_end=log_end, quarantined=(*torn,))
    if data.draw(st.booleans()):
        shutil.rmtree(store.paths.consume_queue)
    expected = _plan(store.paths, store.config, _nothing, recovered)
    window_bytes = data.draw(st.sampled_from([600, 1200, 2000, 1 << 20]))
    part_bytes = data.draw(st.sampled_from([700, 1500, SEGMENT, 1 << 20]))
    look = _look(1, part_bytes, window_bytes)
    assert _plan(store.paths, store.config, look, recovered) == expected
    shutil.rmtree(store.paths.root.parent)


@pytest.fixture
def roomy(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> Callable[[list[Record]], tuple[StorePaths, Config]]:
    """A store with one large segment, or some."""

    def make(records: list[Record]) -> tuple[StorePaths, Config]:
        paths = StorePaths(store_builder(records, segment_bytes=ROOMY))
        settings = {"mapped_file_size_commit_log_bytes": ROOMY, "max_index_num": 50}
        return paths, Config(
            store_path_root_dir=str(paths.root),
            mapped_file_size_consume_queue_bytes=1000,
            max_hash_slot_num=20,
            **settings,
        )

    return make


def test_of_a_sound_log_only_the_beginning_is_walked(
    roomy: Callable[..., Any], make_record: Callable[..., Record], steps: list[int]
) -> None:
    """Until each queue has had its first records; the rest is taken as stretches, in however many
    processes these are found."""
    records = [make_record(queue_id=number % 3, body=b"b" * 300) for number in range(900)]
    paths, config = roomy(records)
    window, told = 20_000, []
    with StoreDirectory(paths.root) as store:
        starts = [at for at, found, *_ in store.scan_log() if found is Kind.RECORD]
        assert len(store.segments) > 1
    for processes in (1, 2):
        steps.clear()
        told.append(_plan(paths, config, _look(processes, 60_000, window)))
        # all of the first stretch, in which the queues begin
        assert len(steps) >= 3 and steps == starts[: len(steps)]
        assert steps[-1] <= window
    steps.clear()
    assert told[0] == told[1] == _plan(paths, config, _nothing) == RangePlan([], {})
    assert len(steps) == 900, "without stretches each record is a step"


def test_around_damage_records_are_walked_and_after_it_stretches_are_taken(
    roomy: Callable[..., Any],
    make_record: Callable[..., Record],
    steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [make_record(queue_id=number % 3, body=b"b" * 300) for number in range(500)]
    paths, config = roomy(records)
    with StoreDirectory(paths.root) as store:
        starts = [at for at, found, *_ in store.scan_log() if found is Kind.RECORD]
    (segment,) = paths.commit_log.iterdir()
    raw = bytearray(segment.read_bytes())
    raw[starts[250] + AT_BODY_V4] ^= 1
    segment.write_bytes(raw)
    expected = _plan(paths, config, _nothing)
    assert [each.damage.position for each in expected.ranges] == [starts[250]]
    assert [lost.queue_offset for lost in expected.ranges[0].lost] == [83]
    monkeypatch.setattr(whole_stretches, "ALONE", 0)
    part, window = 50_000, 5000
    for processes in (1, 3):
        steps.clear()
        assert _plan(paths, config, _look(processes, part, window)) == expected
        # whoever looks is done with the part where the damage is; the next one is taken
        walked = {at for at in steps if at > window}
        assert min(walked) == starts[251] < max(walked) < starts[250] + part + window


def test_a_record_in_a_body_is_no_stretch_of_the_log(
    roomy: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """It names the very place at which it stands, where the log is cut, and so do more of them."""
    first = make_record(body=b"b" * 20_000)
    start = len(encode_record(first)) + AT_BODY_V4 + 200
    inside = b""
    for number in range(40):
        at = start + len(inside)
        copy = make_record(body=b"i" * 300, physical_offset=at, queue_offset=number + 2)
        inside += encode_record(copy)
    body = (bytes(200) + inside).ljust(20_000, b"b")
    paths, config = roomy([first, make_record(body=body), *[first] * 4])
    look = _look(1, start - 10, ROOMY)
    with StoreDirectory(paths.root) as store:
        assert start in [each.start for each in look(store)]
    assert _plan(paths, config, look) == _plan(paths, config, _nothing) == RangePlan([], {})


def test_a_record_that_its_entry_tells_to_be_another_queue_s_is_walked(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """It is the last one of its queue, and names the next slot of the other one."""
    store = stopped_store(twelve[:11])
    log, last = store.log(), store.starts()[10]
    log[last + AT_QUEUE_ID : last + AT_QUEUE_ID + 4] = (1).to_bytes(4)
    store.write_log(log)
    expected = _plan(store.paths, store.config, _nothing)
    assert [each.lost for each in expected.ranges] == [[LostMessage("orders", 0, 5)]]
    for window_bytes in (600, ROOMY):
        assert _plan(store.paths, store.config, _look(1, SEGMENT, window_bytes)) == expected


def test_of_a_stretch_that_goes_on_past_the_known_end_only_what_is_before_it_is_taken(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    starts = store.starts()
    recovered = replace(store.recover(), log_end=starts[10])
    seen = []
    # the first stretch has the queues' first records, and the next one all others of the segment
    for look in (_nothing, _look(1, SEGMENT, starts[4])):
        with StoreDirectory(store.paths.root) as opened:
            walk = Walk(opened, store.config, recovered, ()).run(None, look)
        seen.append((walk.end, walk.next, walk.ranges, walk.damage))
    assert seen[0] == seen[1] and seen[0][0] == starts[10]


def test_progress_goes_on_by_stretches_and_comes_to_the_log_s_end(
    roomy: Callable[..., Any], make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, config = roomy([make_record(body=b"b" * 300) for _ in range(900)])
    small = partial(whole_stretches.whole_stretches, part_bytes=50_000, window_bytes=5000)
    monkeypatch.setattr("penstock.maintenance.repair.whole_stretches", small)
    moved: list[tuple[int, int]] = []
    assert not plan_repair(paths, config, lambda *each: moved.append(each), 2).needed
    assert moved == sorted(moved) and len(moved) > 50
    with StoreDirectory(paths.root) as store:
        last = [at for at, found, *_ in store.scan_log() if found is Kind.RECORD][-1]
    assert moved[-1][0] >= last and moved[-1][1] == 2 * ROOMY


def test_a_repair_in_several_processes_makes_the_same_store(
    wreckable: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_stretches, "ALONE", 0)
    stores = [wreckable(tmp_path / str(processes)) for processes in (1, 2)]
    for processes, store in enumerate(stores, start=1):
        log, starts = store.log(), store.starts()
        for number in (1, 7, 9):
            log[starts[number] + 120] ^= 1
        store.write_log(log)
        done = repair_store(store.paths, store.config, SystemClock(), None, processes=processes)
        assert [len(each.lost) for each in done.ranges] == [1, 1, 1]
    one, other = (
        {
            name: raw
            for name, raw in store.contents().items()
            if name.startswith(("commitlog", "consumequeue"))
        }
        for store in stores
    )
    assert one == other
