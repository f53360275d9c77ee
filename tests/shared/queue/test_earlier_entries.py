"""Where records stood before a start: entries are witnesses, as far as the log agrees with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.queue import earlier_entries
from penstock.shared.queue.earlier_entries import (
    EarlierEntries,
    EarlierQueue,
    Place,
    load_earlier_entries,
    save_earlier_entries,
)

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


def test_what_is_kept_is_read_again_unless_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "earlier-entries"
    assert load_earlier_entries(file) == []
    save_earlier_entries(file, [EarlierQueue(*A, 5, b""), EarlierQueue(b"%LMQ%x", 0, 0, _entry(1))])
    assert not file.exists(), "a light queue leads to others' records"
    queues = [EarlierQueue(*A, 5, _entry(100)), EarlierQueue(*B, 0, _entry(0) * 3)]
    save_earlier_entries(file, queues)
    assert load_earlier_entries(file) == queues
    file.unlink()
    monkeypatch.setattr(earlier_entries, "MOST_BYTES", 79)
    save_earlier_entries(file, queues)
    save_earlier_entries(tmp_path / "gone" / "file", queues[:1])
    assert list(tmp_path.iterdir()) == [], "a start does without"
