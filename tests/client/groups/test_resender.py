"""Records that are put into the log again, by ordinary code: each has its outcome, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.client import Producer
from penstock.client.groups.resender import Resender
from penstock.shared.clock import SystemClock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record


class Hurried(SystemClock):
    """A clock that goes on by a second each time it is asked, from the first refusal on."""

    resender: Resender | None = None
    _ahead_ms = 0

    def monotonic_ms(self) -> int:
        if self.resender is not None and self.resender._core.trouble is not None:
            self._ahead_ms += 1000
        return super().monotonic_ms() + self._ahead_ms


def test_a_broker_that_takes_nothing_is_not_waited_for_without_a_word(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    """It answers each time, and says why: an operator's command would wait as long as it does."""
    broker = broker_in(tmp_path, max_queues=64)
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 60)
        with pytest.raises(StoreUnavailable):
            for number in range(64):
                producer.create_topic(f"more{number}", 1)
    record = Record("new", b"x", encode_properties({"UNIQ_KEY": "k"}))
    clock = Hurried()
    with (
        Resender(store=broker.store, clock=clock) as resender,
        pytest.raises(StoreUnavailable, match="queues"),
    ):
        clock.resender = resender
        next(resender.send([record], "new", 1))
    with Resender(store=broker.store) as resender:
        again = replace(record, topic="orders")
        assert [*resender.send([again], "orders", 1)] == [(again, None)]
