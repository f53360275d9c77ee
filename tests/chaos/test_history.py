"""The history's check: silent about a right store, and it says what is wrong with a wrong one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.chaos.history import (
    Sent,
    check_acknowledged,
    check_order,
    count_lost,
    count_twice,
    digest,
)


def _stored(counts: list[int]) -> dict[int, list[bytes]]:
    """Messages of two senders in turn, in each queue."""
    return {
        queue: [b"%s/%d/%d/x" % ((b"a", b"b")[n % 2], queue, n // 2) for n in range(count)]
        for queue, count in enumerate(counts)
    }


def _all(stored: dict[int, list[bytes]]) -> list[Sent]:
    return [
        Sent(queue, offset, digest(body), 0)
        for queue, bodies in stored.items()
        for offset, body in enumerate(bodies)
    ]


@given(counts=st.lists(st.integers(0, 8), min_size=1, max_size=4), data=st.data())
def test_every_single_change_of_a_store_is_seen(counts: list[int], data: st.DataObject) -> None:
    stored = _stored(counts)
    acked = _all(stored)
    assert check_order(stored) == check_acknowledged(acked, stored, "lost") == []
    if not acked:
        return
    queue = data.draw(st.sampled_from([q for q, bodies in stored.items() if bodies]))
    bodies = stored[queue]
    at = data.draw(st.integers(0, len(bodies) - 1))
    what = data.draw(st.sampled_from(["lost", "twice", "changed", "swapped"]))
    if what == "lost":
        del bodies[at]
    elif what == "twice":
        bodies.append(bodies[at])
    elif what == "changed":
        bodies[at] += b"!"
    elif at + 2 < len(bodies):
        bodies[at], bodies[at + 2] = bodies[at + 2], bodies[at]
    else:
        return
    found = check_order(stored) + check_acknowledged(acked, stored, "lost")
    assert len(found) >= 1 and all(isinstance(each, str) for each in found)


def test_lost_and_repeated_messages_are_counted_from_what_is_said() -> None:
    stored = _stored([6, 3])
    acked = _all(stored)
    assert count_lost([]) == count_twice([]) == 0
    stored[0].append(stored[0][1])
    stored[0].append(stored[0][2])
    del stored[1][1:]
    said = check_order(stored) + check_acknowledged(acked, stored, "which were acknowledged")
    assert (count_twice(said), count_lost(said)) == (2, 2)
    # whatever a round puts before or after it
    assert count_lost([f"flush 3: {each}" for each in said]) == 2
    stored[0][0], stored[0][2] = stored[0][2], stored[0][0]
    assert "out of order" in " ".join(check_order(stored))
