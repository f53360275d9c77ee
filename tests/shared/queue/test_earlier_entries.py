"""Where records stood before a start: entries are witnesses, as far as the log agrees with them."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import segment_name
from penstock.shared.loops.forms import ROW
from penstock.shared.queue import earlier_entries
from penstock.shared.queue.earlier_entries import (
    EarlierEntries,
    EarlierFiles,
    EarlierQueue,
    Place,
    Queue,
    load_earlier_entries,
    save_earlier_entries,
)
from penstock.shared.queue.snapshot import QueueFiles

SIZE = 100
A, B, C = (b"t", 0), (b"t", 1), (b"t", 2)


def _entry(position: int, size: int = SIZE) -> bytes:
    return ENTRY.pack(position, size, 0)


def _earlier(names: dict[int, Place | None], **queues: list[int]) -> EarlierEntries:
    """Queues a and b begin at slot 5; `names` says what the record at a log offset names."""
    keys = {"a": A, "b": B}
    held = [
        EarlierQueue(*keys[name], 5, b"".join(map(_entry, positions)))
        for name, positions in queues.items()
    ]
    return EarlierEntries(
        held, lambda position, size: names.get(position) if size == SIZE else None
    )


ODD, EVEN = [100, 300, 500, 700], [0, 200, 400, 600]
WHOLE = {
    at: Place(A, 5 + at // 200) if at % 200 else Place(B, 5 + at // 200)
    for at in range(0, 800, 100)
}


@pytest.mark.parametrize(
    ("at", "claimed", "place"),
    [
        (300, Place(A, 6), Place(A, 6)),
        # another whole record has the entry there, and names that slot, too
        (300, Place(B, 6), Place(A, 6)),
        (200, Place(A, 6), Place(B, 6)),
        (300, Place(A, 7), Place(A, 6)),
        # no entry is there, but one elsewhere leads to it
        (700, Place(B, 9), Place(A, 8)),
        (300, Place(C, 6), Place(A, 6)),
        (300, Place(A, 1 << 40), Place(A, 6)),
        # it is newer than all entries
        (900, Place(B, 9), Place(B, 9)),
        (900, Place(C, 0), Place(C, 0)),
        # it is newer, and names the slot of another
        (900, Place(A, 6), None),
        # the last slot may lead to it in the place of one that is lost
        (700, Place(A, 9), Place(A, 9)),
    ],
)
def test_a_record_has_the_place_where_it_stood(
    at: int, claimed: Place, place: Place | None
) -> None:
    earlier = _earlier(WHOLE | {at: claimed}, a=ODD, b=EVEN)
    assert earlier.place(*claimed, _entry(at)) == place
    assert earlier.end == 701


def test_entries_with_which_the_log_does_not_agree_are_no_witnesses() -> None:
    """Files changed places, or are of another store; and messages that are lost have stand-ins."""
    mixed_up = _earlier(WHOLE, b=ODD, a=EVEN[:3])
    strange = _earlier(dict.fromkeys(range(0, 800, 100)), a=ODD, b=EVEN)
    lost = _earlier(WHOLE | {100: None}, a=[300, *ODD[1:]], b=EVEN)
    for earlier in (mixed_up, strange, lost):
        for at, claimed in WHOLE.items():
            assert earlier.place(*claimed, _entry(at)) == claimed
    assert EarlierEntries((), lambda position, size: None).place(A, 3, _entry(7)) == Place(A, 3)


def test_a_file_that_stands_in_another_queue_takes_no_record_there() -> None:
    """Its first entry stands next to one that leads to its own; but its next goes on elsewhere."""
    names = WHOLE | {800: Place(B, 9), 900: Place(B, 10)}
    mixed = _earlier(names, a=[*ODD, 800, 900], b=EVEN)
    assert mixed.place(B, 9, _entry(800)) == Place(B, 9)
    bent = _earlier(WHOLE | {800: Place(B, 9), 900: Place(A, 10)}, a=[*ODD, 800, 900], b=EVEN)
    assert bent.place(B, 9, _entry(800)) == Place(A, 9)


def test_an_entry_is_a_record_s_own_only_if_its_size_and_its_neighbours_say_so() -> None:
    whole = _earlier(WHOLE | {300: Place(B, 6)}, a=ODD, b=EVEN)
    assert whole.place(B, 6, _entry(300)) == Place(A, 6)
    assert whole.place(B, 6, _entry(300, size=50)) is None, "another record was there"
    strange = _earlier({200: Place(B, 6), 300: Place(B, 6)}, a=ODD, b=EVEN)
    assert strange.place(B, 6, _entry(300)) is None, "nothing says whose file it is"


def test_a_record_that_names_another_slot_of_its_queue_has_its_own_though_others_do_too() -> None:
    names = WHOLE | {300: Place(A, 8), 500: Place(A, 9)}
    assert _earlier(names, a=ODD, b=EVEN).place(A, 8, _entry(300)) == Place(A, 6)


def test_an_entry_that_leads_nowhere_is_not_looked_for_in_the_log() -> None:
    held = [EarlierQueue(*A, 5, _entry(100) + _entry(300) + ENTRY.pack(500, 0, 0))]

    def named(position: int, size: int) -> Place | None:
        assert size > 0
        return Place(A, 5 + position // 200)

    assert EarlierEntries(held, named).place(B, 6, _entry(300)) == Place(A, 6)


def test_what_is_kept_is_read_again_unless_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "earlier-entries"
    assert load_earlier_entries(file) == []
    save_earlier_entries(file, [EarlierQueue(*A, 5, b""), EarlierQueue(b"%LMQ%x", 0, 0, _entry(1))])
    assert not file.exists(), "a light queue leads to others' records"
    queues = [EarlierQueue(*A, 5, _entry(100)), EarlierQueue(*B, 0, _entry(0) * 3)]
    monkeypatch.setattr(earlier_entries, "MOST_BYTES", 80)
    save_earlier_entries(file, [EarlierQueue(*C, 5, b""), *queues])
    assert load_earlier_entries(file) == queues
    file.unlink()
    monkeypatch.setattr(earlier_entries, "MOST_BYTES", 79)
    save_earlier_entries(file, queues)
    save_earlier_entries(tmp_path / "gone" / "file", queues[:1])
    assert list(tmp_path.iterdir()) == [], "a start does without"


def test_of_what_memory_has_no_room_for_no_part_is_kept(tmp_path: Path) -> None:
    """The limit on file sizes stands for it."""
    file = tmp_path / "earlier-entries"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        save_earlier_entries(file, [EarlierQueue(*A, 5, _entry(100))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load_earlier_entries(file) == [] and not file.exists()


ROOM = 5  # entries in a file
OTHER = b"u", 0


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[[Queue, int, list[int]], QueueFiles]]:
    """The files of a queue, from a slot on, of entries that lead to these log offsets."""
    cache = FileCache()

    def make(queue: Queue, first: int, positions: list[int]) -> QueueFiles:
        directory = tmp_path / queue[0].decode() / str(queue[1])
        directory.mkdir(parents=True)
        for at in range(0, len(positions), ROOM):
            raw = b"".join(map(_entry, positions[at : at + ROOM]))
            name = segment_name((first + at) * ENTRY.size)
            (directory / name).write_bytes(raw.ljust(ROOM * ENTRY.size, b"\0"))
        return QueueFiles(cache, directory, queue[0].decode(), queue[1], 0)

    yield make
    cache.close()


def test_files_are_asked_whether_a_queue_had_these_entries(
    files: Callable[..., QueueFiles],
) -> None:
    held = {A: (5, range(100, 1300, 100)), B: (0, range(50, 650, 100)), OTHER: (5, range(7, 307))}
    made = {queue: files(queue, first, list(places)) for queue, (first, places) in held.items()}
    had = {
        (queue, first + number): _entry(place)
        for queue, (first, places) in held.items()
        for number, place in enumerate(places)
    }

    def check(earlier: EarlierFiles) -> None:
        for claimed in (A, B, OTHER, C):
            for queue, slot, count in itertools.product((A, B, OTHER), range(3, 20), (1, 2, 7)):
                span = range(slot, slot + count)
                raw = b"".join(had.get((queue, each), _entry(9999)) for each in span)
                has = {
                    other: all(had.get((other, each)) == had.get((queue, each), 0) for each in span)
                    for other in held
                }
                assert earlier.has(claimed, slot, raw) == has.get(claimed, False)
                elsewhere = [has[each] for each in (A, B) if each != claimed]
                wanted = any(elsewhere) if claimed[0] == A[0] else False
                assert earlier.has_elsewhere(claimed, slot, raw) == wanted

    check(EarlierFiles(made.values(), lambda position, size: None))
    # a file that is missing in the midst says nothing, and the others do
    made[A].segments[1].path.unlink()
    for slot in range(10, 15):
        del had[A, slot]
    cache = FileCache()
    made[A] = QueueFiles(cache, made[A].directory, made[A].topic, made[A].queue_id, 0)
    check(EarlierFiles(made.values(), lambda position, size: None))
    # nor does one that cannot be read
    cache.close()
    queue = QueueFiles(cache, made[OTHER].directory, made[OTHER].topic, made[OTHER].queue_id, 0)
    assert queue.max_offset == 305, "which is in the last file"
    for segment in queue.segments[:-1]:
        segment.path.unlink()
        segment.path.mkdir()
    unreadable = EarlierFiles([queue], lambda position, size: None)
    assert not unreadable.has(OTHER, 5, _entry(7))
    assert unreadable.has(OTHER, 304, _entry(306))
    with pytest.raises(IsADirectoryError):
        queue.raw_entries(5, 6)
    cache.close()


def test_files_that_have_known_nothing_better_for_long_are_asked_no_more(
    files: Callable[..., QueueFiles],
) -> None:
    names = WHOLE | {300: Place(B, 6)}
    earlier = EarlierFiles(
        [files(A, 5, ODD), files(B, 5, EVEN)],
        lambda position, size: names.get(position) if size == SIZE else None,
    )
    moved, right = ROW.pack(1, 6, _entry(300)), ROW.pack(0, 7, _entry(500))
    found = [(Place(A, 6), _entry(300))], [300]
    for _ in range(2):  # what is found begins the count again
        for _ in range(7):
            assert earlier.placed(right, [A, B], 500, 600) == ([], [])
        assert earlier.placed(moved, [A, B], 300, 400) == found
    for _ in range(8):
        assert earlier.placed(right, [A, B], 500, 600) == ([], [])
    assert earlier.placed(moved, [A, B], 300, 400) == ([], [])
