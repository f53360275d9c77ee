"""The positions page: how far each stage got, and whether each actor is alive. Shared memory.

The page is one file in the run directory that every process maps. It is cut into 64-byte lines, a
cache line each; a line has exactly one writing process. Words are native-endian, 8-aligned, and
stored and loaded through `memoryview.cast("Q")`, which does not tear. A word is published last,
after the bytes it makes visible.

    line 0            magic, layout
    lines 1..         POSITIONS, a line each, in the order of the table below
    then              two lines for each actor: one written by the supervisor, one by the actor
    then              HISTOGRAMS, eleven lines each: the sum in ns, and counts (see durations.py)

A position's line has three words: its value, when that was published, and when its owner had last
woken up by then. Both times are CLOCK_MONOTONIC in ns. They show where a message spent its time;
nothing is decided by them. They are stored with the value, so they cost only a look at the clock.

What a position is for stands in its row below, and nowhere else in this file.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import StoreDamaged
from penstock.shared.memory.durations import BUCKETS, bucket_of
from penstock.shared.memory.roster import ACTORS

# A cache line: if two processes stored into one, each store would take it from the other.
LINE_BYTES = 64
MAGIC = 0x504E_5354_4F43_4B31
# the version of the order of words in a line; LAYOUT says what the lines are
VERSION = 11


class Position(NamedTuple):
    """One word of the page."""

    name: str
    owner: str
    unit: str
    meaning: str


POSITIONS = (
    Position("allocated", "allocator", "log offset", "segments exist up to here"),
    Position("allocate_error", "allocator", "errno", "why the next segment is missing; 0 is none"),
    Position(
        "lock_error", "allocator", "errno", "why segments are not locked into memory; 0: none"
    ),
    Position(
        "recycled_segments", "allocator", "files", "segments made of expired ones in this run"
    ),
    Position("append_wanted", "writer", "log offset", "the writer needs segments up to here"),
    Position("wrote", "writer", "log offset", "records are complete in pool or segment up to here"),
    Position("wrote_timestamp", "writer", "ms", "store time of a record below `wrote`"),
    Position("rings", "writer", "rings", "producers that have a ring in shared memory"),
    Position("closed_producers", "writer", "connections", "closed for what came by them"),
    Position("flush_wanted", "writer", "log offset", "somebody waits for the disk up to here"),
    Position(
        "unsaved_offsets", "writer", "log offset", "groups' exact offsets only in the log; 0: none"
    ),
    Position("topic_changes", "writer", "changes", "topics.json has changed so often in this run"),
    Position("deleted_topics", "writer", "deletions", "topics deleted: the last one's number"),
    Position("recalled", "writer", "log offset", "recalls stand below; 2^62: one is being stored"),
    Position("committed", "committer", "log offset", "records stand in segment files up to here"),
    Position("commit_error", "committer", "errno", "why segment files do not grow; 0 is none"),
    Position("flushed", "flusher", "log offset", "records are on disk up to here"),
    Position("flush_error", "flusher", "errno", "the disk refused a flush: the store is read-only"),
    Position("queued", "reput", "log offset", "consume queues hold everything up to here"),
    Position(
        "dispatched", "reput", "log offset", "consume queues and index hold everything up to here"
    ),
    Position("dispatched_record", "reput", "log offset", "start of the last dispatched record"),
    Position("dispatch_error", "reput", "errno", "why consume queues do not grow; 0 is none"),
    Position("name_error", "reput", "errno", "a name of a queue file may not be on disk; 0: none"),
    Position("queue_count", "reput", "queues", "slots of the queue table that are in use"),
    Position("forgotten_topics", "reput", "deletions", "the queues of these topics are gone"),
    Position("deleted_queues", "reput", "queues", "slots whose queues are deleted; never reused"),
    Position("answered_pulls", "reader", "answers", "pulls answered with messages in this run"),
    Position("waiting_pulls", "reader", "pulls", "pulls for all messages that wait for some"),
    Position("filtered_pulls", "reader", "pulls", "pulls with a filter that wait for queues"),
    Position("closed_consumers", "reader", "connections", "closed for what came by them"),
    Position("closed_clients", "gateway", "connections", "closed for what came by them"),
    Position("client_count", "gateway", "connections", "of clients that speak RocketMQ's protocol"),
    Position("client_pulls", "gateway", "pulls", "pulls for all messages that wait for some"),
    Position("client_filtered_pulls", "gateway", "pulls", "with a filter; 1 where one came lately"),
    Position("closed_members", "coordinator", "connections", "closed for what came by them"),
    Position("group_count", "coordinator", "groups", "consumer groups that have members"),
    Position("member_count", "coordinator", "members", "members of all groups together"),
    Position("group_error", "coordinator", "errno", "why groups' files do not change; 0 is none"),
    Position("run_began", "supervisor", "log offset", "the log ended here when this run began"),
    Position(
        "closed_transaction_clients", "transactions", "connections", "closed for what came by them"
    ),
    Position("transactions_open", "transactions", "messages", "half messages without an outcome"),
    Position("transactions_committed", "transactions", "messages", "committed in this run"),
    Position("transactions_rolled_back", "transactions", "messages", "rolled back in this run"),
    Position(
        "transactions_discarded", "transactions", "messages", "given up: no producer knew the end"
    ),
    Position("transaction_checks", "transactions", "requests", "asked of producers in this run"),
    Position("pending_delayed", "scheduler", "messages", "wait until their time has come"),
    Position("delivered", "scheduler", "messages", "delayed ones delivered in this run"),
    Position("undelivered", "scheduler", "messages", "delayed ones with nowhere to go any more"),
    Position(
        "delay_floor", "scheduler", "log offset", "no delayed message waits below; 0: not known yet"
    ),
    Position("delay_sent", "scheduler", "ms", "nothing that is due later was sent to the writer"),
    Position("delay_over", "scheduler", "ms", "timed messages due up to then have their outcome"),
    Position("read_only", "supervisor", "reason", "1: the log is damaged; 0: messages are taken"),
    Position("log_start", "cleaner", "log offset", "the first byte the log still holds"),
    Position("deleted_segments", "cleaner", "files", "expired log segments deleted by this run"),
    Position("deleted_queue_files", "cleaner", "files", "consume queue files deleted with them"),
    Position("deleted_index_files", "cleaner", "files", "index files deleted with them"),
    Position("clean_error", "cleaner", "errno", "why an expired file is still there; 0 is none"),
    Position("disk_used", "cleaner", "percent + 1", "how full the fullest disk is; 0: not known"),
    Position("disk_full", "cleaner", "percent", "so full that no message is taken; 0 is not full"),
)
# How far each actor is that a message passes: the first one that lags holds the message up.
STAGES = {
    "writer": "wrote",
    "committer": "committed",
    "flusher": "flushed",
    "reput": "dispatched",
}


class Histogram(NamedTuple):
    """How long something takes that one actor does: durations of this run, counted in buckets."""

    name: str
    owner: str
    meaning: str


HISTOGRAMS = (
    Histogram("acknowledge", "writer", "from a frame's place in the log to its durable answer"),
    Histogram("flush", "flusher", "the sync of a segment of the log"),
)
# "off": the configuration leaves this actor out
STATES = ("down", "starting", "running", "stopping", "off")

# An actor's life takes two lines because it has two writers. The second line outlives its process,
# so the generations in it say which process wrote it.
_SUPERVISED = ("pid", "generation", "restarts", "state")
_OWN = ("heartbeat_ms", "cycles", "beating_generation", "working_generation", "unreadable_pages")

_WORDS_PER_LINE = LINE_BYTES // 8
_POSITION_WORD = {position.name: (i + 1) * _WORDS_PER_LINE for i, position in enumerate(POSITIONS)}
_OWNER = {each.name: each.owner for each in (*POSITIONS, *HISTOGRAMS)}
_ACTOR_WORD = {
    actor: (1 + len(POSITIONS) + 2 * i) * _WORDS_PER_LINE for i, actor in enumerate(ACTORS)
}
_HISTOGRAM_LINES = -(-(1 + BUCKETS) // _WORDS_PER_LINE)
_HISTOGRAMS_AT = 1 + len(POSITIONS) + 2 * len(ACTORS)
_HISTOGRAM_WORD = {
    histogram.name: (_HISTOGRAMS_AT + i * _HISTOGRAM_LINES) * _WORDS_PER_LINE
    for i, histogram in enumerate(HISTOGRAMS)
}
_LINES = _HISTOGRAMS_AT + len(HISTOGRAMS) * _HISTOGRAM_LINES
PAGE_SIZE = mmap.PAGESIZE * -(-_LINES * LINE_BYTES // mmap.PAGESIZE)

# A process with another table would mistake one word for another. So the page names its table, and
# nobody has to remember to raise a version when a position or an actor is added.
_NAMES = ",".join((*_POSITION_WORD, *ACTORS, *(each.name for each in HISTOGRAMS), str(BUCKETS)))
LAYOUT = VERSION << 32 | zlib.crc32(_NAMES.encode())
_MARK = struct.pack("=QQ", MAGIC, LAYOUT)

assert len(_OWNER) == len(POSITIONS) + len(HISTOGRAMS), "a word has one name and one line"
assert {*_OWNER.values()} <= {*ACTORS, "supervisor"}, "who owns a position is in the roster"
assert max(len(_SUPERVISED), len(_OWN)) <= _WORDS_PER_LINE, "an actor's words fit their lines"


# Never contended: taking it executes an instruction that waits for all earlier stores.
_STORES_FIRST = threading.Lock()


class Moment(NamedTuple):
    """A position with the times of its last move, ns on the monotonic clock; 0 before the first."""

    value: int
    published_ns: int
    # when the publishing process had last woken up by then
    woke_ns: int


class ActorLife(NamedTuple):
    """What the page says of one actor.

    The supervisor's words and the actor's are not read in one moment. So a heartbeat belongs to the
    process in `pid` only where `beating_generation` equals `generation`.
    """

    name: str
    pid: int  # 0 while there is no process
    generation: int  # counts the forks of this actor, from 1
    state: str  # one of STATES
    restarts: int
    heartbeat_ms: int  # on the monotonic clock, which all processes of a boot share
    cycles: int
    beating_generation: int  # of the process that stored the heartbeat
    working_generation: int  # of the last process that has come through its start
    # that its last process asked the disk for in vain; each time counts
    unreadable_pages: int


class Positions:
    """The page, mapped. `owner` names whose words this process may store; with "" it stores none.

    Raises OSError where there is no page, and StoreDamaged for one of another version.
    """

    def __init__(self, path: Path, owner: str = "") -> None:
        self.owner = owner
        # when this process last woke up; whatever sleeps sets it
        self.woke_ns = 0
        # Without an owner the kernel enforces that, too: the mapping is read-only.
        handle = os.open(path, os.O_RDWR if owner else os.O_RDONLY)
        try:
            if os.pread(handle, len(_MARK), 0) != _MARK or os.fstat(handle).st_size < PAGE_SIZE:
                raise StoreDamaged(
                    "the positions page is another version's",
                    path,
                    "use the version that runs the broker: penstock version. Where that was "
                    "killed, start it once more and stop it, and this one goes on from there: "
                    "only that version can read what had not been written to the log",
                )
            access = mmap.PROT_READ | (mmap.PROT_WRITE if owner else 0)
            self._map = mmap.mmap(handle, PAGE_SIZE, mmap.MAP_SHARED, access)
        finally:
            os.close(handle)
        self._words = memoryview(self._map).cast("Q")

    def __getitem__(self, name: str) -> int:
        """A position as it is now: a plain load, without a lock. Raises KeyError.

        Read the bytes that a position covers after it, never before.
        """
        return self._words[_POSITION_WORD[name]]

    def publish(self, name: str, value: int) -> None:
        """Store one of the owner's words: everything below it is complete now.

        This is the commit point of a step: store the bytes before it, and notify after it.
        Raises PermissionError for a word of another owner.
        """
        if _OWNER[name] != self.owner:
            raise PermissionError(f"{name} belongs to {_OWNER[name]}, not to {self.owner}")
        at = _POSITION_WORD[name]
        self._words[at] = value
        # after the value: nobody waits for these
        self._words[at + 1], self._words[at + 2] = time.monotonic_ns(), self.woke_ns

    def publish_before_loads(self, name: str, value: int) -> None:
        """Publish, and load nothing before others can see it.

        For two processes that each store a word and then load the other's: at least one of them
        sees what the other has stored. After a plain store the processor may execute a later load
        before others can see the store, even on x86-64. Taking a lock in between prevents that.
        """
        self.publish(name, value)
        with _STORES_FIRST:
            pass

    def initialise(self, name: str, value: int) -> None:
        """Set any position while no actor runs: the supervisor, after recovery.

        Raises PermissionError for anybody else.
        """
        if self.owner != "supervisor":
            raise PermissionError("positions are initialised by the supervisor only")
        self._words[_POSITION_WORD[name]] = value

    def all(self) -> dict[str, int]:
        """All positions, each read by itself: a later stage may seem ahead of an earlier one."""
        return {position.name: self[position.name] for position in POSITIONS}

    def moment(self, name: str) -> Moment:
        """A position and when it moved last. The three words are not read in one moment: ask when
        the position has come to rest."""
        at = _POSITION_WORD[name]
        return Moment(*self._words[at : at + 3])

    def published_ns(self, name: str) -> int:
        """When a position moved last, ns on the monotonic clock."""
        return self._words[_POSITION_WORD[name] + 1]

    def count_duration(self, name: str, duration_ns: int) -> None:
        """Count a duration in one of the owner's histograms. Raises PermissionError."""
        if _OWNER[name] != self.owner:
            raise PermissionError(f"{name} belongs to {_OWNER[name]}, not to {self.owner}")
        at = _HISTOGRAM_WORD[name]
        self._words[at] += duration_ns
        self._words[at + 1 + bucket_of(duration_ns)] += 1

    def durations(self, name: str) -> tuple[int, list[int]]:
        """(sum in ns, the count of each bucket), as counted in this run so far."""
        at = _HISTOGRAM_WORD[name]
        return self._words[at], self._words[at + 1 : at + 1 + BUCKETS].tolist()

    def supervise(self, actor: str, **words: int) -> None:
        """Store the supervisor's words of an actor: pid, generation, restarts, state.

        `state` is an index into STATES. A higher generation shuts out the actor's predecessors, so
        it is stored before the fork. Raises PermissionError for anybody but the supervisor.
        """
        if self.owner != "supervisor":
            raise PermissionError("an actor's life is kept by the supervisor only")
        for word, value in words.items():
            self._words[_ACTOR_WORD[actor] + _SUPERVISED.index(word)] = value

    def beat(self, now_ms: int, generation: int, unreadable_pages: int = 0) -> bool:
        """Say that this actor lives. Returns False when a newer generation has replaced it.

        Then the caller has to end without another store: the words are its successor's.
        """
        at = _ACTOR_WORD[self.owner]
        if self._words[at + 1] != generation:
            return False
        at += _WORDS_PER_LINE
        self._words[at] = now_ms
        self._words[at + 1] += 1
        self._words[at + 4] = unreadable_pages
        # Last: until it is there, nobody takes the heartbeat for this process's.
        self._words[at + 2] = generation
        return True

    def begin_work(self, generation: int) -> None:
        """Say that this actor has started and works from now on.

        Then the supervisor calls it running, and the broker ready once all awaited actors are.
        """
        self._words[_ACTOR_WORD[self.owner] + _WORDS_PER_LINE + 3] = generation

    def life(self, actor: str) -> ActorLife:
        """What the page says of this actor; for any process. Raises KeyError."""
        at = _ACTOR_WORD[actor]
        pid, generation, restarts, state = self._words[at : at + 4]
        own = at + _WORDS_PER_LINE
        supervised = actor, pid, generation, STATES[state], restarts
        return ActorLife(*supervised, *self._words[own : own + len(_OWN)])

    def close(self) -> None:
        """Unmap the page. Nothing can be read or stored any more."""
        self._words.release()  # a mapping with a view of it does not close
        self._map.close()


def create_positions(path: Path) -> None:
    """Make a page of zeros. The magic is stored last, so a page that has it is whole.

    Raises FileExistsError where there is one already: each run makes its page once.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # a store into a page that /dev/shm has no room for would be a SIGBUS; this is an OSError
        os.posix_fallocate(handle, 0, PAGE_SIZE)
        with mmap.mmap(handle, PAGE_SIZE) as page:
            words = memoryview(page).cast("Q")
            words[1] = LAYOUT
            words[0] = MAGIC
            words.release()
    finally:
        os.close(handle)
