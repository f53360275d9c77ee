"""Whether a queue is young: its first message is there, and near to the log's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.formats.record import Record, encode_record
from penstock.shared.queue import young
from penstock.shared.queue.young import is_young
from tests.shared.queue.conftest import Store


@pytest.mark.parametrize(
    ("first", "end", "wrote", "is_one"),
    [
        (0, 3, 5000, True),
        (0, 1, 5000, True),
        (0, 3, 5001, False),
        (0, 0, 5000, False),
        (1, 3, 5000, False),
    ],
)
def test_a_queue_is_young_while_its_first_message_is_there_and_near(
    open_store: Callable[..., Store],
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    end: int,
    wrote: int,
    is_one: bool,
) -> None:
    records = [make_record(queue_id=number, body=bytes(100)) for number in (1, 0, 0, 0)]
    store = open_store(records)
    store.count(0, "orders", 0, first, end)
    position = len(encode_record(records[0]))
    store.positions.initialise("wrote", wrote)
    monkeypatch.setattr(young, "_NEAR_BYTES", 5000 - position)
    assert is_young(store.reader, store.positions, 0) == is_one


def test_what_is_near_is_40_percent_of_the_machine_s_memory() -> None:
    """As with RocketMQ's accessMessageInMemoryMaxRatio."""
    total = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    assert abs(young._NEAR_BYTES / (int(total) * 1024) - 0.4) < 0.01
