"""Entries with the ones beside them: one that has the place of a neighbour is of a lost message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.queue.window import Window

# Places of entries; in a queue with one lost message at most two have the same one.
places = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def _entry(place: int) -> bytes:
    return ENTRY.pack(1000 * place, 100, 0)


@given(places, st.data())
def test_a_window_ends_before_the_first_entry_that_has_its_neighbour_s_place(
    queue: list[int], data: st.DataObject
) -> None:
    """The same is said of a whole queue and of each part of it, whose neighbours are beside it."""
    start = data.draw(st.integers(0, len(queue) - 1))
    stop = data.draw(st.integers(start + 1, len(queue)))
    owner = data.draw(st.booleans())
    entries = [_entry(place) for place in queue]
    # the caller's part: the first entry that has the place of the next one among them
    among = (n for n in range(start, stop - 1) if queue[n] == queue[n + 1])
    count = next(among, stop) - start
    window = Window(
        b"".join(entries[start:stop]),
        entries[start - 1] if start else b"",
        entries[stop] if stop < len(queue) else b"",
    )
    whole = count
    if stop < len(queue) and count == stop - start and queue[stop - 1] == queue[stop]:
        whole -= 1
    if not whole or start and queue[start - 1] == queue[start]:
        whole = int(owner)
    assert window.before_lost(count, lambda at: owner and at == 1000 * queue[start]) == whole


def test_blanks_have_no_place_and_nothing_is_lost_without_neighbours() -> None:
    assert Window(BLANK_ENTRY * 3, BLANK_ENTRY, BLANK_ENTRY).before_lost(3, lambda at: False) == 3
    assert Window(_entry(1), b"", b"").before_lost(1, lambda at: False) == 1
    assert Window(b"", b"", b"").before_lost(0, lambda at: False) == 0
