"""What a start after a crash reads does not depend on how much is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.bench.stores.sparse_store import make_sparse_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.config import Config
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.index.directory import index_geometry
from penstock.shared.layout import PAGE_BYTES, StorePaths, segment_name
from penstock.shared.queue.known_queues import QueueEnd, replace_known_queues
from penstock.shared.recovery.find_log_end import (
    Bounds,
    LogEnd,
    cut_unfinished_block,
    find_log_end,
)
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.recovery.witness import Witness
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

QUEUES = 3


@pytest.fixture
def crashed(
    make_config: Callable[..., Config], tmp_path: Path
) -> Callable[[int], tuple[StorePaths, Config]]:
    """A store of this many segments, whose checkpoint names its last record, and with `abort`."""

    def make(segments: int) -> tuple[StorePaths, Config]:
        root = tmp_path / str(segments)
        config = msgspec.structs.replace(make_config(), store_path_root_dir=str(root))
        make_sparse_store(root, config, segments, QUEUES, lambda done, total: None)
        paths = StorePaths(root)
        with StoreDirectory(root) as store:
            records = [step for step in store.scan_log() if step[1] is Kind.RECORD]
            position, timestamp_ms = records[-1][0], store_timestamp_ms(records[-1][3], 0)
        page = encode_checkpoint(Checkpoint(timestamp_ms, timestamp_ms, 0, 0, position))
        paths.checkpoint.write_bytes(page)
        paths.abort.write_text("0")
        return paths, config

    return make


def test_a_start_reads_as_much_of_forty_segments_as_of_one(
    crashed: Callable[[int], tuple[StorePaths, Config]],
) -> None:
    def start(segments: int) -> Recovered:
        paths, config = crashed(segments)
        with StoreSurvey(paths, config) as survey:
            return recover_store(survey, None)

    small, large = start(1), start(40)
    assert large.log_end > 20 * small.log_end
    assert (small.mode, small.messages) == (large.mode, large.messages) == ("unclean", 1)
    assert small.read_files == 1 + QUEUES + 1  # log, queues, checkpoint
    # no list says where queues end, so the segments of their last messages are looked into
    assert large.read_files == QUEUES + QUEUES + 1
    assert abs(small.read_bytes - large.read_bytes) < PAGE_BYTES


def test_a_start_reads_of_the_log_nothing_for_queues_that_are_as_their_list_says(
    crashed: Callable[[int], tuple[StorePaths, Config]],
) -> None:
    paths, config = crashed(40)
    with StoreDirectory(paths.root) as store:
        ends = {
            f"{queue.topic}/{queue.queue_id}": QueueEnd(
                queue.max_offset, queue.log_offset(queue.max_offset - 1)
            )
            for queue in store.queues()
        }
    replace_known_queues(paths.known_queues, ends)
    with StoreSurvey(paths, config) as survey:
        recovered = recover_store(survey, None)
    assert recovered.read_files == 1 + QUEUES + 1
    assert 0 < recovered.seconds < 600, "it is a duration, and no time"


def test_without_a_checkpoint_all_is_read(
    crashed: Callable[[int], tuple[StorePaths, Config]],
) -> None:
    """So the numbers are those of what is read, and not of what should be."""
    paths, config = crashed(40)
    paths.checkpoint.unlink()
    with StoreSurvey(paths, config) as survey:
        assert recover_store(survey, None).read_files == 40 + QUEUES


def test_there_is_nothing_untrue_about_a_sparse_store(
    crashed: Callable[[int], tuple[StorePaths, Config]],
) -> None:
    paths, config = crashed(7)
    paths.abort.unlink()
    report = verify_store(paths.root, index=index_geometry(config))
    assert (report.problems, report.messages) == ([], 7)


def test_of_a_log_that_memory_says_is_empty_nothing_is_read(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """Its segment is allocated ahead and warm: all of it would be looked through for a record."""
    config = make_config()
    paths = StorePaths(tmp_path)
    paths.commit_log.mkdir()
    segment = bytes(config.mapped_file_size_commit_log_bytes)
    (paths.commit_log / segment_name(0)).write_bytes(segment)
    with StoreDirectory(paths.root) as store:
        found = find_log_end(store, config, 0, Bounds(most=0), Witness(Checkpoint()))
        assert (found.end, found.damaged, store.bytes_read) == (0, False, 0)
        assert find_log_end(store, config, 0, Bounds(), Witness(Checkpoint())) == found
        assert store.bytes_read > 0, "without that memory it is"


def test_no_block_is_looked_for_below_where_the_log_is_known_to_go(
    crashed: Callable[[int], tuple[StorePaths, Config]],
) -> None:
    """After a kill that is all of it: what the search for the end has read is not read again."""
    paths, _ = crashed(1)
    with StoreDirectory(paths.root) as store:
        end = max(step[0] + step[2] for step in store.scan_log() if step[1] is Kind.RECORD)
        found = LogEnd(end, end, look_from=store.log_start)
        before = store.bytes_read
        cut_unfinished_block(store, found, end)
        assert (found.end, store.bytes_read) == (end, before)
        cut_unfinished_block(store, found, end - 1)
        assert found.end == end and store.bytes_read > before
