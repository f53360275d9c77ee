"""What waits for the writer learns where it is: a message at a time, and a batch as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.gateway.waiting import Plain, Send, Waiting, places_of
from penstock.shared.loops.active import message_ids
from penstock.shared.wire.messages import Appended, StoredRun

NOBODY = cast(Any, None)
HOST = bytes(8)


def single(size: int) -> Waiting:
    return Plain("t", 0, bytes(size), "", NOBODY, 1, False, 0)


def batch(sizes: Sequence[int]) -> Waiting:
    return Send("t", 1, bytes(sum(sizes)), sizes, True, "", NOBODY, 1)


requests = st.builds(single, st.integers(1, 9)) | st.builds(
    batch, st.lists(st.integers(1, 9), min_size=1, max_size=6)
)


@given(st.lists(requests, max_size=6), st.data())
def test_each_record_is_where_its_run_says(frame: list[Waiting], data: st.DataObject) -> None:
    """A run may begin at any record, as in a frame that was sent again, and begins at each batch
    and after it."""
    runs: list[StoredRun] = []
    expected: list[list[tuple[int, int]]] = []
    number = offset = position = 0
    after_batch = True
    for each in frame:
        places = []
        for at, size in enumerate(each.sizes):
            must = at == 0 and (each.is_batch or after_batch)
            if must or data.draw(st.booleans()):
                offset, position = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 999))
                runs.append(StoredRun(number, offset, position))
            places.append((offset, position))
            number, offset, position = number + 1, offset + 1, position + size
        after_batch = each.is_batch
        expected.append(places)
    found = list(places_of(Appended(1, 1, 1, tuple(runs), 0, HOST), frame))
    assert [first for *first, _ in found] == [list(each[0]) for each in expected]
    for (_, position, placed), request, places in zip(found, frame, expected, strict=True):
        pieces = placed or [(position, request.sizes)]
        ids = ",".join(message_ids("A", at, list(sizes)) for at, sizes in pieces)
        assert ids == ",".join(f"A{place:016X}" for _, place in places)
        assert bool(placed) == request.is_batch
