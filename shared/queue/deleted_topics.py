"""penstock/deleted-topics.json: which records of the log are of topics that were deleted.

A deleted topic's records stay in the log until they expire. So whoever makes queue entries out of
the log has to know them, or the old messages would get into the queues of a topic that is created
again under the name. `log_end` tells them apart: a record that begins before it is of the deleted
topic.

    {"last": 7, "rows": [{"number": 7, "topic": "orders", "log_end": 123456, "at_ms": ...,
                          "is_done": true}], "crc": "1f0a44b2"}

The writer owns it while actors run, the supervisor at a start. To delete a topic:

    row written, not done  ->  topic out of config/topics.json  ->  row done

The second step is the commit point. Whoever finds a row that is not done looks whether the topic is
in topics.json: if so, it was not deleted; else the row becomes done. Only done rows count. A row is
dropped when the log begins after it. RocketMQ does not know the file, and need not: its broker
removes a queue's directory and forgets.

The file has a checksum. If a flipped digit made `log_end` greater, messages that the topic has had
since would count as deleted, and nothing else would tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import make_directory, replace_file, sync_directory
from penstock.shared.files.mounts import put_aside
from penstock.shared.files.sealed_json import NotAsWritten, sealed, unsealed
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import move_away
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd, load_known_queues
from penstock.shared.queue.snapshot import QueueFiles


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A deletion: the topic's records that begin before `log_end` are in no queue any more.

    `number` counts deletions from 1, and never starts again. `at_ms` is Unix time.
    """

    number: int
    topic: str
    log_end: int
    at_ms: int
    is_done: bool = False


class DeletedTopics(msgspec.Struct, frozen=True):
    """All rows, by number; for a topic that was deleted several times, only the last."""

    last: int = 0
    rows: tuple[DeletedTopic, ...] = ()

    def ends(self, after: int = 0) -> dict[str, int]:
        """Topic -> `log_end`, of those deletions that are done and have a number above `after`."""
        return {row.topic: row.log_end for row in self.rows if row.is_done and row.number > after}

    def with_rows(self, topics: Iterable[str], log_end: int, now_ms: int) -> DeletedTopics:
        """The same with a row, not done, for each of these topics; `now_ms` is Unix time."""
        new = {
            topic: DeletedTopic(number=number, topic=topic, log_end=log_end, at_ms=now_ms)
            for number, topic in enumerate(topics, self.last + 1)
        }
        kept = tuple(row for row in self.rows if row.topic not in new)
        return DeletedTopics(self.last + len(new), (*kept, *new.values()))

    def settled(self, topics: Set[str]) -> DeletedTopics:
        """The same, with no row left in doubt after a crash. `topics` are all that exist: a row
        that is not done goes if its topic is one of them, and becomes done if not."""
        return DeletedTopics(
            self.last,
            tuple(
                msgspec.structs.replace(row, is_done=True)
                for row in self.rows
                if row.is_done or row.topic not in topics
            ),
        )

    def within(self, log_start: int, log_end: int) -> DeletedTopics:
        """The rows that a log from `log_start` to `log_end` still needs.

        A log may end before a row, if a power failure took records that were not on disk. All that
        is left of the topic was deleted, and what is stored next was not. So the row then ends
        where the log does.
        """
        return DeletedTopics(
            self.last,
            tuple(
                msgspec.structs.replace(row, log_end=min(row.log_end, log_end))
                for row in self.rows
                if row.log_end > log_start
            ),
        )


# for a store where no topic was ever deleted
NONE = DeletedTopics()


def move_queues_away(paths: StorePaths, row: DeletedTopic) -> None:
    """Take a deleted topic's directory out of consumequeue/, for the cleaner to empty.

    Only the owner of the queues calls this. The old queues are gone for good on return, so that new
    ones of the name may be made. Doing it again changes nothing. Raises OSError, FlushFailed.
    """
    make_directory(paths.deleted_queues)
    # not the topic's name: with a number it may be too long
    target = paths.deleted_queues / f"{row.number}-{row.at_ms}"
    # without messages it has no directory
    with suppress(FileNotFoundError):
        put_aside(paths.queue(row.topic, 0).parent, target)
    sync_directory(paths.deleted_queues)
    sync_directory(paths.consume_queue)


def is_of_deleted(queue: QueueFiles, ends: Mapping[str, int]) -> bool:
    """Whether a queue's files are a deleted topic's: all records that they name begin before its
    `log_end`."""
    log_end = ends.get(queue.topic, 0)
    try:
        end = queue.max_offset if log_end else 0
        return end > queue.first_slot and queue.log_offset(end - 1) < log_end
    except StoreDamaged:  # whoever checks or mends queues says what is wrong with it
        return False


def settle_deleted_topics(file: Path, topics: Set[str]) -> DeletedTopics:
    """The rows, with none left in doubt; `topics` are those of topics.json. Durable on return.
    Raises StoreDamaged, OSError. Only the file's owner calls this."""
    found = load_deleted_topics(file)
    settled = found.settled(topics)
    if settled != found:
        save_deleted_topics(file, settled)
    return settled


_decoder: msgspec.json.Decoder[DeletedTopics] = msgspec.json.Decoder(DeletedTopics)


def load_deleted_topics(file: Path) -> DeletedTopics:
    """No rows where there is no file. Raises StoreDamaged for a file that cannot be read, or does
    not say what was written; OSError."""
    try:
        return unsealed(read_file(file), _decoder)
    except FileNotFoundError:
        return DeletedTopics()
    except NotAsWritten as error:
        raise StoreDamaged(
            "the list of deleted topics cannot be read",
            f"{file}: {error}",
            "without it messages of deleted topics may come back, where a topic was created again: "
            f"{move_away(file)}",
        ) from error


def save_deleted_topics(file: Path, deleted: DeletedTopics) -> None:
    """Durable on return. Raises OSError. Only the file's owner calls this."""
    replace_file(file, sealed(msgspec.json.format(msgspec.json.encode(deleted))))


def keep_needed(file: Path, deleted: DeletedTopics, log_start: int, log_end: int) -> DeletedTopics:
    """Drop deletions of which the log has nothing any more. Durable on return."""
    needed = deleted.within(log_start, log_end)
    if needed != deleted:
        save_deleted_topics(file, needed)
    return needed


def without_deleted(known: Mapping[str, QueueEnd], deleted: DeletedTopics) -> dict[str, QueueEnd]:
    """Where queues are known to have ended, except those of deleted topics."""
    ends = deleted.ends()
    return {
        name: end
        for name, end in known.items()
        if not UNKNOWN < end.last_position < ends.get(name.rpartition("/")[0], 0)
    }


def load_living_queues(paths: StorePaths) -> dict[str, QueueEnd]:
    """Where queues are known to have ended, according to their list, except those of deleted
    topics, which nobody misses. Raises StoreDamaged, OSError."""
    deleted = load_deleted_topics(paths.deleted_topics)
    return without_deleted(load_known_queues(paths.known_queues), deleted)
