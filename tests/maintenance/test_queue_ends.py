"""Whatever happens to the files of a store whose queues' ends are known, no queue goes on earlier:
an offset that was given is not given again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.chaos.stepped.replay import settle
from penstock.maintenance.repair import plan_repair, repair_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.layout import segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run, write_run
from penstock.shared.queue.known_queues import WATERMARK, QueueEnd, replace_known_queues
from penstock.shared.store.directory import StoreDirectory

QUEUES, EACH, SEGMENT = 2, 24, 4096


def _swap(store: Any, dice: random.Random) -> None:
    """Two segments of the log change places."""
    one, other = dice.sample(sorted(store.paths.commit_log.iterdir()), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _age(store: Any, dice: random.Random) -> None:
    """A queue's file becomes an older copy of itself."""
    file = store.paths.queue("orders", dice.randrange(QUEUES)) / segment_name(0)
    kept = dice.randrange(EACH) * ENTRY.size
    file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\0"))


def _flip(store: Any, dice: random.Random) -> None:
    """A bit of a record changes."""
    log = store.log()
    log[dice.choice(store.starts()[:-1]) + 120] ^= 1
    store.write_log(log)


def _ends(store: Any) -> dict[int, int]:
    with StoreDirectory(store.paths.root) as found:
        return {queue.queue_id: queue.max_offset for queue in found.queues()}


def _undispatch(store: Any, each: int) -> None:
    """The queues have only as many entries: the reput had not come to the other messages."""
    for number in range(QUEUES):
        file = store.paths.queue("orders", number) / segment_name(0)
        entries = file.read_bytes()[: each * ENTRY.size]
        file.write_bytes(entries.ljust(file.stat().st_size, b"\0"))


def _list(store: Any, ends: dict[int, int]) -> None:
    """Say in the list how far the queues are on disk, and that all of the log is."""
    with StoreDirectory(store.paths.root) as found:
        said = {
            f"{queue.topic}/{queue.queue_id}": QueueEnd(end, queue.log_offset(end - 1))
            for queue in found.queues()
            if (end := ends[queue.queue_id])
        }
    said[WATERMARK] = QueueEnd(store.starts()[-1])
    replace_known_queues(store.paths.known_queues, said)


def _remember(store: Any, run: Run, each: int = EACH) -> None:
    """The run was killed, and its memory says how far log and queues went."""
    positions, starts = Positions(run.positions, owner="supervisor"), store.starts()
    for name in ("wrote", "committed", "flushed"):
        positions.initialise(name, starts[-1])
    for name in ("dispatched", "queued"):
        positions.initialise(name, starts[each * QUEUES])
    positions.initialise("queue_count", QUEUES)
    positions.close()
    table = QueueTable(run.queues, writable=True)
    for number in range(QUEUES):
        table.add(number, QueueKey("orders", number), 0, each)
    table.close()
    store.paths.abort.write_text(str(run.supervisor_pid))
    (run.path / "store").write_bytes(bytes(store.paths.root.resolve()))


@pytest.mark.parametrize("known_by", ["memory", "list"])
@pytest.mark.parametrize("seed", range(8))
def test_queues_go_on_where_they_ended_after_a_repair_of_two_harms(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    seed: int,
    known_by: str,
) -> None:
    dice = random.Random(seed)
    store = stopped_store(twelve * (QUEUES * EACH // 12), unclean=True)
    whole, run = dict.fromkeys(range(QUEUES), EACH), None
    assert _ends(store) == whole
    if known_by == "memory":
        run = make_run(store.config)
        _remember(store, run)
        _list(store, {number: dice.randrange(EACH) for number in whole})
    else:
        _list(store, whole)
    done = [dice.choice((_swap, _age, _flip)) for _ in range(2)]
    for harm in done:
        harm(store, dice)
    if known_by == "list" and dice.random() < 0.5:
        settle(store.paths.root, store.config)  # a start comes first
    repair_store(store.paths, store.config, SystemClock(), run)
    settle(store.paths.root, store.config)
    assert _ends(store) == whole, [harm.__name__ for harm in done]


def test_a_queue_made_again_from_a_log_that_ends_in_front_of_a_segment_made_ahead_keeps_its_end(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> None:
    """Its lost messages are in the damage where the log ends, and not in what stands after that:
    there their entries would be cut, and the queue would end earlier."""
    store = stopped_store(twelve, unclean=True)
    ends = {0: 6, 1: 6}
    assert _ends(store) == ends
    run = make_run(store.config)
    _remember(store, run, 6)
    write_run(store.paths, run)
    last, ahead = (store.paths.commit_log / segment_name(base) for base in (SEGMENT, 2 * SEGMENT))
    ahead.write_bytes(last.read_bytes())
    last.write_bytes(bytes(SEGMENT))
    file = store.paths.queue("orders", 0) / segment_name(0)
    file.write_bytes(file.read_bytes()[: ENTRY.size].ljust(file.stat().st_size, b"\0"))
    settle(store.paths.root, store.config)
    assert _ends(store) == ends
    repair_store(store.paths, store.config, SystemClock(), None)
    settle(store.paths.root, store.config)
    assert _ends(store) == ends


@pytest.mark.parametrize("is_made_ahead", [True, False])
@pytest.mark.parametrize("starts_first", [True, False])
@pytest.mark.parametrize("known_by", ["memory", "list"])
def test_messages_that_no_queue_has_yet_count_where_their_segments_changed_places(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    known_by: str,
    starts_first: bool,
    is_made_ahead: bool,
) -> None:
    """They were stored and not dispatched: their records alone know their queue offsets."""
    store = stopped_store(twelve * (QUEUES * EACH // 12), unclean=True)
    ends = dict.fromkeys(range(QUEUES), EACH)
    run, dispatched = None, 6
    _undispatch(store, dispatched)
    if known_by == "memory":
        run = make_run(store.config)
        _remember(store, run, dispatched)
        write_run(store.paths, run)
    _list(store, dict.fromkeys(range(QUEUES), dispatched))
    if is_made_ahead:
        (store.paths.commit_log / segment_name(6 * SEGMENT)).write_bytes(bytes(SEGMENT))
    one, other = sorted(store.paths.commit_log.iterdir())[-2:]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    if starts_first:
        settle(store.paths.root, store.config)
        run = None
    repair_store(store.paths, store.config, SystemClock(), run)
    assert plan_repair(store.paths, store.config).ranges == []
    settle(store.paths.root, store.config)
    assert _ends(store) == ends


def test_a_missing_file_of_a_queue_and_a_damaged_end_of_the_log_are_mended_together(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> None:
    """The whole part of the log ends with a message whose entry the missing file had."""
    each = 130
    records = [make_record(queue_id=number % QUEUES, body=b"x") for number in range(QUEUES * each)]
    store = stopped_store(records)
    ends = dict.fromkeys(range(QUEUES), each)
    _list(store, ends)
    assert _ends(store) == ends
    first, second, third = sorted(store.paths.queue("orders", 0).iterdir())
    second.unlink()
    log, starts = store.log(), store.starts()
    damage_at = starts[QUEUES * 80]
    log[damage_at : starts[-1]] = b"\xff" * (starts[-1] - damage_at)
    store.write_log(log)
    assert plan_repair(store.paths, store.config).needed
    repair_store(store.paths, store.config, SystemClock(), None)
    assert plan_repair(store.paths, store.config).ranges == []
    settle(store.paths.root, store.config)
    assert _ends(store) == ends


def test_messages_that_no_queue_has_yet_count_where_their_segment_has_another_name(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """The repair puts the file aside, and makes the segment that is missing."""
    store = stopped_store(twelve * (QUEUES * EACH // 12), unclean=True)
    _undispatch(store, 6)
    _list(store, dict.fromkeys(range(QUEUES), 6))
    last = max(store.paths.commit_log.iterdir())
    last.rename(last.with_name(last.name + ".bak"))
    repair_store(store.paths, store.config, SystemClock(), None)
    settle(store.paths.root, store.config)
    assert _ends(store) == dict.fromkeys(range(QUEUES), EACH)
