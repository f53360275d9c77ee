"""Start-up: a queue whose first files are gone is missed, and made again from the log, so that
whoever begins at its first message gets what the log has of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.chaos.stepped.replay import reboot
from penstock.chaos.stepped.whole_broker import Reading, whole_broker
from penstock.maintenance.repair import repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET
from penstock.shared.queue.deleted_topics import DeletedTopic, DeletedTopics
from penstock.shared.recovery.recover_log import recover_store
from penstock.shared.recovery.restore_queues import find_late_queues
from penstock.shared.store.survey import StoreSurvey

TOPIC = "orders"


@pytest.fixture
def store(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> Callable[..., Any]:
    """Make a store of two queues with this many messages each, two in a file of a queue."""

    def make(messages: int = 9, queue_bytes: int = 40, **layout: object) -> Any:
        records = [
            make_record(queue_id=number % 2, body=b"%d" % number * 300)
            for number in range(2 * messages)
        ]
        made = stopped_store(records, queue_segment_bytes=queue_bytes, **layout)
        changes = {"mapped_file_size_consume_queue_bytes": queue_bytes, "max_hash_slot_num": 20}
        config = msgspec.structs.replace(made.config, max_index_num=50, **changes)
        return made._replace(config=config)

    return make


def _files(store: Any, queue: int = 0) -> list[Path]:
    return sorted(store.paths.queue(TOPIC, queue).iterdir())


def _contents(store: Any) -> dict[str, bytes]:
    root = store.paths.consume_queue
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _run(store: Any, left: str) -> list[Reading]:
    """A broker's run; what consumers have got of both queues from the first message on."""
    root: Path = store.paths.root
    with whole_broker(store.config) as broker:
        found = [broker.read(TOPIC, queue) for queue in (0, 1)]
        running = shutil.copytree(root, root.with_name("running"))
    if left == "stopped":
        shutil.rmtree(running)
    else:  # power fails while it runs: no actor has anything to do, so all is on the disk
        shutil.rmtree(root)
        running.rename(root)
        reboot(root)
    return found


def _bend(store: Any, number: int) -> None:
    """A bit of a record's body flips."""
    log = store.log()
    log[store.starts()[number] + 200] ^= 4
    store.write_log(log)


HARM: dict[str, Callable[[Any], object]] = {
    "its first file is gone": lambda store: _files(store)[0].unlink(),
    "all but its last file are gone": lambda store: [p.unlink() for p in _files(store)[:-1]],
    "its directory is gone": lambda store: shutil.rmtree(_files(store)[0].parent),
    "its directory is empty": lambda store: [p.unlink() for p in _files(store)],
    "it is an older copy": lambda store: [
        _files(store)[0].write_bytes(_files(store)[0].read_bytes()[:20] + bytes(20)),
        *(p.unlink() for p in _files(store)[1:]),
    ],
    "its first file is gone, its second is an older copy": lambda store: [
        _files(store)[1].write_bytes(_files(store)[1].read_bytes()[:20] + bytes(20)),
        *(p.unlink() for p in (_files(store)[0], *_files(store)[2:])),
    ],
}
WITNESSES: dict[str, tuple[str, ...]] = {
    "all witnesses": (),
    "no checkpoint": ("checkpoint",),
    "no watermark": ("penstock/watermark",),
    "neither": ("checkpoint", "penstock/watermark"),
}


LOST_HEAD = ("its first file is gone", "all but its last file are gone")


@pytest.mark.parametrize("bent", [None, 9])
@pytest.mark.parametrize("left", ["stopped", "without power"])
@pytest.mark.parametrize(
    ("harm", "witnesses"),
    [
        *((harm, witnesses) for harm in LOST_HEAD for witnesses in WITNESSES),
        *((harm, "neither") for harm in HARM if harm not in LOST_HEAD),
    ],
)
def test_whoever_begins_at_the_first_message_gets_all_that_the_log_has(
    store: Callable[..., Any], harm: str, witnesses: str, left: str, bent: int | None
) -> None:
    """The log may have damage in its midst. Then a start cuts no queue, and without a witness
    dispatches all of the log again: the table's min offset must not stay at the second file."""
    made = store()
    whole = _run(made, left)
    assert [len(each.messages) for each in whole] == [9, 9]
    HARM[harm](made)
    for name in WITNESSES[witnesses]:
        (made.paths.root / name).unlink()
    if bent is not None:
        _bend(made, bent)
        del whole[bent % 2].messages[bent // 2]
    expected = [each.messages for each in whole]
    for _ in ("the first start", "the next one"):
        assert [each.messages for each in _run(made, left)] == expected
        kinds = {each.kind for each in verify_store(made.paths.root).problems}
        assert not kinds & {"queue-entry-missing", "queue-entries-missing", "queue-lost"}
    repair_store(made.paths, made.config, SystemClock(), None)
    found = _run(made, left)
    assert [each.messages for each in found] == expected
    assert [each.passed_over for each in found] == [0, int(bent is not None)]
    assert verify_store(made.paths.root).problems == []


@pytest.mark.parametrize("gone", [1, 2, 4])
def test_a_queue_that_begins_after_its_first_message_in_the_log_is_made_again(
    store: Callable[..., Any], gone: int
) -> None:
    made = store()
    before = _contents(made)
    for path in _files(made)[:gone]:
        path.unlink()
    found = made.recover()
    assert found.restored_queues == [
        f"queue orders/0 begins at {2 * gone}, and the log has 0 of it: made again from the log, "
        "up to 9"
    ]
    assert _contents(made) == before
    assert made.recover().restored_queues == []


@pytest.mark.parametrize("second", range(5))
@pytest.mark.parametrize("first", range(5))
def test_of_two_queues_each_that_has_lost_its_first_files_is_named_and_no_other(
    store: Callable[..., Any], first: int, second: int
) -> None:
    made = store()
    for queue, gone in enumerate((first, second)):
        for path in _files(made, queue)[:gone]:
            path.unlink()
    with StoreSurvey(made.paths, made.config) as survey:
        found = find_late_queues(survey, {}, survey.segments[-1].end, {})
    assert {queue: why for queue, (_, why) in found.items()} == {
        (TOPIC.encode(), queue): f"begins at {2 * gone}, and the log has 0 of it"
        for queue, gone in enumerate((first, second))
        if gone
    }


@pytest.mark.parametrize(("slots", "is_late"), [((0, 7), True), ((7, 0), True), ((2, 2), False)])
def test_a_message_of_a_slot_before_the_first_is_missed_and_none_of_a_later_one(
    store: Callable[..., Any], slots: tuple[int, int], is_late: bool
) -> None:
    """A queue offset may have lost a bit: to make the queue again would change nothing."""
    made = store()
    _files(made)[0].unlink()
    log = made.log()
    for number, slot in zip((0, 2), slots, strict=True):
        at = made.starts()[number] + AT_QUEUE_OFFSET
        log[at : at + 8] = slot.to_bytes(8, "big")
    made.write_log(log)
    with StoreSurvey(made.paths, made.config) as survey:
        found = find_late_queues(survey, {}, survey.segments[-1].end, {})
    assert found.keys() == ({(TOPIC.encode(), 0)} if is_late else set())


def test_what_the_log_has_of_a_deleted_topic_is_not_missed(store: Callable[..., Any]) -> None:
    """The messages before the queue's first one are of the topic that had its name then."""
    made = store()
    log_end = made.starts()[8]
    for path in _files(made)[:2]:
        path.unlink()
    before = _contents(made)
    row = DeletedTopic(number=1, topic=TOPIC, log_end=log_end, at_ms=1, is_done=True)
    with StoreSurvey(made.paths, made.config) as survey:
        found = recover_store(survey, None, DeletedTopics(1, (row,)))
    assert (found.restored_queues, _contents(made)) == ([], before)


def test_a_queue_that_has_all_the_log_has_stays_as_it_is(store: Callable[..., Any]) -> None:
    """Its files may begin with the log's first message of it, where a RocketMQ has deleted the file
    before, or blanks may stand there, where a queue was made from a log that begins later."""
    made = store(base=3 * 4096, first_offsets={(TOPIC, 0): 4, (TOPIC, 1): 5})
    assert [path.name[-2:] for queue in (0, 1) for path in _files(made, queue)[:1]] == ["80", "80"]
    before = _contents(made)
    found = made.recover()
    assert (found.restored_queues, _contents(made)) == ([], before)


def test_for_queues_that_begin_in_order_nothing_of_the_log_is_read(
    store: Callable[..., Any],
) -> None:
    made = store(base=3 * 4096, first_offsets={(TOPIC, 0): 5, (TOPIC, 1): 0})
    with StoreSurvey(made.paths, made.config) as survey:
        ends = [queue.max_offset for queue in survey.queues()]
        before = survey.bytes_read
        found = find_late_queues(survey, {}, survey.segments[-1].end, {})
        assert (found, ends) == ({}, [14, 9])
        assert survey.bytes_read - before < 200, "a few entries"


def test_a_queue_whose_only_file_was_cut_before_its_first_entry_ended_does_not_keep_a_start_back(
    store: Callable[..., Any],
) -> None:
    made = store()
    *earlier, last = _files(made)
    for path in earlier:
        path.unlink()
    os.truncate(last, 7)
    assert made.recover().restored_queues == []


def test_what_is_written_again_from_the_log_is_not_made_twice(store: Callable[..., Any]) -> None:
    """Without a record that the checkpoint confirms all of the log is dispatched again."""
    made = store(unclean=True)
    _files(made)[0].unlink()
    found = made.recover()
    assert (found.restored_queues, found.queues_good_to) == ([], 0)
