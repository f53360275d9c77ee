"""A file that is opened when connections have just taken the last free descriptor."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.files.descriptors import on_shortage
from penstock.shared.files.segments import listed
from penstock.shared.index.directory import index_files
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.archived import load_archived
from penstock.shared.log.damage import load_quarantine
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.earlier_entries import load_earlier_entries
from penstock.shared.store.rocketmq_json import load_document, save_document
from penstock.shared.store.saved_offsets import load_offsets

SMALL = 4096


@pytest.fixture
def shortage() -> Iterator[Callable[[], None]]:
    """Leave no descriptor free until somebody is short of one, once: as an actor's limit does."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lift() -> bool:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return True

    def begin() -> None:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))

    on_shortage(lift)
    yield begin
    lift()
    on_shortage(lambda: False)


READS: dict[str, Callable[[StorePaths], Any]] = {
    "index_files": lambda paths: index_files(paths.index),
    "segments": lambda paths: [*listed(paths.commit_log, SMALL)],
    "load_document": lambda paths: load_document(paths.topics, len),
    "save_document": lambda paths: save_document(paths.topics, b'{"b": 2}'),
    "load_quarantine": load_quarantine,
    "load_archived": load_archived,
    "load_deleted_topics": lambda paths: load_deleted_topics(paths.deleted_topics),
    "load_earlier_entries": lambda paths: load_earlier_entries(paths.root / "earlier"),
    "load_offsets": lambda paths: load_offsets(paths.root / "offsets"),
}


@pytest.mark.parametrize("name", READS)
def test_what_an_actor_reads_while_it_runs_is_read_with_the_last_descriptor_gone(
    tmp_path: Path, shortage: Callable[[], None], name: str
) -> None:
    paths, read = StorePaths(tmp_path), READS[name]
    for directory in (paths.index, paths.commit_log, paths.topics.parent):
        directory.mkdir(parents=True, exist_ok=True)
    (paths.index / "20260102030405678").write_bytes(b"")
    (paths.commit_log / segment_name(0)).write_bytes(bytes(SMALL))
    paths.topics.write_text('{"a": 1}')
    expected = read(paths)
    shortage()
    assert read(paths) == expected
