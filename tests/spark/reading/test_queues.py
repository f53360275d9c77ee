"""How large a queue's messages are, by its entries."""

from __future__ import annotations

from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.spark.reading.views import StoreView
from tests.spark.conftest import StoreBuilder


def test_a_message_that_was_lost_has_no_bytes(store: StoreBuilder) -> None:
    first = store.put(body=bytes(100))
    store.put_entry("flights", 0, 0, BLANK_SIZE)
    store.put(body=bytes(100))
    with StoreView(store.root) as view:
        (queue,) = view.queues(lambda _: True)
        size = store.position // 2
        assert first.physical_offset == 0
        assert queue.estimate_bytes(0, 3) == 2 * size
        assert queue.end_within(0, 3, size - 1) == 0
        assert queue.end_within(0, 3, size) == 2
        assert queue.end_within(0, 3, 2 * size) == 3
