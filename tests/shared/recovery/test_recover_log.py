"""Start-up: the log's end is found, a torn tail goes, and nothing that is valid is ever touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.chaos.stepped.replay import settle
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.durable import make_directory
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import damage_between, load_quarantine, save_quarantine
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run, boot_id
from penstock.shared.memory.transient_store_pool import TransientStorePool
from penstock.shared.queue.known_queues import WATERMARK, QueueEnd, replace_known_queues
from penstock.shared.recovery.recover_log import _refuse_lost_log
from penstock.shared.recovery.witness import hear
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.watermark import Watermark, make_watermark

SEGMENT = 4096


def test_a_new_store_begins_at_zero(stopped_store: Callable[..., Any]) -> None:
    store = stopped_store([], checkpoint=False)
    found = store.recover()
    assert found.mode == "new"
    assert (found.log_start, found.log_end, found.dispatch_from, found.messages) == (0, 0, 0, 0)


def test_a_clean_store_is_left_as_it_is(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    before = store.contents()
    found = store.recover()
    assert store.contents() == before
    *records, end = store.starts()
    assert (found.mode, found.log_end, found.dispatch_from) == ("clean", end, end)
    assert (found.last_record, found.torn_bytes, found.pool_bytes) == (records[-1], 0, 0)
    assert found.scanned_from == SEGMENT, "only the last segment is looked through"
    assert found.messages == sum(start >= SEGMENT for start in records)


def test_a_clean_store_without_its_queues_is_dispatched_again(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, queues=False)
    found = store.recover()
    assert found.dispatch_from == found.scanned_from < found.log_end


@pytest.mark.parametrize("unclean", [False, True])
def test_queues_that_are_gone_are_made_again_from_the_log_s_start_whatever_the_checkpoint_says(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool
) -> None:
    store = stopped_store(twelve, unclean=unclean)
    *records, end = store.starts()
    late = 1 << 50
    words = Checkpoint(late, late, confirm_offset=records[-1])
    store.paths.checkpoint.write_bytes(encode_checkpoint(words))
    assert store.recover().scanned_from == records[-1], "all is there"
    shutil.rmtree(store.paths.consume_queue)
    store.paths.consume_queue.mkdir()
    for _ in range(2):  # the first one may die before it has a run to name in `abort`
        found = store.recover()
        assert (found.scanned_from, found.dispatch_from, found.log_end) == (0, 0, end)
        assert found.messages == 12


def test_a_log_that_begins_late_keeps_its_offsets(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, base=5 * SEGMENT, unclean=True)
    found = store.recover()
    assert found.log_start == 5 * SEGMENT and found.log_end == store.starts()[-1] > 6 * SEGMENT


def test_an_unclean_store_is_scanned_from_a_segment_the_checkpoint_vouches_for(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    stored = [
        msgspec.structs.replace(record, store_timestamp_ms=10_000 * (number + 1))
        for number, record in enumerate(twelve)
    ]
    store = stopped_store(stored, unclean=True)
    *records, end = store.starts()
    second = sum(start < SEGMENT for start in records)
    for known_ms, scanned_from in ((0, 0), (10_000 * second + 3000, 0), (999_999, SEGMENT)):
        store.paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint(known_ms, known_ms)))
        found = store.recover()
        assert (found.mode, found.scanned_from, found.log_end) == ("unclean", scanned_from, end)
        assert found.dispatch_from == scanned_from, "what comes behind is written again"


def test_a_confirmed_record_shortens_the_scan_and_a_wrong_one_does_not(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, unclean=True)
    *records, end = store.starts()
    late = 1 << 50

    def scanned_from(offset: int, known_ms: int) -> int:
        words = Checkpoint(known_ms, known_ms, confirm_offset=offset)
        store.paths.checkpoint.write_bytes(encode_checkpoint(words))
        found = store.recover()
        assert found.log_end == end
        return found.scanned_from

    assert scanned_from(records[3], late) == SEGMENT, "the segment's start is nearer"
    assert scanned_from(records[-2], late) == records[-2]
    for wrong in (records[-2] + 1, end, end + 50, 1 << 40, -5):
        assert scanned_from(wrong, late) == SEGMENT, wrong
    assert scanned_from(records[-2], 1) == 0, "newer than what the checkpoint knows"


# --- torn tails ---


@given(
    st.lists(st.integers(0, 1200), max_size=9),
    st.integers(0, 700),
    st.integers(0, 900),
    st.binary(max_size=40),
)
def test_a_torn_tail_becomes_zeros_and_doing_it_twice_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    as_stopped: Callable[[StorePaths, Config], Any],
    bodies: list[int],
    torn_body: int,
    kept: int,
    noise: bytes,
) -> None:
    """A power failure: the last record is there in part, and there may be anything after it."""
    root = tmp_path_factory.mktemp("torn") / "store"
    paths = StorePaths(root)
    for directory in (paths.commit_log, paths.consume_queue, paths.staging):
        directory.mkdir(parents=True)
    log = bytearray()
    for body in bodies:
        raw = encode_record(Record("t", b"x" * body, physical_offset=len(log)))
        if len(log) + len(raw) + 8 > 4 * SEGMENT:
            break
        log += raw
    end = len(log)
    torn = encode_record(Record("t", b"y" * torn_body, physical_offset=end))
    tail = torn[: min(kept, len(torn) - 1)] + noise
    # a record that ends in zeros is whole without them
    assume(tail.ljust(len(torn), b"\0")[: len(torn)] != torn)
    (paths.commit_log / segment_name(0)).write_bytes((log + tail).ljust(16 * SEGMENT, b"\0"))
    paths.abort.write_text("1")
    store = as_stopped(
        paths, Config(store_path_root_dir=str(root), mapped_file_size_commit_log_bytes=16 * SEGMENT)
    )
    found = store.recover()
    assert found.log_end == end
    assert found.torn_bytes == len(tail) - tail.count(0)
    assert store.log() == log + bytes(16 * SEGMENT - end)
    before = store.contents()
    again = store.recover()
    assert (again.log_end, again.torn_bytes) == (end, 0)
    assert store.contents() == before
    shutil.rmtree(root.parent)


def test_a_record_whose_body_was_not_written_is_cut(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, unclean=True)
    *records, end = store.starts()
    log = store.log()
    log[records[-1] + 100 : records[-1] + 200] = bytes(100)
    store.write_log(log)
    found = store.recover()
    assert found.log_end == found.last_record + (records[-1] - records[-2]) == records[-1]
    assert not any(store.log()[records[-1] :])


def test_a_tail_in_the_next_segment_goes_as_well(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """The disk wrote the second segment, and of the first one the end is missing."""
    store = stopped_store(twelve, unclean=True)
    records = store.starts()
    second = next(start for start in records if start >= SEGMENT)
    log = store.log()
    last = records[records.index(second) - 1]
    log[last:SEGMENT] = bytes(SEGMENT - last)
    log[second : second + 5] = b"\xff" * 5  # no record begins there
    for start in records[records.index(second) :]:
        log[start : start + 30] = b"\xff" * min(30, len(log) - start)
    store.write_log(log)
    assert store.recover().log_end == last
    assert not any(store.log()[last:])


# --- damage ---


@pytest.mark.parametrize("unclean", [True, False])
@pytest.mark.parametrize("what", ["magic", "size", "body", "own offset", "zeros"])
def test_damage_before_valid_records_is_named_and_no_byte_changes(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool, what: str
) -> None:
    store = stopped_store(twelve, unclean=unclean)
    records = store.starts()
    at = records[-4]
    log = store.log()
    cut = {"magic": (4, 8), "size": (0, 4), "body": (150, 151), "own offset": (28, 36)}
    if what == "zeros":
        log[at + 10 : at + 300] = bytes(290)
    else:
        first, last = cut[what]
        log[at + first : at + last] = b"\x7e" * (last - first)
    store.write_log(log)
    before = store.contents()
    found = store.recover()
    assert store.contents() == before
    (damage,) = found.quarantined
    assert (damage.position, damage.end) == (at, records[-3])
    assert (damage.file, damage.offset) == (
        str(store.paths.commit_log / segment_name(SEGMENT)),
        at - SEGMENT,
    )
    assert damage.reason
    assert (found.log_end, found.last_record) == (records[-1], records[-2])
    begin = 0 if unclean else SEGMENT
    assert found.messages == sum(start >= begin for start in records[:-1]) - 1
    assert found.dispatch_from == begin and found.queues_good_to == found.log_end


class Bench(NamedTuple):
    """A store of twelve records, of which a power failure or a disk has hit the tenth."""

    store: Any
    run: Run
    records: list[int]
    end: int
    log: bytearray

    def mark(self, flushed: int, *, run_id: str = "", follow: bool = False) -> None:
        mark = Watermark(run_id or self.run.run_id, follow, flushed, Checkpoint())
        make_watermark(self.store.paths.watermark, mark)

    def stays(self, run: Run | None) -> bool:
        """Start; whether everything is as it was, and the damage is named."""
        before = self.store.contents()
        found = self.store.recover(run)
        if not found.quarantined:
            return False
        assert [each.position for each in found.quarantined] == [self.records[9]]
        assert (found.log_end, found.torn_records) == (self.end, 0)
        assert self.store.contents() == before
        return True


@pytest.fixture
def hit(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> Bench:
    stored = [
        msgspec.structs.replace(record, store_timestamp_ms=10_000 * (number + 1))
        for number, record in enumerate(twelve)
    ]
    store = stopped_store(stored, unclean=True, queues=False, checkpoint=False)
    # a list that has lost no line: what it does not name is dispatched, and not missed
    replace_known_queues(store.paths.known_queues, {})
    *records, end = store.starts()
    run = msgspec.structs.replace(make_run(store.config), boot_id="another")
    shutil.rmtree(run.path)  # its memory is gone, whatever the boot
    store.paths.abort.write_text(str(run.supervisor_pid))
    log = bytearray(store.log())
    log[records[9] + 100] ^= 1
    store.write_log(log)
    return Bench(store, run, records, end, log)


@pytest.mark.parametrize("flushed", range(8, 13))
def test_whole_records_behind_damage_are_cut_only_if_the_power_failed_and_none_was_flushed(
    hit: Bench, flushed: int
) -> None:
    """A power failure may keep a page and lose the one before, when neither was flushed."""
    store, records, end = hit.store, hit.records, hit.end
    hit.mark([*records, end][flushed])
    # a start that died over the cut has kept them: what it left of them must not take their place
    name = f"torn-{segment_name(records[9])}"
    store.paths.quarantine.mkdir(parents=True)
    (store.paths.quarantine / name).write_bytes(b"kept by the start before")
    if flushed > 9:
        assert hit.stays(hit.run)
        return
    found = store.recover(hit.run)
    assert found.quarantined == () and found.log_end == records[9]
    assert found.torn_records == 2 and not any(store.log()[records[9] :])
    before_it, kept = sorted(store.paths.quarantine.iterdir())
    assert before_it.name == name and before_it.read_bytes() == b"kept by the start before"
    assert kept.name == f"{name}.1"
    assert kept.read_bytes() == hit.log[records[9] : end]
    before = store.contents()
    again = store.recover(hit.run)
    assert (again.log_end, again.torn_records) == (records[9], 0)
    assert store.contents() == before


def test_without_a_witness_that_nobody_was_told_of_them_whole_records_behind_damage_stay(
    hit: Bench,
) -> None:
    store, records = hit.store, hit.records
    assert hit.stays(hit.run), "there is no watermark"
    hit.mark(records[8], run_id="f" * 16)
    assert hit.stays(hit.run), "it is of another run"
    hit.mark(records[8])
    assert hit.stays(None), "nobody knows which run was the last one"
    assert hit.stays(msgspec.structs.replace(hit.run, supervisor_pid=1)), "`abort` names another"
    assert hit.stays(msgspec.structs.replace(hit.run, boot_id=boot_id())), "no power failed"
    raw = store.paths.watermark.read_bytes()
    for at in range(0, len(raw), 7):
        store.paths.watermark.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        assert hit.stays(hit.run), "it is none any more"
    store.paths.watermark.write_bytes(b"")
    assert hit.stays(hit.run), "it has lost its content"


@pytest.mark.parametrize("what", ["missing", "empty", "zeros", "short", "stale", "future", "noise"])
@pytest.mark.parametrize("marked", [False, True])
def test_whatever_the_checkpoint_says_no_record_that_may_be_known_is_cut(
    hit: Bench, what: str, marked: bool
) -> None:
    hit.mark(hit.end) if marked else None
    stale, late = encode_checkpoint(Checkpoint(10_000, 10_000)), 1 << 50
    raw = {
        "empty": b"",
        "zeros": bytes(4096),
        "short": stale[:30],
        "stale": stale,
        "future": encode_checkpoint(Checkpoint(late, late, late, late, hit.end + 4096)),
        "noise": bytes(range(256)) * 16,
    }
    if what in raw:
        hit.store.paths.checkpoint.write_bytes(raw[what])
    for run in (hit.run, None):
        found = hit.store.recover(run)
        assert found.torn_records == found.torn_bytes == 0
        assert found.log_end == hit.end and hit.store.log() == hit.log


def test_words_that_were_harmed_name_no_record_in_front_of_the_log(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> None:
    """A start believes a checkpoint where it has nothing else, and a watermark keeps its words."""
    store = stopped_store(twelve, base=3 * SEGMENT, unclean=True)
    run = make_run(store.config)
    shutil.rmtree(run.path)
    store.paths.abort.write_text(str(run.supervisor_pid))
    end = store.starts()[-1]
    mark = Watermark(run.run_id, True, end, Checkpoint(5, 6, 7, 0, -4711))
    make_watermark(store.paths.watermark, mark)
    store.paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint(5, 6, 7, 0, 0)))
    found = store.recover(run)
    assert (found.log_end, found.quarantined) == (end, ())


def test_the_list_of_queues_vouches_for_the_log_s_end_where_the_watermark_is_lost(
    hit: Bench,
) -> None:
    """Its last record is damaged, and no write that a crash has cut off."""
    at, log = hit.records[11], hit.store.log()
    log[hit.records[9] + 100] ^= 1  # whole again
    log[at + 100] ^= 1
    hit.store.write_log(log)
    replace_known_queues(hit.store.paths.known_queues, {WATERMARK: QueueEnd(hit.end)})
    before = hit.store.contents()
    for run in (hit.run, None):
        found = hit.store.recover(run)
        assert [each.position for each in found.quarantined] == [at] and found.log_end == hit.end
        assert hit.store.contents() == before
    hit.store.paths.known_queues.unlink()
    assert hit.store.recover(hit.run).log_end == at, "nobody vouches for it"


@pytest.mark.parametrize("flushed", [7, 8])
def test_a_watermark_that_is_older_than_the_checkpoint_is_no_witness(
    hit: Bench, flushed: int
) -> None:
    """It has to end after the record that the checkpoint names, which was on disk."""
    words = Checkpoint(90_000, 90_000, confirm_offset=hit.records[8])
    hit.store.paths.checkpoint.write_bytes(encode_checkpoint(words))
    hit.mark(hit.records[flushed])
    assert hit.stays(hit.run)


def test_a_watermark_that_says_less_than_the_list_is_no_witness(hit: Bench) -> None:
    hit.mark(hit.records[8])
    known = hit.store.paths.known_queues
    replace_known_queues(known, {WATERMARK: QueueEnd(hit.records[8] + 1)})
    assert hit.stays(hit.run)
    replace_known_queues(known, {WATERMARK: QueueEnd(hit.records[8])})
    assert not hit.stays(hit.run)


def test_damage_that_a_start_has_named_is_no_torn_tail_for_the_next_one(hit: Bench) -> None:
    """The start died after it had named it, and the power failed: the watermark is as it was."""
    paths, (start, stop) = hit.store.paths, hit.records[9:11]
    hit.mark(hit.records[8])
    save_quarantine(paths, damage_between(paths, SEGMENT, start, stop, "bad"), 77)
    assert hit.stays(hit.run)


@pytest.mark.parametrize("what", ["missing", "zeros", "older"])
def test_beside_a_checkpoint_that_says_less_than_it_knows_a_watermark_is_no_witness(
    hit: Bench, what: str
) -> None:
    """Whoever has harmed the one may have harmed the other."""
    mark = Watermark(hit.run.run_id, False, hit.records[8], Checkpoint(20_000, 20_000))
    make_watermark(hit.store.paths.watermark, mark)
    raw = {"zeros": bytes(4096), "older": encode_checkpoint(Checkpoint(20_000, 10_000))}
    if what in raw:
        hit.store.paths.checkpoint.write_bytes(raw[what])
    assert hit.stays(hit.run)
    hit.store.paths.checkpoint.write_bytes(encode_checkpoint(mark.checkpoint))
    assert not hit.stays(hit.run)


@pytest.mark.parametrize("is_last", [False, True])
def test_an_older_watermark_does_not_end_the_log_of_a_store_that_was_left_clean(
    hit: Bench, is_last: bool
) -> None:
    """It has the words of a checkpoint that nobody had written to, as a lost checkpoint has. Even
    where it is of a stop: the log has gone on since."""
    hit.store.paths.abort.unlink()
    mark = Watermark(hit.run.run_id, True, hit.records[9], Checkpoint(), is_last)
    make_watermark(hit.store.paths.watermark, mark)
    log = hit.store.log()
    found = hit.store.recover(hit.run)
    assert hit.store.log() == log and found.log_end == hit.end


@pytest.mark.parametrize("is_another_empty", [False, True])
def test_what_a_queue_names_was_flushed_where_queues_follow_the_flush(
    hit: Bench, twelve: list[Record], is_another_empty: bool
) -> None:
    """Else a start would cut what a consumer has read."""
    paths = hit.store.paths
    if is_another_empty:  # as a queue is that has never had a message
        make_directory(paths.queue("t", 1))
        paths.queue("t", 1).joinpath(segment_name(0)).write_bytes(bytes(1000))
    make_directory(paths.queue("t", 0))
    size = hit.records[11] - hit.records[10]
    entry = ENTRY.pack(hit.records[10], size, 0)
    paths.queue("t", 0).joinpath(segment_name(0)).write_bytes(entry.ljust(1000, b"\0"))
    hit.mark(hit.records[8], follow=True)
    assert hit.stays(hit.run)
    hit.mark(hit.records[8], follow=False)
    assert not hit.stays(hit.run)


def test_the_last_record_is_damage_and_no_torn_tail_where_it_was_flushed(hit: Bench) -> None:
    """Nothing is after it that would tell."""
    log = bytearray(hit.log)
    log[hit.records[9] + 100] ^= 1
    log[hit.records[11] + 200] ^= 1
    hit.store.write_log(log)
    hit.mark(hit.end)
    found = hit.store.recover(hit.run)
    assert [each.position for each in found.quarantined] == [hit.records[11]]
    assert found.log_end == hit.end and hit.store.log() == log
    hit.mark(hit.records[11])
    found = hit.store.recover(hit.run)
    assert found.quarantined == () and found.log_end == hit.records[11]


@pytest.mark.parametrize(
    ("place", "name", "length"),
    [
        ("commitlog", "notes.txt", 5),
        ("commitlog", segment_name(2 * SEGMENT), 100),
        ("commitlog", segment_name(9 * SEGMENT), SEGMENT),
        ("commitlog", segment_name(2 * SEGMENT + 20), SEGMENT),
    ],
)
def test_a_foreign_file_is_named_and_left_alone(
    stopped_store: Callable[..., Any], twelve: list[Record], place: str, name: str, length: int
) -> None:
    store = stopped_store(twelve, unclean=True)
    (store.paths.root / place / name).write_bytes(b"x" * length)
    before = store.contents()
    with pytest.raises(StoreDamaged, match=place):
        store.recover()
    assert store.contents() == before


def test_a_last_file_without_a_byte_goes(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, unclean=True)
    end = store.starts()[-1]
    empty = store.paths.commit_log / segment_name(2 * SEGMENT)
    empty.touch()
    assert store.recover().log_end == end
    assert not empty.exists()


def test_half_made_files_go(stopped_store: Callable[..., Any], twelve: list[Record]) -> None:
    store = stopped_store(twelve, unclean=True)
    (store.paths.staging / "commitlog-00-1").write_bytes(b"x")
    store.recover()
    assert list(store.paths.staging.iterdir()) == []


def test_a_directory_among_half_made_files_stays_and_fails_no_start(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, unclean=True)
    foreign = store.paths.staging / "commitlog-mine"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    (store.paths.staging / "link").symlink_to(foreign)
    settle(store.paths.root, store.config)
    assert list(store.paths.staging.iterdir()) == [foreign]
    assert (foreign / "notes.txt").read_text() == "mine"


def test_queues_without_a_log_are_not_believed(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    for path in store.paths.commit_log.iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match="a part of the log is gone"):
        store.recover()


@pytest.mark.parametrize("stray", ["", "x"], ids=["an empty one", "one with bytes"])
def test_a_log_that_has_its_bytes_is_not_called_lost_for_a_file_that_is_no_segment(
    stopped_store: Callable[..., Any], twelve: list[Record], stray: str
) -> None:
    store = stopped_store(twelve)
    (store.paths.commit_log / "notes").write_text(stray)
    with StoreSurvey(store.paths, store.config) as survey:
        assert survey.problems
        _refuse_lost_log(survey, hear(survey, None))


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_only_a_last_file_without_a_byte_is_a_lost_part_of_the_log(
    stopped_store: Callable[..., Any], twelve: list[Record], kept: int
) -> None:
    store = stopped_store(twelve)
    os.truncate(max(store.paths.commit_log.iterdir()), kept)
    with StoreSurvey(store.paths, store.config) as survey:
        assert survey.problems
        with nullcontext() if kept else pytest.raises(StoreDamaged, match="a part of the log"):
            _refuse_lost_log(survey, hear(survey, None))


# --- the pool of the last run ---


@pytest.mark.parametrize("committed_to", [0, 1, 4, 11, 12])
def test_what_the_last_run_wrote_is_taken_from_its_pool(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    make_run: Callable[[Config], Run],
    committed_to: int,
) -> None:
    store = stopped_store(twelve, unclean=True, queues=False)
    records = store.starts()
    end, committed = records[-1], records[committed_to]
    whole = store.log()
    run = make_run(store.config)
    pool = TransientStorePool(run.pool, writable=True)
    pool.write(committed, whole[committed:end])
    pool.close()
    positions = Positions(run.positions, owner="supervisor")
    for name, value in (("wrote", end), ("committed", committed), ("flushed", committed)):
        positions.initialise(name, value)
    positions.close()
    store.write_log(whole[:committed] + bytes(len(whole) - committed))
    if committed_to == 0:
        for path in store.paths.commit_log.iterdir():
            path.unlink()
    store.paths.abort.write_text(str(run.supervisor_pid))

    found = store.recover(run)
    assert (found.log_end, found.pool_bytes, found.messages) == (end, end - committed, 12)
    assert store.log()[:end] == whole[:end]
    before = store.contents()
    assert store.recover(run).log_end == end
    assert store.contents() == before


def test_a_pool_is_not_used_when_another_broker_came_in_between(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> None:
    store = stopped_store(twelve, unclean=True)
    run = make_run(store.config)
    positions = Positions(run.positions, owner="supervisor")
    positions.initialise("wrote", 100)
    positions.close()
    before = store.contents()
    assert store.paths.abort.read_text() != str(run.supervisor_pid)
    assert store.recover(run).log_end == store.starts()[-1]
    assert store.contents() == before


def test_a_log_that_ends_before_what_was_acknowledged_is_damage(
    stopped_store: Callable[..., Any], twelve: list[Record], make_run: Callable[[Config], Run]
) -> None:
    store = stopped_store(twelve, unclean=True)
    *records, end = store.starts()
    run = make_run(store.config)
    positions = Positions(run.positions, owner="supervisor")
    for name in ("wrote", "committed", "flushed"):
        positions.initialise(name, end)
    positions.close()
    store.paths.abort.write_text(str(run.supervisor_pid))
    log = store.log()
    log[records[-1] :] = bytes(len(log) - records[-1])
    store.write_log(log)
    before = store.contents()
    found = store.recover(run)
    assert store.contents() == before
    (damage,) = found.quarantined
    assert (damage.position, damage.end, found.log_end) == (records[-1], end, end)
    assert f"the log was written up to {end}" in damage.reason

    save_quarantine(store.paths, found.quarantined, 77)
    again = store.recover()
    assert again.quarantined[0].end == end, "known without the last run's memory too"
    assert again.log_end == end


@pytest.mark.parametrize("unclean", [False, True])
def test_a_log_that_loses_its_end_when_other_damage_is_known_goes_on_after_it(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool
) -> None:
    """Else a repair of both would give log offsets again."""
    store = stopped_store(twelve, unclean=unclean)
    *records, end = store.starts()
    make_watermark(store.paths.watermark, Watermark("0" * 16, True, end, Checkpoint()))
    known = damage_between(store.paths, SEGMENT, records[2], records[3], "bad")
    save_quarantine(store.paths, known, 77)
    log = store.log()
    log[records[2] + 120] ^= 4
    log[records[10] :] = bytes(len(log) - records[10])
    store.write_log(log)
    before = store.contents()
    found = store.recover()
    lost = [(each.position, each.end) for each in found.quarantined]
    assert (found.log_end, lost) == (end, [(records[2], records[3]), (records[10], end)])
    assert store.contents() == before


def test_what_was_quarantined_is_found_before_the_scan_s_usual_start_until_it_is_whole_again(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    records = store.starts()
    whole = store.log()
    damaged = bytearray(whole)
    damaged[records[2] + 120] ^= 4
    store.write_log(damaged)
    assert store.recover().quarantined == (), "the scan begins behind it"
    base = damage_between(store.paths, SEGMENT, records[2], records[3], "bad")
    save_quarantine(store.paths, base, 77)
    found = store.recover()
    assert [(each.position, each.size) for each in found.quarantined] == [
        (records[2], records[3] - records[2])
    ]
    assert found.scanned_from == 0 and found.messages == 12 - 1
    save_quarantine(store.paths, found.quarantined, 99)
    assert load_quarantine(store.paths)[0].found_ms == 77
    store.write_log(whole)
    assert store.recover().quarantined == ()


@pytest.mark.parametrize("unclean", [False, True])
def test_damage_that_is_listed_where_a_whole_record_stands_takes_nothing_of_it(
    stopped_store: Callable[..., Any], twelve: list[Record], unclean: bool
) -> None:
    """A digit of the list has changed, or it is another store's: a repair would put a tombstone in
    the record's place."""
    store = stopped_store(twelve, unclean=unclean)
    records = store.starts()
    for start, stop in ((records[2] + 30, records[2] + 80), (records[1], records[2] - 7)):
        known = damage_between(store.paths, SEGMENT, start, stop, "bad")
        save_quarantine(store.paths, known, 77)
        found = store.recover()
        assert (found.quarantined, found.log_end) == ((), records[-1])
        assert found.messages == 12


def test_what_rocketmq_left_behind_where_it_cut_the_log_is_not_damage(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    """It cuts queues, and of the log its own notion of the end: a torn record stays on disk, and
    whole ones after it."""
    store = stopped_store(twelve)
    *records, end = store.starts()
    for queue_id in (0, 1):
        (file,) = store.paths.queue("orders", queue_id).iterdir()
        raw = file.read_bytes()
        file.write_bytes(raw[: 5 * 20] + bytes(len(raw) - 5 * 20))
    log = store.log()
    log[records[10] + 120] ^= 1
    store.write_log(log)
    found = store.recover()
    assert (found.quarantined, found.log_end) == ((), records[10])
    assert not any(store.log()[records[10] :]), "so that the next record has zeros behind it"


def test_a_clean_store_s_last_record_is_not_cut_when_a_queue_names_it(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    *records, end = store.starts()
    log = store.log()
    log[end - 1] ^= 1
    log[records[-1] + 2] ^= 1
    store.write_log(log)
    before = store.contents()
    (damage,) = store.recover().quarantined
    assert (damage.position, damage.end) == (records[-1], end)
    assert store.contents() == before


def test_a_clean_store_without_queues_loses_nothing_behind_damage(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve, queues=False)
    *records, end = store.starts()
    log = store.log()
    log[records[-2] + 120] ^= 1
    store.write_log(log)
    before = store.contents()
    found = store.recover()
    assert [each.position for each in found.quarantined] == [records[-2]]
    assert (found.log_end, store.contents()) == (end, before)


def test_queues_that_a_dead_start_was_making_are_removed(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    (store.paths.rebuild / "consumequeue").mkdir(parents=True)
    store.recover()
    assert not store.paths.rebuild.exists()
