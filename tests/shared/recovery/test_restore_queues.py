"""Start-up: a queue that has lost its end is missed, and made again from the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.maintenance.repair import plan_repair, repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_layout import AT_QUEUE_ID, AT_QUEUE_OFFSET
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueTable, create_queue_table
from penstock.shared.memory.run_directory import Run
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.queue.known_queues import (
    UNKNOWN,
    WATERMARK,
    QueueEnd,
    load_known_queues,
    replace_known_queues,
)
from penstock.shared.recovery.restore_queues import (
    find_broken_queues,
    find_doubted_queues,
    find_unlisted_queues,
)
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.topics import Topics, save_topics
from penstock.shared.store.watermark import Watermark, make_watermark

Contents = dict[str, bytes]


@pytest.fixture
def known(stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path) -> Any:
    """A clean store of two queues with six messages each, whose ends are known."""
    store = stopped_store(twelve, queue_segment_bytes=60)
    store = store._replace(config=_with_small_files(store.config))
    create_queue_table(tmp_path / "queues", 9)
    table = QueueTable(tmp_path / "queues", writable=True)
    store.recover_queues(None, table)
    table.close()
    return store


def _with_small_files(config: Config) -> Config:
    return msgspec.structs.replace(config, mapped_file_size_consume_queue_bytes=60)


def _queues(store: Any) -> Contents:
    root = store.paths.consume_queue
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _last(store: Any, queue: int = 0) -> Path:
    return max(store.paths.queue("orders", queue).iterdir())


def _first(store: Any) -> Path:
    return min(store.paths.queue("orders", 0).iterdir())


def _flip(file: Path, at: int, bit: int = 0x80) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= bit
    file.write_bytes(raw)


def _swap(store: Any) -> None:
    one, other = store.paths.queue("orders", 0), store.paths.queue("orders", 1)
    os.rename(one, one.with_name("x"))
    os.rename(other, one)
    os.rename(one.with_name("x"), other)


HARM: dict[str, Callable[[Any], object]] = {
    "its last file is deleted": lambda store: _last(store).unlink(),
    "its directory is gone": lambda store: shutil.rmtree(_last(store).parent),
    "all files are gone": lambda store: [p.unlink() for p in _last(store).parent.iterdir()],
    "its last file is emptied": lambda store: _last(store).write_bytes(b""),
    "its last file is zeroed": lambda store: _last(store).write_bytes(bytes(60)),
    "its last entry is gone": lambda store: _last(store).write_bytes(
        _last(store).read_bytes()[:40] + bytes(20)
    ),
    "its last entry is another": lambda store: _last(store).write_bytes(
        _last(store).read_bytes()[:40] + _last(store).read_bytes()[20:40]
    ),
    "its last entry is none": lambda store: _flip(_last(store), 40),
    "an entry before its last is none": lambda store: _flip(_last(store), 20),
    "its last entry leads far away": lambda store: _flip(_last(store), 44),
    "its last entry has no size": lambda store: _flip(_last(store), 48),
    "it has changed places with another": _swap,
    "its first file is zeroed": lambda store: _first(store).write_bytes(bytes(60)),
    "its first file begins with zeros": lambda store: _first(store).write_bytes(
        bytes(20) + _first(store).read_bytes()[20:]
    ),
    "its first file is overwritten": lambda store: _first(store).write_bytes(b"\x11" * 60),
    "two of its files have changed places": lambda store: _change_places(
        _first(store), _last(store)
    ),
}


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("harm", HARM)
def test_a_queue_that_is_not_as_it_is_known_to_have_been_is_made_again(
    known: Any, harm: str, unclean: bool
) -> None:
    if unclean:
        known.paths.abort.write_text("1")
    before, list_before = _queues(known), known.paths.known_queues.read_bytes()
    HARM[harm](known)
    assert _queues(known) != before
    found = known.recover()
    assert any("queue orders/0 " in each for each in found.restored_queues)
    assert _queues(known) == before
    assert known.paths.known_queues.read_bytes() == list_before
    assert not known.paths.rebuild.exists()
    again = known.recover()
    assert again.restored_queues == []
    assert (found.dispatch_from, found.scanned_from) == (again.dispatch_from, again.scanned_from)


def test_entries_that_go_back_are_right_where_their_records_say_so(
    stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path
) -> None:
    """A topic that RocketMQ has made again, and a start that made the queue from the log: slots of
    the first file lead past those of the second. Making it again would change nothing."""
    store = stopped_store(twelve, queue_segment_bytes=60)
    store = store._replace(config=_with_small_files(store.config))
    log, starts = store.log(), store.starts()
    for number, slot in ((6, 0), (8, 1), (10, 2)):
        at = starts[number] + AT_QUEUE_OFFSET
        log[at : at + 8] = slot.to_bytes(8, "big")
    for number, slot in ((0, 3), (2, 4), (4, 5)):
        at = starts[number] + AT_QUEUE_OFFSET
        log[at : at + 8] = slot.to_bytes(8, "big")
    store.write_log(log)
    _change_places(_first(store), _last(store))
    replace_known_queues(store.paths.known_queues, {"orders/0": QueueEnd(6, starts[4])})
    assert store.recover().restored_queues == []


def test_a_queue_that_is_longer_than_it_was_left_is_made_again_only_if_nobody_else_was_there(
    known: Any, make_run: Callable[[Config], Run]
) -> None:
    """RocketMQ may have gone on with it, and does not know of the list."""
    before, file = _queues(known), _last(known)
    ends = load_known_queues(known.paths.known_queues)
    fewer = {**ends, "orders/0": QueueEnd(5, known.starts()[8])}
    replace_known_queues(known.paths.known_queues, fewer)
    assert known.recover().restored_queues == []
    run = make_run(known.config)
    end = known.starts()[-1]
    words = Checkpoint(5, 6, 7)
    mark = Watermark(run.run_id, True, end, words, is_last=True)
    make_watermark(known.paths.watermark, mark)
    assert known.recover(run).restored_queues == [], "the checkpoint is not as our stop has left it"
    known.paths.checkpoint.write_bytes(encode_checkpoint(words))
    assert len(known.recover(run).restored_queues) == 1
    replace_known_queues(known.paths.known_queues, ends)
    # an entry too many, of which the start would take its offset for given
    raw = file.read_bytes()
    (file.parent / f"{120:020d}").write_bytes(raw[40:] + bytes(40))
    assert len(known.recover(run).restored_queues) == 1
    assert _queues(known) == before


def _bend_line(store: Any) -> None:
    """Of queue 0, and nothing else."""
    file = store.paths.known_queues
    file.write_bytes(file.read_bytes().replace(b"orders/0 0", b"orders/0 1"))


def _drop_line(store: Any) -> None:
    """As an older list, or one that was cut between two lines."""
    file = store.paths.known_queues
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if not line.startswith(b"orders/0")))


# what stands at its end then is no entry of the queue, and says that it had one
NO_ENTRY = (
    *("an entry before its last is none", "its last entry is none"),
    *("its last entry leads far away", "its last entry has no size"),
)
UNLISTED: dict[str, Callable[[Any], object]] = {
    "its line is bent": _bend_line,
    "its line is gone": _drop_line,
    "the list is emptied": lambda store: store.paths.known_queues.write_bytes(b""),
    "the list is deleted": lambda store: store.paths.known_queues.unlink(),
}


def _left(store: Any, run: Run) -> Run:
    """All of the store is on disk, and this run's own files say so."""
    words = Checkpoint(1 << 50, 1 << 50, 1 << 50, confirm_offset=store.starts()[-2])
    mark = Watermark(run.run_id, True, store.starts()[-1], words, is_last=True)
    make_watermark(store.paths.watermark, mark)
    store.paths.checkpoint.write_bytes(encode_checkpoint(words))
    return run


def test_a_queue_of_messages_that_wait_is_made_again_though_no_topic_is_listed(
    stopped_store: Callable[..., Any],
    make_record: Callable[..., Record],
    make_run: Callable[[Config], Run],
) -> None:
    waiting = [make_record(topic=TIMER_TOPIC, queue_id=0, body=b"waits") for _ in range(3)]
    # the newest message is another queue's, or all would be dispatched again
    store = stopped_store([*waiting, make_record()], queue_segment_bytes=60)
    store = store._replace(config=_with_small_files(store.config))
    run, before = _left(store, make_run(store.config)), _queues(store)
    shutil.rmtree(store.paths.queue(TIMER_TOPIC, 0))
    store.paths.known_queues.unlink(missing_ok=True)
    assert len(store.recover(run).restored_queues) == 1 and _queues(store) == before


def test_a_queue_that_is_gone_and_that_an_older_copy_of_the_list_does_not_have_is_made_again(
    known: Any, make_run: Callable[[Config], Run]
) -> None:
    """As where a topic is new. The stop has left a list that names the log's end."""
    run, file = _left(known, make_run(known.config)), known.paths.known_queues
    known.paths.topics.parent.mkdir(exist_ok=True)
    topics = Topics()
    topics.put("orders", 2, 0)
    save_topics(known.paths.topics, topics)
    before, ends = _queues(known), load_known_queues(file)
    del ends["orders/0"]
    replace_known_queues(file, ends | {WATERMARK: QueueEnd(known.starts()[7])})
    shutil.rmtree(known.paths.queue("orders", 0))
    (restored,) = known.recover(run).restored_queues
    assert "queue orders/0 " in restored and _queues(known) == before


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(
    ("of_queue", "of_list"),
    [
        *(
            (of_queue, of_list)
            for of_queue in ("its last file is deleted", *NO_ENTRY)
            for of_list in UNLISTED
        ),
        *(("its directory is gone", each) for each in UNLISTED),
    ],
)
def test_a_queue_that_has_lost_its_end_and_its_line_is_made_again_from_the_log(
    known: Any, make_run: Callable[[Config], Run], of_queue: str, of_list: str, unclean: bool
) -> None:
    """Or the offsets of what is lost would be given again."""
    run = _left(known, make_run(known.config))
    known.paths.topics.parent.mkdir(exist_ok=True)
    topics = Topics()
    topics.put("orders", 2, 0)
    save_topics(known.paths.topics, topics)
    if unclean:
        known.paths.abort.write_text(str(run.supervisor_pid))
        run = msgspec.structs.replace(run, boot_id="another")
    before = _queues(known)
    HARM[of_queue](known)
    UNLISTED[of_list](known)
    found = known.recover(run)
    assert any("queue orders/0 " in each for each in found.restored_queues), found
    assert _queues(known) == before


@pytest.mark.parametrize("known_end", [6, 5])
@pytest.mark.parametrize("harm", NO_ENTRY[1:])
def test_a_queue_that_is_to_be_cut_where_it_has_bytes_and_no_entry_is_made_again(
    known: Any, harm: str, known_end: int
) -> None:
    """Whether that is known of its end is as old as the cut or older: else the offset of the
    message before the cut would be given again."""
    good_to, ends = known.starts()[-1], {"orders/0": QueueEnd(known_end, UNKNOWN)}
    HARM[harm](known)
    with StoreSurvey(known.paths, known.config) as store:
        found = (
            find_broken_queues(store, ends, good_to),
            find_doubted_queues(store, good_to, {}),
        )
    assert [(b"orders", 0) in each for each in found] == [known_end == 6, True]


@pytest.mark.parametrize("into", [0, 7], ids=["another's record", "no record"])
def test_an_entry_of_another_s_message_is_no_word_on_where_the_log_has_more_of_a_queue(
    known: Any, into: int
) -> None:
    """It stands before the place of the cut, and leads past the message that is lost there."""
    *_, lost, last, good_to = known.starts()
    raw = bytearray(_last(known).read_bytes())
    raw[20:28] = (last + into).to_bytes(8, "big")
    _last(known).write_bytes(raw)
    HARM["its last entry leads far away"](known)
    with StoreSurvey(known.paths, known.config) as store:
        (queue,) = (each for each in store.queues() if each.queue_id == 0)
        assert (queue.end_before(good_to), lost < queue.log_offset(4) < good_to) == (5, True)
        assert [*find_doubted_queues(store, good_to, {})] == [(b"orders", 0)]


def test_a_queue_that_is_to_be_cut_at_its_very_first_entry_is_made_again(known: Any) -> None:
    """It leads far away, and its message is all that stays of the log."""
    good_to = known.starts()[1]
    _flip(_first(known), 4)
    with StoreSurvey(known.paths, known.config) as store:
        found = (
            find_broken_queues(store, {"orders/0": QueueEnd(6, UNKNOWN)}, good_to),
            find_doubted_queues(store, good_to, {}),
        )
    assert [[*each] for each in found] == [[(b"orders", 0)]] * 2


@pytest.mark.parametrize("at", [46, 50])  # two KiB further on, in the log's last file
def test_an_entry_that_leads_behind_the_log_of_an_orderly_stop_makes_that_no_damaged_one(
    known: Any, make_run: Callable[[Config], Run], at: int
) -> None:
    """The bit is one of its offset, or of its size. What our own stop has left says more."""
    run = _left(known, make_run(known.config))
    _flip(_last(known, 1), at, 0x08)
    known.paths.known_queues.unlink()
    found = known.recover(run)
    assert (found.quarantined, found.log_end) == ((), known.starts()[-1])


@pytest.mark.parametrize("listed", [True, False])
def test_what_leads_to_more_than_a_segment_has_is_no_end_of_a_queue_that_was_left_in_order(
    known: Any, listed: bool
) -> None:
    """The next message would come after it, and no consumer past it."""
    before = _queues(known)
    entry = ENTRY.pack(1 << 50, known.config.mapped_file_size_commit_log_bytes + 1, 7)
    (_last(known).parent / segment_name(120)).write_bytes(entry + bytes(40))
    if not listed:
        known.paths.known_queues.unlink()
    (found,) = known.recover().restored_queues
    assert found.startswith("queue orders/0 has bytes at its end, 7, that are no entry: made")
    assert _queues(known) == before
    assert known.recover().restored_queues == []


def test_after_a_failure_what_is_no_entry_is_cut_and_written_again_without_a_pass_over_the_log(
    known: Any,
) -> None:
    """A power failure leaves half an entry now and then."""
    known.paths.abort.write_text("1")
    entry = ENTRY.pack(1 << 50, known.config.mapped_file_size_commit_log_bytes + 1, 7)
    (_last(known).parent / segment_name(120)).write_bytes(entry + bytes(40))
    assert known.recover().restored_queues == []


def test_an_entry_that_leads_past_the_log_may_be_of_what_the_log_has_lost(known: Any) -> None:
    """RocketMQ has gone on with the store, and its last segment is gone: to make the queue again
    would take away what tells of it."""
    entry = ENTRY.pack(known.starts()[-1] + (1 << 20), 99, 7)
    (_last(known).parent / segment_name(120)).write_bytes(entry + bytes(40))
    assert known.recover().restored_queues == []
    assert _last(known).read_bytes() == entry + bytes(40)


def test_an_entry_s_size_is_no_word_on_where_the_log_ends(known: Any) -> None:
    """Nor for a repair, which would put marks there for what is lost. No watermark says more, as in
    a store of RocketMQ's."""
    log = known.log()
    _flip(_last(known, 1), 50, 0x08)
    found = known.recover()
    assert (found.quarantined, found.log_end) == ((), known.starts()[-1])
    plan = plan_repair(known.paths, known.config)
    assert not plan.ranges and known.log() == log


def test_an_entry_before_the_last_that_bisection_misses_ends_a_queue_too(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> None:
    store = stopped_store(twelve)
    run, before = _left(store, make_run(store.config)), _queues(store)
    _flip(_last(store), 4 * 20)
    found = store.recover(run)
    assert any("queue orders/0 " in each for each in found.restored_queues)
    assert _queues(store) == before


def test_a_queue_that_has_gone_on_since_its_list_is_made_again_where_its_entry_is_bent(
    known: Any, make_run: Callable[[Config], Run]
) -> None:
    run, before = _left(known, make_run(known.config)), _queues(known)
    known.paths.abort.write_text(str(run.supervisor_pid))
    ends = load_known_queues(known.paths.known_queues)
    older = {**ends, "orders/0": QueueEnd(5, known.starts()[8])}
    replace_known_queues(known.paths.known_queues, older)
    HARM["its last entry leads far away"](known)
    found = known.recover(msgspec.structs.replace(run, boot_id="another"))
    assert any("queue orders/0 " in each for each in found.restored_queues)
    assert _queues(known) == before


def test_what_a_deleted_topic_has_in_the_log_hides_nothing_of_the_next_queue(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    gone = msgspec.structs.replace(twelve[0], topic="gone", body=b"x")
    # before each message, so that in no piece of the log both queues come first
    store = stopped_store([record for each in twelve for record in (gone, each)])
    *_, last, good_to = store.starts()
    raw = bytearray(_last(store).read_bytes())
    raw[80:88] = last.to_bytes(8, "big")  # another's, so that all of the log is read
    _last(store).write_bytes(raw)
    for queue in (0, 1):
        _flip(_last(store, queue), 5 * 20)
    with StoreSurvey(store.paths, store.config) as survey:
        found = find_doubted_queues(survey, good_to, {"gone": good_to})
    assert found.keys() == {(b"orders", 0), (b"orders", 1)}


@pytest.mark.parametrize("position", [UNKNOWN, "its last record"])
def test_a_sound_queue_that_is_to_be_cut_before_its_last_entry_is_not_made_again(
    known: Any, position: int | str
) -> None:
    """That entry's record is read and dispatched again. Another queue that is hurt is found."""
    last, _, good_to = known.starts()[-3:]
    end = QueueEnd(6, UNKNOWN if position == UNKNOWN else last)
    with StoreSurvey(known.paths, known.config) as store:
        assert find_broken_queues(store, {"orders/0": end}, last) == {}
        assert find_doubted_queues(store, last, {}) == {}
    _flip(_last(known, 1), 44)
    with StoreSurvey(known.paths, known.config) as store:
        ends = {"orders/0": QueueEnd(6, UNKNOWN), "orders/1": QueueEnd(6, UNKNOWN)}
        assert [*find_broken_queues(store, ends, last)] == [(b"orders", 1)]


def test_what_a_deleted_topic_has_in_the_log_is_missed_by_no_queue(known: Any) -> None:
    good_to = known.starts()[-1]
    HARM["its last file is deleted"](known)
    with StoreSurvey(known.paths, known.config) as store:
        found = [
            find_unlisted_queues(store, set(), good_to, gone, whole=False).keys()
            for gone in ({}, {"orders": good_to})
        ]
    assert found == [{(b"orders", 0)}, set()]


def test_a_queue_that_neither_list_nor_topics_have_is_missed_if_the_log_has_several_messages(
    known: Any,
) -> None:
    """One message may have lost a bit of its queue's number, which makes no queue."""
    log = known.log()
    log[known.starts()[0] + AT_QUEUE_ID + 3] ^= 4
    known.write_log(log)
    known.paths.topics.unlink(missing_ok=True)
    shutil.rmtree(known.paths.queue("orders", 1))
    with StoreSurvey(known.paths, known.config) as store:
        lost = find_unlisted_queues(store, {"orders/0"}, known.starts()[-1], {}, whole=False)
    assert lost.keys() == {(b"orders", 1)}


@pytest.mark.parametrize("listed", [set(), {"orders/1", "others/1"}], ids=["none", "some"])
def test_where_lines_are_lost_a_queue_without_files_is_missed_if_its_topic_has_it(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record], listed: set[str]
) -> None:
    """Of a topic that no file has it is missed if the log has several messages of it. A number that
    the topic does not have is a bit that has flipped in a record, however often."""
    counts = {("orders", 0): 2, ("orders", 1): 1, ("orders", 2): 3}
    counts |= {("others", 0): 1, ("others", 1): 2, (TIMER_TOPIC, 0): 1}
    store = stopped_store(
        [
            make_record(topic=topic, queue_id=queue_id)
            for (topic, queue_id), count in counts.items()
            for _ in range(count)
        ]
    )
    store.paths.topics.parent.mkdir(exist_ok=True)
    topics = Topics()
    topics.put("orders", 2, 0)
    save_topics(store.paths.topics, topics)
    shutil.rmtree(store.paths.consume_queue)
    store.paths.consume_queue.mkdir()
    missed = {("orders", 0), ("orders", 1), ("others", 1), (TIMER_TOPIC, 0)}
    end = store.starts()[-1]
    with StoreSurvey(store.paths, store.config) as survey:
        found = find_unlisted_queues(survey, listed, end, {}, whole=False)
        assert find_unlisted_queues(survey, set(), end, {}, whole=True) == {}
    assert {(topic.decode(), queue_id) for topic, queue_id in found} == {
        each for each in missed if "{}/{}".format(*each) not in listed
    }
    assert all(why == "ends at 0, and the log has more of it" for _, why in found.values())


@pytest.mark.parametrize("listed", [True, False])
def test_what_the_list_says_of_a_queue_counts_whatever_a_record_says(
    known: Any, listed: bool
) -> None:
    """Its offset has lost a bit: the queue would be made again at each start, and have no more."""
    log = known.log()
    log[known.starts()[10] + AT_QUEUE_OFFSET + 7] ^= 0x40
    known.write_log(log)
    names = {"orders/0", "orders/1"} if listed else {"orders/1"}
    with StoreSurvey(known.paths, known.config) as store:
        found = find_unlisted_queues(store, names, known.starts()[-1], {}, whole=True)
    assert [*found] == ([] if listed else [(b"orders", 0)])


def test_a_record_that_another_queue_had_takes_no_slot_of_one_that_is_made_again(
    known: Any,
) -> None:
    """A bit of its queue id has flipped, and it stands right before the one whose slot it names."""
    before, log = _queues(known), known.log()
    log[known.starts()[6] + AT_QUEUE_ID + 3] ^= 1
    known.write_log(log)
    shutil.rmtree(known.paths.queue("orders", 1))
    assert len(known.recover().restored_queues) == 1 and _queues(known) == before


def test_half_an_entry_of_a_message_that_is_dispatched_again_is_no_lost_end(known: Any) -> None:
    """A power failure leaves a page and not the next one, and entries lie on both."""
    half = 12 * b"\x07" + bytes(8)
    (_last(known).parent / f"{120:020d}").write_bytes(half + bytes(40))
    with StoreSurvey(known.paths, known.config) as store:
        assert find_doubted_queues(store, known.starts()[-1], {}) == {}


def test_a_queue_that_has_nothing_at_its_end_is_in_no_doubt(known: Any) -> None:
    """It is whole, or the list knows better. The log is not read, and may end with its files."""
    HARM["its last entry is gone"](known)
    with StoreSurvey(known.paths, known.config) as store:
        for good_to in (known.starts()[-1], store.segments[-1].end):
            assert find_doubted_queues(store, good_to, {}) == {}


def test_a_queue_whose_messages_have_expired_goes_on_where_it_was(
    stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path
) -> None:
    store = stopped_store(twelve, base=3 * 4096)
    ends = {"gone/3": QueueEnd(1234, 700), "only-a-name/0": QueueEnd()}
    replace_known_queues(store.paths.known_queues, ends)
    found = store.recover()
    assert [each.split(":")[0] for each in found.restored_queues] == [
        "queue gone/3 is gone",
        "queue only-a-name/0 is gone",
    ]
    create_queue_table(tmp_path / "queues", 9)
    table = QueueTable(tmp_path / "queues", writable=True)
    assert store.recover_queues(None, table) == 3
    offsets = {table.key(slot): table.max_offset(slot) for slot in range(3)}
    minima = {table.key(slot): table.min_offset(slot) for slot in range(3)}
    table.close()
    assert offsets["gone", 3] == minima["gone", 3] == 1234
    assert set(load_known_queues(store.paths.known_queues)) == {"gone/3", "orders/0", "orders/1"}
    assert store.recover().restored_queues == []
    assert verify_store(store.paths.root).problems == []


@pytest.mark.parametrize("harm", ["its directory is gone", "its last file is deleted"])
@pytest.mark.parametrize("unclean", [False, True])
def test_a_queue_that_only_its_list_knows_is_named_and_a_repair_makes_it_again(
    known: Any, harm: str, unclean: bool
) -> None:
    """So is one of which the log has nothing any more."""
    ends = load_known_queues(known.paths.known_queues)
    ends["gone/3"] = QueueEnd(1234, 0)
    replace_known_queues(known.paths.known_queues, ends)
    if unclean:
        known.paths.abort.write_text("1")
    before = _queues(known)
    HARM[harm](known)
    report = verify_store(known.paths.root)
    lost = [each.detail.split(",")[0] for each in report.problems if each.kind == "queue-lost"]
    why = "is gone" if harm == "its directory is gone" else "ends at 3"
    assert sorted(lost) == ["queue gone/3 is gone", f"queue orders/0 {why}"]
    assert report.advice == [f"penstock store repair {known.paths.root} --apply"]
    plan = plan_repair(known.paths, known.config)
    assert sorted(each.split(",")[0] for each in plan.files) == [
        "make queue gone/3 anew",
        "make queue orders/0 anew",
    ]
    repair_store(known.paths, known.config, SystemClock(), None)
    assert not any(each.kind == "queue-lost" for each in _problems(known))
    assert not plan_repair(known.paths, known.config).needed
    assert before.items() <= _queues(known).items()


def test_lost_messages_at_the_end_of_a_lost_queue_keep_their_offsets(known: Any) -> None:
    log, records = known.log(), known.starts()
    log[records[10] + 200] ^= 4
    known.write_log(log)
    shutil.rmtree(known.paths.queue("orders", 0))
    known.paths.abort.write_text("1")
    found = known.recover()
    assert [each.position for each in found.quarantined] == [records[10]]
    assert len(found.restored_queues) == 1
    raw = _last(known).read_bytes()
    assert int.from_bytes(raw[40:48], "big") == records[10], "its entry points to the damage"


@pytest.fixture
def eight_each(stopped_store: Callable[..., Any], twelve: list[Record]) -> Callable[..., Any]:
    """A store of two queues with eight messages each: two full files, and one that is not."""

    def make(**layout: object) -> Any:
        store = stopped_store([*twelve, *twelve[:4]], queue_segment_bytes=60, **layout)
        return store._replace(config=_with_small_files(store.config))

    return make


def _change_places(one: Path, other: Path) -> None:
    raw = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(raw)


def _start(store: Any, place: Path) -> Any:
    """What a start does to the log and the queues."""
    found = store.recover()
    place.unlink(missing_ok=True)
    create_queue_table(place, 9)
    table = QueueTable(place, writable=True)
    store.recover_queues(found.queues_good_to, table)
    table.close()
    return found


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("listed", [None, QueueEnd(1, 0)])
@pytest.mark.parametrize("other", [0, 1])
def test_an_end_that_is_another_file_s_is_missed_where_no_list_tells(
    eight_each: Callable[..., Any],
    tmp_path: Path,
    other: int,
    listed: QueueEnd | None,
    unclean: bool,
) -> None:
    """Else the start notes an offset that the queue never had, and no repair gets rid of it."""
    store = eight_each(unclean=unclean)
    before = _queues(store)
    _change_places(_last(store), store.paths.queue("orders", other) / segment_name(60))
    replace_known_queues(store.paths.known_queues, {"orders/0": listed} if listed else {})
    found = _start(store, tmp_path / "queues")
    assert any("queue orders/0 leads to other" in each for each in found.restored_queues)
    # the list may know by now where the queue ends whose file it was, and then that one is missed
    then = store.recover().restored_queues
    assert found.quarantined == () and not any("orders/0" in each for each in then)
    repair_store(store.paths, store.config, SystemClock(), None)
    again = store.recover()
    assert (again.quarantined, again.restored_queues, again.log_end) == ((), [], found.log_end)
    if not unclean:  # else the reput is still to come
        assert _queues(store) == before
    assert load_known_queues(store.paths.known_queues).get("orders/0", QueueEnd()).end <= 8


def test_two_messages_are_enough_to_tell_that_a_queue_has_another_s_file(
    stopped_store: Callable[..., Any], twelve: list[Record], tmp_path: Path
) -> None:
    store = stopped_store(twelve[:4], queue_segment_bytes=60)
    store = store._replace(config=_with_small_files(store.config))
    before = _queues(store)
    _swap(store)
    found = _start(store, tmp_path / "queues")
    assert [each.split(" at ")[0] for each in found.restored_queues] == [
        "queue orders/0 leads to other messages",
        "queue orders/1 leads to other messages",
    ]
    assert _queues(store) == before


def test_a_single_record_whose_numbers_have_changed_takes_no_queue_s_end_away(
    eight_each: Callable[..., Any],
) -> None:
    """No checksum covers them, so it is the record that may be wrong, and its offset was given."""
    store = eight_each()
    log = store.log()
    log[store.starts()[14] + 15] ^= 2  # the last one of queue 0 now says queue 2
    store.write_log(log)
    assert store.recover().restored_queues == []
    assert len(_queues(store)[f"orders/0/{segment_name(120)}"].rstrip(b"\0")) > 20


def test_a_queue_that_is_known_to_have_gone_on_in_a_whole_log_does_not_make_that_a_damaged_one(
    eight_each: Callable[..., Any], tmp_path: Path
) -> None:
    """The list may be wrong, so nothing is lost; it may be right, so no offset is given again."""
    store = eight_each()
    position = store.starts()[14]
    replace_known_queues(store.paths.known_queues, {"orders/0": QueueEnd(11, position)})
    first = _start(store, tmp_path / "queues")
    assert len(first.restored_queues) == 1 and first.quarantined == ()
    second = _start(store, tmp_path / "queues")
    assert (second.quarantined, second.restored_queues) == ((), [])
    assert second.log_end == first.log_end == store.starts()[-1]
    assert load_known_queues(store.paths.known_queues)["orders/0"] == QueueEnd(11, position)
    assert "queue-entry-without-record" in {each.kind for each in _problems(store)}
    repair_store(store.paths, store.config, SystemClock(), None)
    third = _start(store, tmp_path / "queues")
    assert (third.quarantined, third.log_end) == ((), first.log_end)
    assert load_known_queues(store.paths.known_queues)["orders/0"] == QueueEnd(11, position)


def _problems(store: Any) -> list[Any]:
    return verify_store(store.paths.root).problems


def test_names_that_are_no_queues_are_not_missed(known: Any) -> None:
    with known.paths.known_queues.open("ab") as file:
        file.write(b"../3\nno topic/0\n\xff/1\norders/../../../beside/0\n")
    assert known.recover().restored_queues == []
