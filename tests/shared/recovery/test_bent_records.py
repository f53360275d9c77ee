"""Records whose topic, queue id or queue offset has a flipped bit, which no checksum covers: nobody
gets them in the place of other messages, and each of the others stays where it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from penstock.chaos.stepped.replay import settle
from penstock.maintenance.rebuild import rebuild_store
from penstock.maintenance.repair import plan_repair, repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.errors import PenstockError
from penstock.shared.formats.properties import LOST_MARK
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import (
    AT_BODY_V4,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
)
from penstock.shared.store.directory import StoreDirectory

# byte of a record, bit
QUEUE_ID, OTHER_QUEUE = (AT_QUEUE_ID + 3, 1), (AT_QUEUE_ID + 3, 2)
TOPIC = (AT_BODY_V4 + 400 + 1 + 5, 1)
SLOT, FAR_SLOT = (AT_QUEUE_OFFSET + 7, 1), (AT_QUEUE_OFFSET + 4, 1)

Places = dict[tuple[str, int, int], bytes]


def _served(store: Any) -> tuple[Places, dict[tuple[str, int], int]]:
    """What consumers get, by topic, queue and offset; and where each queue ends."""
    found: Places = {}
    ends = {}
    with StoreDirectory(store.paths.root) as directory:
        for queue in directory.queues():
            ends[queue.topic, queue.queue_id] = queue.max_offset
            for slot in range(queue.min_offset, queue.max_offset):
                try:
                    record = directory.record_at(queue.log_offset(slot))
                except PenstockError:
                    continue  # consumers are told so
                place = queue.topic, queue.queue_id, slot
                named = record.topic, record.queue_id, record.queue_offset
                if named == place and LOST_MARK not in record.properties:
                    found[place] = bytes(record.body)
    return found, ends


def _repair(store: Any) -> None:
    repair_store(store.paths, store.config, SystemClock(), None)
    settle(store.paths.root, store.config)


def _rebuild(store: Any) -> None:
    rebuild_store(store.paths, store.config, SystemClock(), queues=True, index=False)
    settle(store.paths.root, store.config)


@pytest.fixture
def eight_each(stopped_store: Callable[..., Any], twelve: list[Record]) -> Any:
    """Killed: two queues with eight messages each, all dispatched, and nothing that vouches for
    them, so that all are dispatched again."""
    return stopped_store([*twelve, *twelve[:4]], unclean=True, checkpoint=False)


@pytest.mark.parametrize("number", [0, 1, 6, 7, 14, 15])
@pytest.mark.parametrize("bent", [QUEUE_ID, OTHER_QUEUE, TOPIC, SLOT, FAR_SLOT])
def test_entries_that_were_there_tell_which_of_two_records_is_wrong(
    eight_each: Any, capfd: pytest.CaptureFixture[str], number: int, bent: tuple[int, int]
) -> None:
    whole, ends = _served(eight_each)
    position = eight_each.starts()[number]
    place = "orders", number % 2, number // 2
    del whole[place]
    log = eight_each.log()
    log[position + bent[0]] ^= bent[1]
    eight_each.write_log(log)
    settle(eight_each.paths.root, eight_each.config)
    for after in ("a start", "a repair", "another start"):
        served, now = _served(eight_each)
        # what was its own slot's neighbour may be where it is served now: nobody lost that one
        moved = served.keys() - whole.keys()
        assert {each: served.get(each) for each in whole} == whole, after
        assert not moved or bent == SLOT and number >= 14, f"after {after}: {moved}"
        assert all(now[each] >= end for each, end in ends.items()), "no offset is given again"
        named = verify_store(eight_each.paths.root).problems
        assert named or moved or after != "a start", "a repair may have put a tombstone there"
        if after == "a start":
            assert f"the record at {position}" in capfd.readouterr().err
        if after != "another start":
            _repair(eight_each)


@pytest.mark.parametrize("number", [0, 1, 6, 7, 14, 15])
@pytest.mark.parametrize("bent", [QUEUE_ID, OTHER_QUEUE, TOPIC])
def test_a_repair_mends_a_record_that_stands_in_a_queue_and_names_another(
    eight_each: Any, number: int, bent: tuple[int, int]
) -> None:
    """The advice of verify is to be one that helps."""
    whole, ends = _served(eight_each)
    position = eight_each.starts()[number]
    del whole["orders", number % 2, number // 2]
    log = eight_each.log()
    log[position + bent[0]] ^= bent[1]
    eight_each.write_log(log)
    settle(eight_each.paths.root, eight_each.config)
    assert verify_store(eight_each.paths.root).problems
    (planned,) = plan_repair(eight_each.paths, eight_each.config).ranges
    assert planned.damage.position == position
    _repair(eight_each)
    assert _served(eight_each) == (whole, ends)
    assert verify_store(eight_each.paths.root).problems == []
    assert not plan_repair(eight_each.paths, eight_each.config).needed
    kept = (eight_each.paths.quarantine / f"{position}.bin").read_bytes()
    assert kept == log[position : position + len(kept)] and len(kept) > 400


@pytest.mark.parametrize("mend", [_rebuild, _repair])
@pytest.mark.parametrize("queues", ["there", "gone"])
@pytest.mark.parametrize("named", [0, 3, 6, 1 << 40])
@pytest.mark.parametrize("number", [14, 15])
def test_no_offset_is_given_again_where_the_last_of_a_queue_names_another_slot(
    eight_each: Any, mend: Callable[[Any], None], queues: str, named: int, number: int
) -> None:
    """Nothing comes after it in the log, and no list says how many messages its queue had."""
    whole, ends = _served(eight_each)
    del whole["orders", number % 2, 7]
    log, at = eight_each.log(), eight_each.starts()[number] + AT_QUEUE_OFFSET
    log[at : at + 8] = named.to_bytes(8, "big")
    eight_each.write_log(log)
    if queues == "gone":
        shutil.rmtree(eight_each.paths.consume_queue)
    for _ in range(2):
        mend(eight_each)
        assert _served(eight_each) == (whole, ends)
    if mend is _repair and queues == "there":
        assert verify_store(eight_each.paths.root).problems == []
