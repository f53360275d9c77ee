"""Names and sizes of everything in a store directory, after RocketMQ 5.3.

    ROOT/commitlog/<20 digits>                      records, mapped_file_size_commit_log_bytes each
    ROOT/consumequeue/<topic>/<queue>/<20 digits>   20-byte entries
    ROOT/index/<17 digits>                          hash index files
    ROOT/checkpoint                                 five times and offsets in one 4096-byte page
    ROOT/abort                                      pid; there while a broker runs, or after a crash
    ROOT/lock                                       "lock"; byte 0 is locked by the running broker
    ROOT/config/topics.json, consumerFilter.json, delayOffset.json    RocketMQ's JSON
    ROOT/config/timercheck                          where RocketMQ starts to read the wheel topic
    ROOT/timerwheel, ROOT/timerlog/                 RocketMQ's wheel; gone once Penstock has run
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
# An entry has 20 bytes, and a file's size is a signed 64-bit number: an entry beyond this queue
# offset would have no place, and byte positions computed from the offset would overflow.
MAX_QUEUE_OFFSET = 1 << 58

# RocketMQ's positions inside a segment are Java ints.
MAX_SEGMENT_BYTES = 2**31 - 1


def segment_name(base_offset: int) -> str:
    """The file name of the segment that starts at this byte: 20 decimal digits."""
    return f"{base_offset:0{SEGMENT_NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    return len(name) == SEGMENT_NAME_DIGITS and name.isascii() and name.isdigit()


def is_queue_name(name: str) -> bool:
    """Whether a directory of this name is a queue's: its id, without leading zeros."""
    # `01` would be a second directory of queue 1; isdigit alone accepts other scripts' digits
    return name.isascii() and name.isdigit() and name == str(int(name))


class _Place:
    """A path below a store's root, made at first use: most callers need only a few."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, paths: StorePaths, owner: type) -> Path:
        place = vars(paths)[self._name] = paths.root.joinpath(*self._names)
        return place


class StorePaths:
    """Where things are in one store directory."""

    commit_log = _Place("commitlog")
    consume_queue = _Place("consumequeue")
    index = _Place("index")
    checkpoint = _Place("checkpoint")
    abort = _Place("abort")
    lock = _Place("lock")
    topics = _Place("config", "topics.json")
    consumer_filters = _Place("config", "consumerFilter.json")
    consumer_offsets = _Place("config", "consumerOffset.json")
    subscription_groups = _Place("config", "subscriptionGroup.json")
    name_server_settings = _Place("config", "kvConfig.json")
    own = _Place("penstock")
    run = _Place("penstock", "run.json")
    log = _Place("penstock", "broker.log")
    geometry = _Place("penstock", "geometry.json")
    index_state = _Place("penstock", "index.json")
    starting = _Place("penstock", "starting")
    staging = _Place("penstock", "half-made")
    known_queues = _Place("penstock", "queues")
    group_journal = _Place("penstock", "groups")
    queue_ends = _Place("penstock", "queue-ends")
    watermark = _Place("penstock", "watermark")
    transactions = _Place("penstock", "transactions")
    retention = _Place("penstock", "retention.json")
    deletions = _Place("penstock", "deletions.json")
    archived = _Place("penstock", "archived.json")
    exact_offsets = _Place("penstock", "exact-offsets.json")
    deleted_topics = _Place("penstock", "deleted-topics.json")
    deleted_queues = _Place("penstock", "deleted")
    rebuild = _Place("penstock", "rebuild")
    recoveries = _Place("penstock", "recovery.json")
    scheduler = _Place("penstock", "scheduler")
    timers = _Place("penstock", "timers")
    timer_sums = _Place("penstock", "timer-sums")
    delay_offsets = _Place("config", "delayOffset.json")
    timer_checkpoint = _Place("config", "timercheck")
    timer_wheel = _Place("timerwheel")
    timer_log = _Place("timerlog")
    quarantined = _Place("penstock", "quarantine.json")
    quarantine = _Place("penstock", "quarantine")

    def __init__(self, root: Path | str) -> None:
        from pathlib import Path  # here, as programs without a store import this file for its sizes

        self.root = Path(root)

    def queue(self, topic: str, queue_id: int) -> Path:
        """The queue's directory. Raises InvalidArgument for a topic that cannot be a directory."""
        if not is_stored_topic(topic):
            check_topic(topic)
            raise InvalidArgument("no topic has this name", repr(topic), "use another name")
        return self.consume_queue / topic / str(int(queue_id))
