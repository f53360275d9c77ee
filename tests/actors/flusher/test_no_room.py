"""A full disk that takes nothing new is no failed flush: the flusher goes on, and tries again."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.flusher.actor import QUEUES_AT_ONCE
from penstock.actors.reput import Reput
from penstock.shared.formats.checkpoint import decode_checkpoint
from penstock.shared.process.doorbells import TICK_MS
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.store.watermark import WATERMARK_MS, load_watermark


@contextmanager
def no_room() -> Iterator[None]:
    """Files do not grow, nor are they written to beyond their first bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _marked(broker: Any) -> int:
    mark = load_watermark(broker.paths.watermark)
    assert mark is not None
    return mark.flushed


def _confirmed(broker: Any) -> int:
    return decode_checkpoint(broker.paths.checkpoint.read_bytes()).confirm_offset


def test_no_room_for_a_new_queue_s_name_is_no_failed_flush(
    pipeline: Callable[..., Any], work: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is flushed on; watermark and checkpoint follow soon after there is room. Of all tries
    until then the first is reported."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(10)
    work(committer, flusher, reput)
    for _ in range(2):
        marked, confirmed = _marked(broker), _confirmed(broker)
        with no_room():
            for _ in range(3):
                broker.clock.advance(5000)
                broker.append()
                work(committer, flusher, reput)
                assert flusher.idle_ms() == TICK_MS
        assert capsys.readouterr().err.count("there is no room for a checkpoint") == 1
        assert broker.positions["flush_error"] == 0
        assert broker.positions["flushed"] == broker.positions["wrote"]
        broker.clock.advance(RETRY_MS - 1)
        work(flusher)
        assert (_marked(broker), _confirmed(broker)) == (marked, confirmed)
        broker.clock.advance(1)
        work(flusher)
        assert _marked(broker) == broker.positions["flushed"] > marked
        broker.clock.advance(5000)
        work(flusher)
        assert _confirmed(broker) > confirmed


def test_a_round_that_was_under_way_begins_again(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    for queue_id in range(3 * QUEUES_AT_ONCE):
        broker.append(queue_id=queue_id)
    work(committer, flusher, reput)
    broker.clock.advance(5000)
    assert flusher.work() > 0, "the round has only begun"
    broker.append()
    work(committer)
    broker.clock.advance(WATERMARK_MS)
    with no_room():
        flusher.work()
    work(flusher)
    assert _confirmed(broker) == 0
    broker.clock.advance(5000)
    work(flusher)
    assert _confirmed(broker) > 0
