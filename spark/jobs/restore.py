"""Puts an archive's messages of a topic back into a topic, each once, however often the job runs.

A run's files are put in groups, one after the other, under names that identify their files. So a
restore that was killed goes on when it is run again, and if the archive has grown, it adds what is
new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.shared.errors import TopicNotFound
from penstock.shared.next_steps import other_topics
from penstock.spark.jobs.archive import frame_of
from penstock.spark.jobs.manifest import ArchiveFile, Manifest
from penstock.spark.jobs.parts import Progress
from penstock.spark.jobs.putting import Target, name_of, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The least size of a group of files, if there are as many. Names of puts depend on it: with another
# size, a restore that was killed would not know what it has done.
GROUP_BYTES = 256 << 20


class Restored(msgspec.Struct, frozen=True):
    """`messages` are now in the topic `into`; `lost` counts a repair's tombstones, left out."""

    archive: str
    topic: str
    into: str
    messages: int
    lost: int
    queues: int


def restore_topic(
    spark: SparkSession,
    archive: Path | str,
    topic: str,
    target: Target,
    *,
    write_id: str = "",
    progress: Progress | None = None,
) -> Restored:
    """Put an archive's messages of a topic into a topic of a running broker.

    The target topic gets as many queues as the messages had. Under another `write_id` they are put
    once more. Raises TopicNotFound, ConfigError, ConnectError, and what the sink raises.
    """
    manifest = Manifest(Path(archive).absolute())
    groups = [
        (run.number, group)
        for run in manifest.runs
        for group in _groups([file for file in run.files if file.topic == topic])
    ]
    if not groups:
        there = {file.topic for file in manifest.files}
        raise TopicNotFound(
            "the archive has no topic of this name", topic, other_topics(topic, there)
        )
    stretches = [each for _, group in groups for file in group for each in file.stretches]
    queues = 1 + max(queue_id for queue_id, _, _ in stretches)
    target.prepare(queues)
    total = sum(file.size_bytes for _, group in groups for file in group)
    done = messages = 0
    for number, group in groups:
        name = name_of("restore", manifest.id, number, group[0].path, target.topic, write_id)
        messages += put(frame_of(spark, manifest.root, group), target, name)
        done += sum(file.size_bytes for file in group)
        if progress is not None:
            progress(done, total)
    archived = sum(file.rows for _, group in groups for file in group)
    return Restored(str(manifest.root), topic, target.topic, messages, archived - messages, queues)


def _groups(files: Sequence[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """The files in groups, in order. One task's files are never split over two groups, because its
    messages may alternate between days."""
    held: list[ArchiveFile] = []
    for file in files:
        is_next = bool(held) and Path(file.path).name != Path(held[-1].path).name
        if is_next and sum(each.size_bytes for each in held) >= GROUP_BYTES:
            yield held
            held = []
        held.append(file)
    if held:
        yield held
