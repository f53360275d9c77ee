"""Named points in the product where a process can be made to fail, so that tests meet every state
that a crash can leave. An unarmed point is a call of a function that does nothing.

    PENSTOCK_FAULTS="flush.after_msync_before_cursor=crash@3 commit.before_cursor=delay:50@1x20"
    PENSTOCK_FAULTS_FIRED=/tmp/fired

    <point>=<action>[@N][xM]    from the Nth time on that a process passes the point (1), M times
                                in all processes together (1)
    crash                       this process is killed, as by kill -9
    stop                        it is stopped, as by kill -STOP
    delay:MS                    it sleeps
    error:ENOSPC                the point raises that OSError
    yes:PERCENT                 the point answers yes with this chance; its sentence below says what
    upto:MS                     the point answers with a random number of ms; its sentence says what

A point that several pairs of actors pass (a doorbell) can be armed for one pair alone:
bell.lost/writer-committer=yes:100. That takes precedence over the point's own entry.

Each firing appends a line to the file that PENSTOCK_FAULTS_FIRED names, and the lines are counted
across processes: a replaced actor must not crash at the same point for ever. Without the file each
process counts its own. So it does if the file contains anything else, is a link, or is too long: a
variable that somebody left in the environment must not make a process append to an arbitrary file.
A `yes` is neither counted nor limited.

A broker that starts with a point armed says so. All its processes use the environment as it was
when the first of them started. The table below is complete; a test proves that each point is passed
at exactly one place.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from typing import NamedTuple

from penstock.shared.errors import ConfigError

VARIABLE, FIRED_VARIABLE = "PENSTOCK_FAULTS", "PENSTOCK_FAULTS_FIRED"

# What a process has done, and what it has not done yet, when it passes the point. A table instead
# of a comment at each place, because `penstock chaos --points` prints it.
POINTS: dict[str, str] = {
    # doorbells, of any actor: questions
    "bell.lost": "a doorbell is not rung",
    "bell.repeated": "a doorbell is rung twice",
    "bell.late": "a doorbell is rung so much later",
    # files of a fixed size (segments, queue files, index files), and small ones that are replaced
    "make.grown": "a new file is durable under half-made/, and has no name yet",
    "make.named": "a new file has its name, which is not durable",
    "file.tmp_written": "a small file's new content is durable under another name",
    "file.renamed": "a small file's new content has its name, which is not durable",
    # allocator
    "alloc.before_fallocate": "nothing of the next segment is there",
    "alloc.after_dirfsync": "the segment's name is durable, `allocated` is not moved",
    "alloc.publish": "`allocated` is moved, the writer has not heard of it",
    "recycle.filled": "an expired segment is zeros on disk, and has no name in the log",
    "recycle.named": "it has the next segment's name, which is not durable",
    # writer
    "write.before_reserve": "the frame is checked, nothing of it is stored",
    "write.mid_record": "the pool's end has a part of a record, its beginning not yet the rest",
    "write.end_of_file_blank": "a blank closes the segment, the next one has nothing yet",
    "write.before_publish": "all of a frame's bytes stand behind `wrote`",
    "write.publish": "`wrote` is moved, `wrote_timestamp` is not, and nobody has heard of it",
    "write.recall_checked": "a timed message may be taken back, and nothing of that is stored",
    "write.recall_stored": "a recall is stored, and nothing tells the scheduler where",
    "write.before_answer": "the disk has a frame, and its producer has not heard of it",
    # transactions
    "txn.sent": "a frame for the writer has left: copies of half messages, or their marks",
    "txn.stored": "copies and marks are durable, and only the writer knows",
    "txn.before_answer": "a transaction has ended, and its producer has not heard of it",
    "txn.asked": "a producer is asked how a transaction ended",
    "txn.before_save": "how far half messages are looked through is as old as the last save",
    # rings in shared memory, which the writer makes and producers fill
    "ring.made": "the file of a ring is there, and no producer has heard of it",
    "ring.taken": "a producer holds a ring, and has not mapped it",
    "ring.filled": "a frame stands in a ring, and nothing says so to the writer",
    "ring.copied": "the writer has a copy of a frame in a ring, and has not looked at it",
    # committer
    "commit.before_copy": "the pool has bytes, the segment file has none of them",
    "commit.mid_copy": "some of the bytes are in the segment file, `committed` is not moved",
    "commit.before_cursor": "all bytes are in the segment file, `committed` is not moved",
    "commit.after_cursor": "`committed` is moved, nobody has heard of it",
    # flusher
    "flush.before_msync": "the bytes are committed, and not on disk",
    "flush.roll": "one segment is on disk, the one behind it is not",
    "flush.after_msync_before_cursor": "the bytes are on disk, `flushed` is not moved",
    "flush.after_cursor_before_ack": "`flushed` is moved, the writer has not heard of it",
    "flush.after_queues_before_index": "the queues are on disk, new items of the index are not",
    "flush.mid_index": "some new items of the index are on disk",
    "known.written": "a new queue's name is in the list of queues, and not durable",
    "known.ends_written": "queues are on disk, and how far, in the list, is not",
    "mark.written": "the watermark is written, and not on disk",
    "ckpt.before": "the checkpoint is about to be written",
    "ckpt.mid": "the checkpoint is written, and not on disk",
    "ckpt.after": "the checkpoint is on disk",
    # reput
    "reput.before_cq": "records are read, no entry of them is written",
    "reput.new_cq_file": "entries need a new file of their queue, which is not there",
    "topic.deletion_noted": "a topic is to be deleted, and topics.json still has it",
    "topic.deleted": "topics.json has the topic no more, and its deletion is not said to be done",
    "topic.deletion_done": "a topic is deleted, and no other actor has heard of it",
    "reput.queues_marked": "a deleted topic's queues are marked, and their directory is there",
    "reput.queues_moved": "the directory is put aside, and `forgotten_topics` is not stored",
    "reput.new_queue": "a slot of the queue table is filled, `queue_count` does not count it",
    "reput.after_entries_before_offset": "entries are written, their queue's next offset is not",
    "reput.mid_cq": "some queues have their entries, others do not",
    "reput.after_cq_before_index": "the queues have their entries, the index has not",
    "reput.after_index_before_cursor": "queues and index are written, no position is moved",
    "reput.after_record_before_cursor": "`dispatched_record` is moved, `dispatched` is not",
    "reput.after_cursor": "`dispatched` is moved, the reader has not heard of it",
    # index, which the reput writes, and a start and a rebuild too
    "index.new_file": "an index file is full, the next one is not there",
    "index.after_items": "items are written, no slot points to them",
    "index.after_slots": "slots point to items that the header does not count",
    "index.mid_cut": "no slot points behind the cut, the header still counts what is there",
    "index.cut_file": "a newest file without an item that counts is gone, and not durably",
    "index.mid_repair": "slots are made anew from the items, the header is not",
    # cleaner
    "clean.noted": "what goes is written down, and nothing of it is done",
    "clean.after_publish": "`log_start` is moved, files and queues' min offsets are as before",
    "clean.mid_min_offsets": "some queues have their new min offset, others do not",
    "clean.mid_unlink": "an expired file has its name no more, and not durably",
    "clean.topic_file": "one file of a deleted topic's queues is gone, and not counted",
    "clean.after_unlink": "an expired file is gone, and not counted",
    "clean.after_segments": "expired segments are gone, files of queues are not",
    "clean.after_queue_files": "expired files of queues are gone, those of the index are not",
    # coordinator
    "group.before_journal": "claims and offsets have changed, nothing says so but memory",
    "group.journaled": "what has changed is in the journal, nobody has an answer",
    "group.agreed": "the log says what was acknowledged without blocks, nobody has the queue",
    "group.noted": "the journal names the offsets' file that is to come, which is not there",
    "group.saved": "the offsets' file is replaced, the journal is the one before",
    # scheduler
    "schedule.mid_index": "some timers stand in their files, others that were read do not",
    "schedule.put": "what is due is on its way to the writer, and nothing says so",
    "schedule.answered": "the disk has what was due, and nothing says so",
    "schedule.saved": "how far it is stands in penstock/scheduler, delayOffset.json is older",
    "schedule.before_json": "both versions of delayOffset.json are named, the old one is there",
    "schedule.before_wheel": "timercheck is written, the wheel that RocketMQ has left is there",
    # a start, which is the supervisor's, in order
    "geometry.written": "the sizes of a store's files are written down, none may be there",
    "recover.mid_pool": "a segment has what the pool had for it, the next one has not",
    "recover.queues_made": "queues that had lost their end are made anew, beside the old ones",
    "recover.queue_restored": "one of them is in its place, others may not be",
    "topic.forgotten_at_start": "a start has put one queue of a deleted topic aside",
    "recover.after_scan": "a start knows the log's end, and has changed nothing of the log",
    "recover.before_truncate": "a start is about to cut what is behind the end",
    "recover.after_truncate": "what was behind the end is gone",
    "recover.after_index": "log and index are whole, the last run's memory is still there",
    "run.mid_removal": "a file of a run directory is removed, others may not be",
    "start.new_run": "a run directory is made, and no run.json names it",
    "recover.mid_cq_fix": "a queue is cut, others may not be",
    "recover.after_cq_fix": "all queues are cut, the positions are not made",
    "start.after_run": "run.json names the run, index.json and `abort` do not",
    "start.before_abort": "run.json and index.json name the run, `abort` does not",
    # supervisor
    "sup.after_spawn": "an actor is forked, and the page does not name its process",
    "sup.before_kill_old": "an actor does not move, and is not killed yet",
    # the end of a stop
    "shutdown.mid_unlink": "an empty segment behind the log's end is gone, others may not be",
    "shutdown.before_abort_removed": "everything is on disk, `abort` is still there",
    "shutdown.after_abort_removed": "`abort` is gone, and not durably; the run's memory is there",
    # penstock store repair and rebuild
    "repair.set_aside": "a stray file is in the quarantine, and not durably",
    "repair.planned": "quarantine.json names what is damaged, the log is as it was",
    "repair.mid_range": "a part of a damaged range is replaced",
    "repair.replaced": "all damage is replaced, queues and index are as they were",
    "repair.rebuilt": "queues and index are new, penstock/queues says how queues were",
    "rebuild.before_swap": "new queues or a new index are durable beside the old",
    "rebuild.after_swap": "new and old have changed places, what belongs to them is not written",
    "rebuild.before_removal": "all is made anew, the old ones are still in rebuild/",
    # Spark's archive, in order
    "archive.written": "a task's files are durable in staging/, nothing names them",
    "archive.moved": "a file of a run has its place, others may not, and no run names it",
    "archive.placed": "all files of a run have their place, and no run names them",
    "archive.listed": "a run names its files, and what the store knows of it is older",
    # Spark's sink: a task, and then the driver
    "spark.staged": "a task's rows are staged, nothing names them",
    "spark.before_decision": "all rows and their list are staged, the batch is not decided on",
    "spark.decided": "the batch is decided on, none of its rows is published",
    "spark.block_published": "a block of the batch is published, and was answered for",
    "spark.published": "the batch is published, Spark does not know it",
}

# A text, compiled only when a point is armed: every client loads this file.
_FAULT = (
    r"([a-z_.0-9]+(?:/[a-z-]+)?)="
    r"(crash|stop|(?:delay|upto):\d{1,6}|yes:\d{1,3}|error:E[A-Z0-9]+)(?:@(\d+))?(?:x(\d+))?"
)
_FIRING = rb"[a-z_.0-9]+(?:/[a-z-]+)? \d+"
# The file is read as a whole at each firing; a longer one is not a file of firings.
MAX_FIRED_BYTES = 1 << 20


class Fault(NamedTuple):
    """What happens at a point: from the `first` time on, `times` times.

    `first` counts how often one process passes it, `times` how often it happens in all of them.
    `argument` is ms, a percentage or an errno, depending on the action; else 0.
    """

    action: str
    argument: int
    first: int
    times: int


class Faults:
    """The armed points of one process and of its forks; each goes on counting passes separately.
    `fired` is the path of the file that counts for all of them, "" for none.
    """

    def __init__(self, armed: dict[str, Fault], fired: str) -> None:
        self._armed = armed
        self._file = fired
        self._passed = dict.fromkeys(armed, 0)
        self._fired = dict.fromkeys(armed, 0)

    def hit(self, name: str, which: str = "") -> int:
        """Pass a point. Returns the answer if the point is a question: 1 for yes, 0 for no; or ms.

        `which` is the pair that passes it, as in "writer-committer". Raises OSError if the point is
        armed with one.
        """
        # the pair's own entry takes precedence
        if f"{name}/{which}" in self._armed:
            name = f"{name}/{which}"
        fault = self._armed.get(name)
        if fault is None:
            return 0
        self._passed[name] += 1
        if self._passed[name] < fault.first:
            return 0
        # not counted and not limited: for a question, `times` and the file mean nothing
        if fault.action == "yes":
            import random  # here, as clients load this file and never need it

            return random.random() * 100 < fault.argument
        if fault.action == "upto":
            import random

            return random.randint(0, fault.argument)
        if self._may_fire(name, fault.times):
            _fail(fault, name)
        return 0

    def _may_fire(self, name: str, times: int) -> bool:
        """Whether the point may fire again; if so, this firing is counted first.

        Counted before it happens: after a crash no process is left to count it.
        """
        if not self._file:
            self._fired[name] += 1
            return self._fired[name] <= times
        # O_NOFOLLOW: a link could lead to any file of this user, which would then get a line
        # O_NONBLOCK: opening a FIFO that nobody reads would block the actor here
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(self._file, flags, 0o600)
        except OSError:
            # from now on this process counts for itself, as without the variable
            self._file = ""
            return self._may_fire(name, times)
        try:
            import fcntl  # here, as clients load this file, and other systems lack it

            # two actors may pass at the same time, and only one of them may have the last firing
            fcntl.flock(handle, fcntl.LOCK_EX)
            lines = _firings(handle)
            if lines is None:
                self._file = ""
                return self._may_fire(name, times)
            if sum(line.split(b" ")[0] == name.encode() for line in lines) >= times:
                return False
            # not synced: it has to outlive this process, but not the machine
            os.write(handle, f"{name} {os.getpid()}\n".encode())
            return True
        finally:
            # This releases the lock before the caller acts: a process that is stopped there must
            # not hold up the others at their points.
            os.close(handle)


def _firings(handle: int) -> list[bytes] | None:
    """The lines of a file of firings; None for any other file, which must not be written to."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FIRED_BYTES:
        return None
    lines = os.pread(handle, found.st_size, 0).splitlines()
    return lines if all(re.fullmatch(_FIRING, line) for line in lines) else None


def _fail(fault: Fault, name: str) -> None:
    """Do what the point is armed with. Returns after a delay, and once a stop is continued."""
    import signal

    # By signals instead of an exit: no handler, `finally` or buffer of this process may do anything
    # afterwards, as after kill -9.
    if fault.action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "delay":
        time.sleep(fault.argument / 1000)
    else:
        raise OSError(fault.argument, f"{os.strerror(fault.argument)} (asked for at {name})")


def parse_faults(text: str) -> dict[str, Fault]:
    """The faults of a specification. Raises ConfigError for bad syntax and for unknown points: a
    misspelt point would never fire, and a test would pass without testing anything.
    """
    found: dict[str, Fault] = {}
    for word in text.split():
        match = re.fullmatch(_FAULT, word)
        if match is None:
            raise ConfigError(
                "this is no fault of the form POINT=ACTION[@N][xM]",
                word,
                "see penstock chaos --points",
            )
        name, what, first, times = match.groups()
        # a pair that does not exist is not an error: its point just never fires
        if name.partition("/")[0] not in POINTS:
            raise ConfigError("there is no such crash point", name, "see penstock chaos --points")
        action, _, argument = what.partition(":")
        number = getattr(errno, argument, 0) if action == "error" else int(argument or 0)
        if action == "error" and not number:
            raise ConfigError(
                "the system knows no such error",
                argument,
                "write it as in error:ENOSPC; see penstock chaos --points",
            )
        found[name] = Fault(action, number, int(first or 1), int(times or 1))
    return found


def remark() -> str:
    """What a broker with armed points reports at its start; "" if no point is armed. It says so
    because somebody may have left the variable in the environment.
    """
    text = os.environ.get(VARIABLE, "")
    return f"{VARIABLE} is set, this broker fails on purpose: {text}" if text else ""


def _nothing(name: str, which: str = "") -> int:
    """An unarmed point. A separate function, so that it costs only the call."""
    return 0


def _from_environment() -> Faults | None:
    """The faults of this process. Raises ConfigError, at import: no process runs half armed."""
    text = os.environ.get(VARIABLE, "")
    return Faults(parse_faults(text), os.environ.get(FIRED_VARIABLE, "")) if text else None


# Decided once, at import: an unarmed point must cost one call, without reading the environment.
_faults = _from_environment()
crash_point = _faults.hit if _faults is not None else _nothing
