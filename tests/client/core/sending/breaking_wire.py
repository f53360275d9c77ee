"""What breaks between a sender and the writer, as rules that several state machines share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule


class BreakingWire(RuleBasedStateMachine):
    """A wire on which time goes by, connections break, and the writer and the power fail."""

    def __init__(self, make_wire: Callable[[], Any]) -> None:
        super().__init__()
        self.wire = make_wire()

    @rule(
        ms=st.sampled_from([1, 10, 60, 150, 600, 11_000]),
        buffers=st.sampled_from([1000, 1000, 0, 1, 2]),
        requests=st.sampled_from([0, 1, 2, 100]),
        flushed=st.booleans(),
        answers=st.sampled_from([0, 1, 2, 100]),
    )
    def time_goes_by(
        self, ms: int, buffers: int, requests: int, flushed: bool, answers: int
    ) -> None:
        """Some of what is under way arrives."""
        self.wire.now_ms += ms
        self.wire.pump(buffers)
        if self.wire.now is not None:
            self.wire.to_writer(self.wire.now, requests)
        if flushed:
            self.wire.writer.flush()
        self.wire.to_producer(answers)
        self.hear()

    def hear(self) -> None:
        """For senders whose outcomes have to be asked for."""

    @precondition(lambda self: self.wire.old)
    @rule(count=st.sampled_from([1, 2, 100]), which=st.integers(0, 5))
    def a_broken_connection_still_delivers(self, count: int, which: int) -> None:
        self.wire.to_writer(self.wire.old[which % len(self.wire.old)], count)

    @rule(arrived=st.sampled_from([0, 1, 100]))
    def the_connection_breaks(self, arrived: int) -> None:
        self.wire.cut(arrived)

    @rule()
    def there_is_a_connection_again(self) -> None:
        self.wire.connect()

    @rule()
    def the_writer_is_killed(self) -> None:
        """The connections of a dead process deliver nothing."""
        self.wire.cut(0)
        self.wire.old.clear()
        self.wire.writer.begin()

    @rule(survivors=st.integers(0, 5))
    def the_power_fails(self, survivors: int) -> None:
        self.wire.cut(0)
        self.wire.old.clear()
        self.wire.writer.lose_power(survivors)

    @rule()
    def the_disk_is_full_for_a_moment(self) -> None:
        self.wire.writer.refuse_next = True

    @rule()
    def the_broker_is_busy_for_a_moment(self) -> None:
        self.wire.writer.busy_next = True
