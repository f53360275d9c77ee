"""The flusher's rounds of queues: how often all of them are brought to the disk, and the index."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.flusher import actor as flushing
from penstock.actors.flusher.actor import QUEUES_AT_ONCE
from penstock.actors.flusher.index_sync import IndexSync
from penstock.actors.reput import Reput
from penstock.shared.formats.checkpoint import decode_checkpoint, encode_checkpoint
from penstock.shared.store.watermark import WATERMARK_MS, load_watermark


@pytest.mark.parametrize(
    ("took_ms", "rest_ms"), [(100, 4_900), (3_000, 27_000), (20_000, 60_000), (90_000, 60_000)]
)
def test_after_a_long_round_the_next_waits_nine_times_as_long_and_at_most_60_s(
    pipeline: Callable[..., Any], work: Callable[..., None], took_ms: int, rest_ms: int
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    for queue_id in range(3 * QUEUES_AT_ONCE):
        broker.append(queue_id=queue_id)
    work(committer, flusher, reput)
    broker.clock.advance(5_000)
    flusher.work()
    broker.clock.advance(took_ms)
    work(flusher)
    covered = broker.positions["dispatched_record"]
    assert decode_checkpoint(broker.paths.checkpoint.read_bytes()).confirm_offset == covered
    broker.append()
    work(committer, flusher, reput)
    # rounds of what has grown by pages go on meanwhile, one a second
    broker.clock.advance(rest_ms - 1_000)
    work(flusher)
    assert decode_checkpoint(broker.paths.checkpoint.read_bytes()).confirm_offset == covered
    broker.clock.advance(1_000)
    work(flusher)
    found = decode_checkpoint(broker.paths.checkpoint.read_bytes())
    assert found.confirm_offset == broker.positions["dispatched_record"] > covered


@pytest.mark.parametrize("has_index", [True, False])
def test_the_index_follows_when_all_queues_are_on_disk_and_at_a_stop_as_a_whole(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    has_index: bool,
) -> None:
    """A round of queues that have grown by pages leaves others out."""
    broker = pipeline(transient_store_pool_enable=False, message_index_enable=has_index)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    synced, sync = [], IndexSync.sync

    def noted(index: IndexSync, dispatched: int, *, whole: bool) -> Generator[None, None, int]:
        synced.append(whole)
        return sync(index, dispatched, whole=whole)

    monkeypatch.setattr(IndexSync, "sync", noted)
    broker.append()
    work(committer, flusher, reput)
    broker.clock.advance(1_000)
    work(flusher)
    assert synced == []
    broker.clock.advance(4_000)
    work(flusher)
    assert synced == [False] * has_index
    broker.stop(flusher)
    assert synced == [False, True] * has_index


def test_a_round_in_which_a_name_may_have_been_lost_is_in_no_checkpoint(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reput meets the error while the flusher syncs the last of its queues."""
    monkeypatch.setattr(flushing, "QUEUES_AT_ONCE", 1000)  # all of the round in one turn
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append()
    work(committer, flusher, reput)
    before, sync = broker.paths.checkpoint.read_bytes(), os.fdatasync

    def lose_a_name(handle: int) -> None:
        sync(handle)
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(broker.paths.consume_queue)):
            broker.positions.initialise("name_error", errno.EIO)

    monkeypatch.setattr(os, "fdatasync", lose_a_name)
    broker.clock.advance(5_000)
    assert flusher.work() == 0
    assert broker.positions["flush_error"] == errno.EIO
    assert broker.paths.checkpoint.read_bytes() == before
    broker.stop(flusher)
    assert broker.paths.checkpoint.read_bytes() == before


def test_what_a_checkpoint_says_lies_below_the_watermark_when_it_is_written(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start that finds them so takes the watermark for an older copy."""
    broker = pipeline(
        transient_store_pool_enable=False,
        flush_disk_type="async",
        flush_commit_log_least_pages=1 << 20,
    )
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(10)
    work(committer, flusher, reput)
    broker.clock.advance(5_000)
    work(flusher)
    marked, write = list[int](), os.pwrite

    def note(handle: int, raw: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{handle}") == str(broker.paths.checkpoint):
            mark = load_watermark(broker.paths.watermark)
            marked.append(mark.flushed if mark is not None else 0)
        return write(handle, raw, at)

    monkeypatch.setattr(os, "pwrite", note)
    broker.positions.initialise("flush_wanted", broker.positions["wrote"])
    flusher.work()
    assert marked and set(marked) == {broker.positions["flushed"]}


def test_a_successor_s_watermark_vouches_for_no_checkpoint_that_nobody_may_have_synced(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Its predecessor died after it wrote the checkpoint, and before the next watermark."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append()
    work(committer, flusher, reput)
    broker.clock.advance(5_000)
    work(flusher)
    broker.crash(flusher)
    known = decode_checkpoint(broker.paths.checkpoint.read_bytes())
    newer = msgspec.structs.replace(known, confirm_offset=known.confirm_offset + 1)
    broker.paths.checkpoint.write_bytes(encode_checkpoint(newer))
    successor = broker.start(Flusher)
    broker.append()
    broker.clock.advance(WATERMARK_MS)
    work(committer, successor)
    mark = load_watermark(broker.paths.watermark)
    assert mark is not None and mark.flushed == broker.positions["flushed"]
    assert mark.checkpoint == known
