"""The order of steps in which a topic gets another number of queues, interrupted anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.messaging.topic_scaling import Step, next_step

counts = st.integers(1, 20)


@given(counts, counts, st.lists(st.tuples(counts, st.integers(0, 3)), min_size=1, max_size=5))
def test_nobody_ever_writes_what_is_not_read_and_each_wish_is_reached(
    read: int, write: int, wishes: list[tuple[int, int]]
) -> None:
    """A wish is given up after some steps for the next one; the last is followed to its end."""
    now = TopicConfig(max(read, write), write)
    for number, (wanted, patience) in enumerate(wishes):
        left = patience if number < len(wishes) - 1 else 4
        while left and (step := next_step(now, wanted)) is not None:
            reads = step in (Step.READ_MORE, Step.READ_FEWER)
            name = "read_queues" if reads else "write_queues"
            now = structs.replace(now, **{name: wanted})
            assert now.read_queues >= now.write_queues
            left -= 1
    assert (now.read_queues, now.write_queues) == (wishes[-1][0], wishes[-1][0])
