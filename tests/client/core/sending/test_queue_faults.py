"""Which queues rest, and for how long: RocketMQ's table, and a plain model of its fault items."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.sending.queue_faults import EXCEPTION_MS, QueueFaults, rest_ms

# [MQFaultStrategy of RocketMQ 5.3]
TABLE = [(50, 0), (100, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10000), (15000, 30000)]


@given(st.integers(0, 40_000) | st.sampled_from([each for each, _ in TABLE]))
def test_the_largest_latency_that_is_reached_decides(latency_ms: int) -> None:
    reached = [rest for least, rest in TABLE if latency_ms >= least]
    assert rest_ms(latency_ms) == (reached[-1] if reached else 0)


def test_a_refusal_counts_as_ten_seconds_and_rests_for_ten() -> None:
    assert (EXCEPTION_MS, rest_ms(EXCEPTION_MS)) == (10_000, 10_000)


QUEUES = [(topic, queue) for topic in "ab" for queue in range(3)]
EVENTS = st.tuples(
    st.sampled_from(QUEUES),
    st.sampled_from([0, 99, 600, 2000, EXCEPTION_MS, 20_000]),
    st.sampled_from([0, 1, 500, 2000, 9000, 40_000]),
)


@given(st.lists(EVENTS, max_size=40))
def test_queues_rest_as_long_as_their_longest_fault_says(
    events: list[tuple[tuple[str, int], int, int]],
) -> None:
    """A FaultItem has one time from which on it is available; no later fault makes it sooner."""
    faults, model, now_ms = QueueFaults(), dict.fromkeys(QUEUES, 0), 1000
    resting: dict[str, frozenset[int]] = {}
    for (topic, queue), latency_ms, passed_ms in events:
        faults.note(topic, (queue,), latency_ms, now_ms)
        if rest_ms(latency_ms):
            until_ms = now_ms + rest_ms(latency_ms)
            model[topic, queue] = max(model[topic, queue], until_ms)
        now_ms += passed_ms
        resting.update(faults.changes(now_ms))
        for topic in "ab":
            expected = {number for name, number in QUEUES if name == topic}
            expected = {number for number in expected if model[topic, number] > now_ms}
            assert resting.get(topic, frozenset()) == expected
        assert list(faults.changes(now_ms)) == [], "told once"
