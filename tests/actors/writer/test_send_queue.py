"""Requests that wait for the writer: how many, and when the oldest is turned away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.actors.writer.callers import FRAME_PARTS, Asked
from penstock.actors.writer.send_queue import (
    BUSY_RETRY_MS,
    MAX_HELD,
    MAX_HELD_BYTES,
    PAGE_CACHE_RETRY_MS,
    SendQueue,
)
from penstock.shared.config import Config

WAIT_MS, BLOCKED_MS = 200, 1000


@pytest.fixture
def queue(make_config: Callable[..., Config]) -> SendQueue:
    return SendQueue(
        make_config(wait_time_in_send_queue_ms=WAIT_MS, os_page_cache_busy_timeout_ms=BLOCKED_MS)
    )


def _parts(size: int) -> Asked:
    return Asked(b"peer", b"", memoryview(bytes(size)), FRAME_PARTS)


def test_the_oldest_comes_first_and_what_is_taken_makes_room(queue: SendQueue) -> None:
    first, second = _parts(MAX_HELD_BYTES - 8), _parts(1)
    queue.put(first, 0)
    assert queue and queue.takes
    queue.put(second, 1)
    assert not queue.takes, "the bytes"
    assert queue.next() is first and queue.take() is first
    assert queue.takes and queue.take() is second and not queue
    for _ in range(MAX_HELD - 1):
        queue.put(second, 2)
    assert queue.takes
    queue.put(second, 2)
    assert not queue.takes, "the number"
    while queue:
        queue.take()
    queue.put(_parts(MAX_HELD_BYTES - _parts(0).size), 3)
    assert not queue.takes, "just as many bytes as may be held"


def test_who_has_waited_too_long_is_turned_away(queue: SendQueue) -> None:
    queue.put(_parts(1), 100)
    assert queue.busy(100 + WAIT_MS) is None
    refused = queue.busy(101 + WAIT_MS)
    assert refused is not None and refused.retry_after_ms == BUSY_RETRY_MS
    assert refused.value == f"{WAIT_MS + 1} ms"


def test_a_disk_is_too_slow_when_it_takes_nothing_for_long_at_a_stretch(queue: SendQueue) -> None:
    queue.note(True, 0)
    queue.note(True, 900)
    queue.put(_parts(1), 1000)
    assert queue.busy(BLOCKED_MS) is None
    refused = queue.busy(BLOCKED_MS + 1)
    assert refused is not None and refused.retry_after_ms == PAGE_CACHE_RETRY_MS
    queue.note(False, 1002)
    assert queue.busy(1003) is None
    queue.note(True, 1100)
    assert queue.busy(1101) is None, "counted from the last time that it took something"


def test_a_disk_that_may_not_take_a_millisecond_is_too_slow_only_where_it_takes_one(
    make_config: Callable[..., Config],
) -> None:
    queue = SendQueue(make_config(os_page_cache_busy_timeout_ms=0))
    queue.put(_parts(1), 1000)
    assert queue.busy(1000) is None
    queue.note(True, 1000)
    assert queue.busy(1000) is None
    assert queue.busy(1001) is not None
