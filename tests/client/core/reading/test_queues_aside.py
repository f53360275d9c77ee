"""Queues that cannot be read: left out for a while, and told once each time."""

from __future__ import annotations

import pytest

from penstock.client.core.reading.queues_aside import ASIDE_MS, QueuesAside
from penstock.shared.errors import QueueUnreadable, StoreDamaged


def test_a_queue_is_left_out_for_a_while_and_told_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    aside = QueuesAside("orders")
    assert not aside and aside.others([0, 1, 2], 0) == {0, 1, 2}
    aside.raise_next()
    aside.put(1, 100, ("what", "value", "hint"), 7)
    damaged = StoreDamaged("damaged", "file", "mend it")
    damaged.queue_offset = 9
    aside.put_error(2, 200, damaged)
    assert aside and len(caplog.records) == 2
    assert aside.wait_ms(300) == ASIDE_MS - 200 and aside.wait_ms(2 * ASIDE_MS) == 0
    assert aside.others([0, 1, 2], ASIDE_MS + 99) == {0}
    assert aside.others([0, 1, 2], ASIDE_MS + 100) == {0, 1}
    for what, offset in (("what", 7), ("damaged", 9)):
        with pytest.raises(QueueUnreadable, match=what) as raised:
            aside.raise_next()
        assert raised.value.queue_offset == offset
    aside.raise_next()
    assert aside, "it is left out all the same"
    assert aside.others([0, 1, 2], ASIDE_MS + 200) == {0, 1, 2} and not aside


def test_a_queue_that_is_read_no_more_is_neither_told_nor_waited_for() -> None:
    aside = QueuesAside("orders")
    for queue in (1, 2):
        aside.put(queue, 0, ("what", queue, "hint"))
    aside.forget(1)
    aside.forget(3)
    assert aside.others([1, 2], 0) == {1}
    with pytest.raises(QueueUnreadable) as raised:
        aside.raise_next()
    assert raised.value.value == 2
    aside.raise_next()
    aside.forget(2)
    assert not aside


def test_a_queue_that_cannot_be_read_again_waits_again_and_has_one_error() -> None:
    aside = QueuesAside("orders")
    for now_ms, what in ((0, "first"), (1000, "second")):
        aside.put(1, now_ms, (what, 1, "hint"))
    assert aside.wait_ms(1000) == ASIDE_MS
    with pytest.raises(QueueUnreadable, match="second"):
        aside.raise_next()
    aside.raise_next()
