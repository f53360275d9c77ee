"""Names and sizes of everything in a store directory, after RocketMQ 5.3.

    ROOT/commitlog/<20 digits>                      records, mapped_file_size_commit_log_bytes each
    ROOT/consumequeue/<topic>/<queue>/<20 digits>   20-byte entries
    ROOT/index/<17 digits>                          hash index files
    ROOT/checkpoint                                 five times and offsets in one 4096-byte page
    ROOT/abort                                      pid; there while a broker runs, or after a crash
    ROOT/lock                                       "lock"; byte 0 is locked by the running broker
    ROOT/config/topics.json, consumerFilter.json, delayOffset.json    RocketMQ's JSON
    ROOT/config/consumerOffset.json                 how far each group has come in each queue
    ROOT/config/subscriptionGroup.json              the groups and their settings
    ROOT/penstock/deleted-topics.json               which records of the log are in no queue
    ROOT/penstock/groups                            claims, and offsets newer than that file
    ROOT/penstock/                                  Penstock's alone: run.json, quarantine.json, ...

Pure functions on paths: nothing here opens a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.shared.errors import InvalidArgument
from penstock.shared.names import check_topic, is_stored_topic

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES = 4096
SEGMENT_NAME_DIGITS = 20
CQ_ENTRY_BYTES = 20
BLANK_HEADER_BYTES = 8
# A record may be this much larger than its body before RocketMQ calls it illegal.
RECORD_OVERHEAD_BYTES = 65536
# An entry has 20 bytes, and a file's size is a signed 64-bit number: beyond this queue offset an
# entry would have no place, and byte positions computed from it would overflow.
MAX_QUEUE_OFFSET = 1 << 58

# RocketMQ's positions inside a segment are Java ints.
MAX_SEGMENT_BYTES = 2**31 - 1


def segment_name(base_offset: int) -> str:
    """The file name of the segment that starts at this byte: 20 decimal digits."""
    return f"{base_offset:0{SEGMENT_NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    return len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()


class StorePaths:
    """Where things are in one store directory."""

    def __init__(self, root: Path | str) -> None:
        from pathlib import Path  # for its sizes this file is imported by those who have no store

        self.root = Path(root)
        self.commit_log = self.root / "commitlog"
        self.consume_queue = self.root / "consumequeue"
        self.index = self.root / "index"
        self.checkpoint = self.root / "checkpoint"
        self.abort = self.root / "abort"
        self.lock = self.root / "lock"
        self.topics = self.root / "config" / "topics.json"
        self.consumer_filters = self.root / "config" / "consumerFilter.json"
        self.consumer_offsets = self.root / "config" / "consumerOffset.json"
        self.subscription_groups = self.root / "config" / "subscriptionGroup.json"
        self.name_server_settings = self.root / "config" / "kvConfig.json"
        self.own = self.root / "penstock"
        self.run = self.own / "run.json"
        self.log = self.own / "broker.log"
        self.geometry = self.own / "geometry.json"
        self.index_state = self.own / "index.json"
        self.starting = self.own / "starting"
        self.staging = self.own / "half-made"
        self.known_queues = self.own / "queues"
        self.group_journal = self.own / "groups"
        self.queue_ends = self.own / "queue-ends"
        self.watermark = self.own / "watermark"
        self.transactions = self.own / "transactions"
        self.retention = self.own / "retention.json"
        self.deletions = self.own / "deletions.json"
        self.archived = self.own / "archived.json"
        self.exact_offsets = self.own / "exact-offsets.json"
        self.deleted_topics = self.own / "deleted-topics.json"
        self.deleted_queues = self.own / "deleted"
        self.rebuild = self.own / "rebuild"
        self.recoveries = self.own / "recovery.json"
        self.scheduler = self.own / "scheduler"
        self.timers = self.own / "timers"
        self.delay_offsets = self.root / "config" / "delayOffset.json"
        self.quarantined = self.own / "quarantine.json"
        self.quarantine = self.own / "quarantine"

    def queue(self, topic: str, queue_id: int) -> Path:
        """Raises InvalidArgument for what is no name of a directory."""
        if not is_stored_topic(topic):
            check_topic(topic)
            raise InvalidArgument("no topic has this name", repr(topic), "use another name")
        return self.consume_queue / topic / str(int(queue_id))
