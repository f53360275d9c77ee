"""What a start believes of what a store's files say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.record import Record
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.known_queues import WATERMARK, QueueEnd, replace_known_queues
from penstock.shared.recovery import witness as module
from penstock.shared.recovery.witness import (
    Witness,
    confirmed_record,
    find_witness,
    first_timestamp_ms,
    hear,
)
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.watermark import Watermark, encode_watermark

STORED_MS = 1_700_000_000_000
# where the log begins; its records are of one size, and eight fill a segment
BASE = 8192


@pytest.fixture
def stored(
    stopped_store: Callable[..., Any], make_record: Callable[..., Record]
) -> Iterator[tuple[StoreDirectory, list[int]]]:
    """Twenty records, a millisecond apart, and where they begin and the last one ends."""
    store = stopped_store(
        [make_record(body=bytes(400), store_timestamp_ms=STORED_MS + each) for each in range(20)],
        base=BASE,
    )
    with StoreDirectory(store.paths.root) as directory:
        yield directory, store.starts()


def _heard(
    checkpoint: Checkpoint,
    mark: Watermark | None,
    listed: int = 0,
    *,
    unclean: bool = True,
    last: bool = True,
    named: bool = True,
    boot: bool = False,
) -> module.Testimony:
    return module.Testimony(checkpoint, mark, listed, True, unclean, last, named, boot)


def _of(number: int, starts: list[int]) -> Checkpoint:
    """The checkpoint of a flush that ended with this record."""
    return Checkpoint(STORED_MS + number, STORED_MS + number, 0, 0, starts[number])


def test_a_record_is_covered_that_was_flushed_or_was_told_or_was_confirmed() -> None:
    """By the place of one that the checkpoint names, or by an earlier time than its own."""
    for flushed, told, confirmed, time in itertools.product((0, 3, 5), (0, 3, 5), (0, 4), (0, 2)):
        for is_torn in (False, True):
            checkpoint = Checkpoint(time, 0, 0, 0, confirmed)
            witness = Witness(checkpoint, flushed, told, may_be_torn=is_torn)
            for at in range(7):
                is_known = at < flushed or at < told
                assert witness.tears(at) == (is_torn and not is_known)
                for stored in range(4):
                    is_confirmed = confirmed > 0 and at <= confirmed
                    covered = is_known or is_confirmed or stored < time
                    assert witness.covers(at, stored) == covered


@pytest.mark.parametrize("unclean", [False, True])
def test_without_a_watermark_the_list_has_the_word(
    stored: tuple[StoreDirectory, list[int]], unclean: bool
) -> None:
    directory, starts = stored
    checkpoint = _of(3, starts)
    heard = _heard(checkpoint, None, 77, unclean=unclean)
    assert find_witness(directory, heard, 1 << 40) == Witness(
        checkpoint, 77, 77, False, False, unclean
    )


@pytest.mark.parametrize("unclean", [False, True])
def test_of_another_run_or_another_broker_only_what_was_flushed_counts(
    stored: tuple[StoreDirectory, list[int]], unclean: bool
) -> None:
    """A log does not become shorter, whoever has had it since."""
    directory, starts = stored
    checkpoint = _of(3, starts)
    mark = Watermark("r", True, starts[4], checkpoint, is_last=True)
    least = Witness(checkpoint, starts[4], starts[4], may_be_cut=unclean)
    for last, named in ((False, True), (False, False), (True, False)):
        if unclean or not last:
            heard = _heard(checkpoint, mark, 5, unclean=unclean, last=last, named=named)
            assert find_witness(directory, heard, 1 << 40) == least


@pytest.mark.parametrize(
    "flushed", ["the end", "amid", "the beginning", "past the files", "before them", "missing"]
)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("is_same", [False, True])
def test_a_stop_has_the_last_word_if_nothing_was_written_since(
    stored: tuple[StoreDirectory, list[int]], flushed: str, is_last: bool, is_same: bool
) -> None:
    directory, starts = stored
    own = _of(19, starts)
    at = {
        "the end": starts[-1],
        "amid": starts[5],
        "the beginning": BASE,
        "past the files": directory.files_end,
        "before them": BASE - 1,
        "missing": starts[9],
    }[flushed]
    if flushed == "missing":
        directory.segments[1].path.unlink()
        directory = StoreDirectory(directory.paths.root)
    mark = Watermark("r", True, at, own, is_last)
    heard = _heard(own if is_same else _of(10, starts), mark, unclean=False)
    found = find_witness(directory, heard, 0)
    assert found.is_exact == (is_last and is_same and flushed not in ("amid", "the beginning"))
    assert (found.flushed, found.told_to, found.may_be_cut) == (at, at, False)
    if flushed == "missing":
        directory.close()


@pytest.mark.parametrize("at", range(2, 8))
def test_a_single_byte_that_was_written_since_a_stop_is_seen(
    stored: tuple[StoreDirectory, list[int]], at: int
) -> None:
    """In the first bytes of what would be a record, which are never all zero."""
    directory, starts = stored
    own, end = _of(19, starts), starts[-1]
    heard = _heard(own, Watermark("r", True, end, own, True), unclean=False)
    assert find_witness(directory, heard, 0).is_exact
    with open(directory.segments[-1].path, "r+b") as file:
        file.seek(end - directory.segments[-1].base + at)
        file.write(b"\x01")
    assert not find_witness(directory, heard, 0).is_exact


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("boot", [False, True])
@pytest.mark.parametrize("dispatched", [4, 8])
@pytest.mark.parametrize("newer", [False, True])
def test_after_a_death_what_was_told_reaches_as_far_as_queues_that_follow_the_flush(
    stored: tuple[StoreDirectory, list[int]], follow: bool, boot: bool, dispatched: int, newer: bool
) -> None:
    """The checkpoint may be newer than the watermark by one flush, and is then believed."""
    directory, starts = stored
    known = _of(4, starts)
    own = _of(5, starts) if newer else known
    mark = Watermark("r", follow, starts[6], known)
    found = find_witness(directory, _heard(own, mark, starts[5], boot=boot), starts[dispatched])
    told_to = starts[8] if follow and dispatched == 8 else starts[6]
    assert found == Witness(own, starts[6], told_to, False, boot, True)


@pytest.mark.parametrize("harm", ["time", "place", "between", "logics", "same"])
def test_a_checkpoint_that_names_no_record_of_its_time_is_not_believed(
    stored: tuple[StoreDirectory, list[int]], harm: str
) -> None:
    directory, starts = stored
    known, at, ms = _of(4, starts), starts[5], STORED_MS + 5
    own = {
        # no record that is confirmed is newer than the checkpoint
        "time": Checkpoint(ms, ms + 1, 0, 0, at),
        "place": Checkpoint(ms, ms, 0, 0, starts[3]),
        "between": Checkpoint(ms, ms, 0, 0, at + 1),
        # a later time of the record that is known already
        "same": Checkpoint(ms, ms - 1, 0, 0, starts[4]),
        "logics": Checkpoint(ms + 1, ms + 1, 0, 0, at),
    }[harm]
    found = find_witness(directory, _heard(own, Watermark("r", True, starts[6], known)), 0)
    assert found.checkpoint == (Checkpoint(*_lower(own, known)) if harm == "place" else known)


def _lower(one: Checkpoint, other: Checkpoint) -> list[int]:
    names = Checkpoint.__struct_fields__
    return [min(getattr(one, name), getattr(other, name)) for name in names]


@pytest.mark.parametrize(
    ("flushed", "confirmed", "listed", "is_lower"),
    [
        (6, 4, 5, False),
        # neither is written before the watermark says the same
        (4, 5, 0, True),
        (5, 5, 0, True),
        (5, 4, 5, False),
        (5, 4, 6, True),
    ],
)
def test_a_watermark_that_says_less_than_what_comes_after_it_is_an_older_copy(
    stored: tuple[StoreDirectory, list[int]],
    flushed: int,
    confirmed: int,
    listed: int,
    is_lower: bool,
) -> None:
    directory, starts = stored
    known, own = _of(3, starts), _of(confirmed, starts)
    heard = _heard(
        own, Watermark("r", False, starts[flushed], known), listed and starts[listed], boot=True
    )
    found = find_witness(directory, heard, 0)
    most = max(starts[flushed], starts[listed])
    if is_lower:
        assert found == Witness(known, most, most, False, False, True)
    else:
        assert found == Witness(own, starts[flushed], starts[flushed], False, True, True)


def test_the_record_of_a_checkpoint_is_whole_in_the_log_and_no_newer(
    stored: tuple[StoreDirectory, list[int]],
) -> None:
    directory, starts = stored
    for number, at in enumerate(starts[:-1]):
        ms = STORED_MS + number
        assert first_timestamp_ms(directory, at) == ms
        for physic, logics in itertools.product((ms - 1, ms, ms + 1), repeat=2):
            wanted = at if min(physic, logics) >= ms else 0
            assert confirmed_record(directory, Checkpoint(physic, logics, 0, 0, at)) == wanted
    for at in (
        0,
        BASE - 1,
        starts[3] + 1,
        starts[-1],
        directory.files_end,
        directory.files_end + 1,
    ):
        assert confirmed_record(directory, Checkpoint(1 << 60, 1 << 60, 0, 0, at)) == 0
    directory.segments[1].path.unlink()
    with StoreDirectory(directory.paths.root) as rest:
        assert confirmed_record(rest, _of(9, starts)) == 0
        assert confirmed_record(rest, _of(17, starts)) == starts[17]
    with open(directory.segments[0].path, "r+b") as file:
        file.seek(starts[3] - BASE + 120)
        file.write(b"\xff")
    assert first_timestamp_ms(directory, starts[3]) == 0


def test_to_know_a_record_s_time_no_more_is_read_than_the_record(
    stored: tuple[StoreDirectory, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment has a gigabyte; and no record begins where its four bytes of size do not fit."""
    directory, starts = stored
    asked, read = list[int](), StoreDirectory.read_log

    def note(store: StoreDirectory, position: int, size: int) -> bytes:
        asked.append(size)
        return read(store, position, size)

    monkeypatch.setattr(StoreDirectory, "read_log", note)
    for number in range(7):
        assert first_timestamp_ms(directory, starts[number]) == STORED_MS + number
    assert asked == [4, starts[1] - starts[0]] * 7
    for segment in directory.segments:
        for left in range(1, 5):
            assert first_timestamp_ms(directory, segment.end - left) == 0


@pytest.mark.parametrize(
    ("flushed", "listed", "is_older"),
    [(0, 0, False), (0, 1, False), (0, 2, True), (5, 5, False), (5, 6, True)],
)
def test_a_list_of_what_comes_right_after_what_was_flushed_is_newer_than_the_watermark(
    stored: tuple[StoreDirectory, list[int]], flushed: int, listed: int, is_older: bool
) -> None:
    heard = _heard(Checkpoint(), Watermark("r", False, flushed), listed, boot=True)
    most = listed if is_older else flushed
    wanted = Witness(Checkpoint(), most, most, may_be_torn=not is_older, may_be_cut=True)
    assert find_witness(stored[0], heard, 77) == wanted


@pytest.mark.parametrize("by", ["own", "another", ""], ids=["own", "another's", "none"])
@pytest.mark.parametrize("pid", ["own", "another", ""], ids=["own", "another's", "none"])
def test_the_files_say_whose_they_are(
    stored: tuple[StoreDirectory, list[int]], make_run: Callable[..., Run], by: str, pid: str
) -> None:
    directory, _ = stored
    paths = directory.paths
    run = make_run(Config(store_path_root_dir=str(paths.root)))
    mark = Watermark(run.run_id if by == "own" else "f" * len(run.run_id), True, 7)
    if by:
        paths.watermark.parent.mkdir(exist_ok=True)
        paths.watermark.write_bytes(encode_watermark(mark))
    if pid:
        paths.abort.write_text(str(run.supervisor_pid + (pid != "own")))
    said = directory.checkpoint(), mark if by else None, 0, False, bool(pid)
    assert hear(directory, None) == (*said, False, False, False)
    assert hear(directory, run) == (*said, by == "own", pid == "own", False)
    replaced = hear(directory, replace(run, boot_id="of another"))
    assert replaced == (*said, by == "own", pid == "own", True)
    replace_known_queues(paths.known_queues, {WATERMARK: QueueEnd(9, 0)})
    assert hear(directory, None)[2:4] == (9, True)
    with open(paths.known_queues, "a") as file:
        file.write("orders/0 12")
    assert not hear(directory, None).has_whole_list
