"""Named points in the product where a process can be made to fail, so that every state a crash can
leave is met by a test. Unarmed, a point is a call of a function that does nothing.

    PENSTOCK_FAULTS="flush.after_msync_before_cursor=crash@3 commit.before_cursor=delay:50@1x20"
    PENSTOCK_FAULTS_FIRED=/tmp/fired

    <point>=<action>[@N][xM]    from the Nth time on that a process passes the point (1), M times
                                in all processes together (1)
    crash                       this process is killed, as by kill -9
    stop                        it is stopped, as by kill -STOP
    delay:MS                    it sleeps
    error:ENOSPC                the point raises that OSError
    yes:PERCENT                 the point says yes so often; its sentence below says to what

Each firing is a line in the file that PENSTOCK_FAULTS_FIRED names, which also counts them across
processes; without the file each process counts for itself. Processes take the environment as it
was when the first of them began. This file knows no actor.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import signal
import time
from typing import NamedTuple

from penstock.shared.errors import ConfigError

VARIABLE, FIRED_VARIABLE = "PENSTOCK_FAULTS", "PENSTOCK_FAULTS_FIRED"

# What a process has done, and not yet done, when it passes the point.
POINTS: dict[str, str] = {
    "bell.lost": "a doorbell is not rung",
    "bell.repeated": "a doorbell is rung twice",
    "alloc.before_fallocate": "nothing of the next segment is there",
    "alloc.after_fallocate": "the segment has its size, and no name in commitlog/ yet",
    "alloc.after_dirfsync": "the segment's name is durable, `allocated` is not moved",
    "alloc.publish": "`allocated` is moved, the writer has not heard of it",
    "write.before_reserve": "the frame is checked, nothing of it is stored",
    "write.mid_record": "some of the frame's bytes stand behind `wrote`",
    "write.end_of_file_blank": "a blank closes the segment, the next one has nothing yet",
    "write.before_publish": "all bytes stand behind `wrote`",
    "write.publish": "`wrote` is moved, nobody has heard of it",
    "commit.before_cursor": "the bytes are in the segment file, `committed` is not moved",
    "commit.after_cursor": "`committed` is moved, nobody has heard of it",
    "flush.before_msync": "the bytes are committed and not on disk",
    "flush.roll": "one segment is on disk, the one behind it is not",
    "flush.after_msync_before_cursor": "the bytes are on disk, `flushed` is not moved",
    "flush.after_cursor_before_ack": "`flushed` is moved, the writer has not heard of it",
    "reput.before_cq": "records are read, no entry of them is written",
    "reput.mid_cq": "some queues have their entries, others do not",
    "reput.after_cq_before_index": "the queues have their entries, the index has not",
    "reput.after_index_before_cursor": "all is written, `dispatched` is not moved",
    "reput.new_cq_file": "a new file of a queue is about to be made",
    "ckpt.before": "the checkpoint is about to be written",
    "ckpt.mid": "the checkpoint is written and not on disk",
    "ckpt.after": "the checkpoint is on disk",
    "recover.after_scan": "a start knows the log's end and has changed nothing",
    "recover.before_truncate": "a start is about to cut what is behind the end",
    "recover.after_truncate": "what was behind the end is gone",
    "recover.after_cq_fix": "queues and index are cut, the positions are not made",
    "clean.after_publish": "`log_start` is moved, the files are still there",
    "clean.after_unlink": "one expired file is gone",
    "file.tmp_written": "a small file's new content is durable under another name",
    "file.renamed": "it has its name, which is not durable",
    "sup.before_kill_old": "an actor does not move, and is not killed yet",
    "sup.after_spawn": "an actor is forked, and the page does not name it",
    "shutdown.before_abort_removed": "everything is on disk, `abort` is still there",
}

_FAULT = re.compile(
    r"([a-z_.0-9]+)=(crash|stop|delay:\d{1,6}|yes:\d{1,3}|error:E[A-Z0-9]+)(?:@(\d+))?(?:x(\d+))?"
)


class Fault(NamedTuple):
    """What happens at a point: from the `first` time on, `times` times."""

    action: str
    argument: int
    first: int
    times: int


class Faults:
    """The armed points of one process."""

    def __init__(self, armed: dict[str, Fault], fired: str) -> None:
        self._armed = armed
        self._file = fired
        self._passed = dict.fromkeys(armed, 0)
        self._fired = dict.fromkeys(armed, 0)

    def hit(self, name: str) -> bool:
        """Pass a point; whether it says yes."""
        fault = self._armed.get(name)
        if fault is None:
            return False
        self._passed[name] += 1
        if self._passed[name] < fault.first:
            return False
        if fault.action == "yes":
            return random.random() * 100 < fault.argument
        if self._may_fire(name, fault.times):
            _fail(fault, name)
        return False

    def _may_fire(self, name: str, times: int) -> bool:
        """Whether it has not fired often enough yet; if so, this firing is counted."""
        if not self._file:
            self._fired[name] += 1
            return self._fired[name] <= times
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            lines = os.pread(handle, os.fstat(handle).st_size, 0).split(b"\n")
            if sum(line.split(b" ")[0] == name.encode() for line in lines) >= times:
                return False
            os.write(handle, f"{name} {os.getpid()}\n".encode())
            return True
        finally:
            os.close(handle)


def _fail(fault: Fault, name: str) -> None:
    if fault.action == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "delay":
        time.sleep(fault.argument / 1000)
    else:
        raise OSError(fault.argument, f"{os.strerror(fault.argument)} (asked for at {name})")


def parse_faults(text: str) -> dict[str, Fault]:
    """The faults of a specification. Raises ConfigError for what is none, or an unknown point."""
    found: dict[str, Fault] = {}
    for word in text.split():
        match = _FAULT.fullmatch(word)
        if match is None:
            raise ConfigError("a fault is POINT=ACTION[@N][xM]", word, "see penstock chaos --help")
        name, what, first, times = match.groups()
        if name not in POINTS:
            raise ConfigError("a crash point that there is", name, "see penstock chaos --points")
        action, _, argument = what.partition(":")
        number = getattr(errno, argument, 0) if action == "error" else int(argument or 0)
        if action == "error" and not number:
            raise ConfigError("an error that the system knows", argument, "as in error:ENOSPC")
        found[name] = Fault(action, number, int(first or 1), int(times or 1))
    return found


def _nothing(name: str) -> bool:
    """An unarmed point."""
    return False


def _from_environment() -> Faults | None:
    text = os.environ.get(VARIABLE, "")
    return Faults(parse_faults(text), os.environ.get(FIRED_VARIABLE, "")) if text else None


_faults = _from_environment()
crash_point = _faults.hit if _faults is not None else _nothing
