"""Which broker runs on a store: what its run.json says, compared with who has the store's lock.

    no such directory | a file | no store in it | a store no broker has run on | one whose broker
    was stopped, killed, or went down with the machine | one whose broker cannot be reached from
    here | one that another program has locked | one whose broker runs

run.json alone is no proof: it outlives its run, its pid may be another process's by now, and it is
copied with the store. The kernel keeps the lock by inode: the lock follows a store that is moved,
does not follow a copy, and goes with the process. The caller may read; this file changes nothing.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import struct
import time
from pathlib import Path

from penstock.shared.errors import ConnectError, NotRunning, PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import ACTORS
from penstock.shared.memory.run_directory import (
    Run,
    boot_id,
    original_of,
    read_run,
    run_stores,
    running,
    survives,
)
from penstock.shared.next_steps import quoted

# struct flock: type, whence, start, length, pid
_FLOCK = struct.Struct("@hhqqi4x")
UNSEEN = 0


def find_running(store: Path) -> Run:
    """The running broker of this store. Raises ConnectError, with what was found, and next steps.

    Raises NotRunning where waiting may help. A broker runs where two witnesses agree: the process
    that run.json names lives, and it has the lock, or the lock's holder cannot be seen. That was
    true a moment ago: the caller still has to cope with a broker that does not answer.
    """
    paths = StorePaths(store)
    try:
        _check_store(paths)
        run, holder = _look(paths)
    except PermissionError as error:
        raise ConnectError(
            "the store is another user's",
            f"{error.filename}: {error.strerror}",
            "become that user, or connect to its broker's tcp:// endpoint",
        ) from None
    if run is not None and run.supervisor_pid == os.getpid():
        return run  # closing the lock's file after a look would release our own lock
    # If nobody has the lock, or another process, the pid in run.json is not the broker's any more.
    if run is not None and running(run) and (holder == run.supervisor_pid or holder == UNSEEN):
        return run
    # A copied store has its original's run.json but no lock; perhaps the original was meant.
    if holder is None and run is not None and (original := original_of(paths, run)) is not None:
        raise NotRunning(
            "no broker runs on this store",
            f"{paths.root.absolute()}: it is a copy of {original}, and has had none since",
            f"start it: {up_command(paths.root)}. If the original was meant: --store {original}",
        )
    if holder is not None:
        raise _another(paths, run, holder)
    raise _stopped(paths, run)


def running_stores() -> list[Path]:
    """The stores of this user's brokers that run on this machine."""
    found = []
    for store in run_stores():
        try:
            find_running(store)
        except (PenstockError, OSError):
            continue  # a killed run's leftover, a broker that is starting, or another version's
        found.append(store)
    return found


def lock_holder(lock: Path) -> int | None:
    """The process that has the store's lock; UNSEEN if it runs on another machine or in another
    container; None when nobody has the lock.

    Not for a lock of this process: closing the file would release it. It asks about the byte that
    RocketMQ locks, and locks nothing, so a look never keeps a broker from starting. Raises OSError;
    PermissionError where the store is another user's.
    """
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    finally:
        os.close(handle)
    # The kernel says 0 for a process of another pid namespace, and less where it cannot name one.
    return None if kind == fcntl.F_UNLCK else max(pid, UNSEEN)


def up_command(store: Path) -> str:
    """The command that starts a broker on this store."""
    return f"penstock up --store {quoted(store)}"


def _look(paths: StorePaths) -> tuple[Run | None, int | None]:
    """The last run and the lock's holder. Does not open a lock that this process has itself."""
    run = read_run(paths)
    if run is not None and run.supervisor_pid == os.getpid() and running(run):
        return run, run.supervisor_pid
    return run, lock_holder(paths.lock)


def _check_store(paths: StorePaths) -> None:
    """Raise ConnectError where there is no store: NotRunning where one may still come, which is
    everywhere except at a file.
    """
    root = paths.root
    start = f"start a broker there: {up_command(root)}"
    if not root.exists():
        raise NotRunning("there is no such directory", root.absolute(), start)
    if not root.is_dir():
        raise ConnectError("this is a file, and no store", root.absolute(), "name a directory")
    if not paths.commit_log.is_dir() and not paths.run.exists():
        raise NotRunning("there is no store in this directory", root.absolute(), start)


def _another(paths: StorePaths, run: Run | None, holder: int) -> ConnectError:
    """The error for a store whose lock somebody has, without a broker that can be talked to."""
    root = paths.root.absolute()
    if holder == UNSEEN:
        where = (
            "" if run is None else f"; it said {run.endpoints.produce} and {run.endpoints.consume}"
        )
        return NotRunning(
            "a broker runs on this store that cannot be seen from here",
            f"{root} is locked by a process of another container or machine{where}",
            "connect to one of its tcp:// endpoints",
        )
    if run is not None and run.supervisor_pid == holder:
        return NotRunning(
            "the broker of this store has lost its shared memory, or keeps it out of sight",
            f"{root}: process {holder}, {run.directory}",
            f"connect to {run.endpoints.produce} or {run.endpoints.consume}",
        )
    return NotRunning(
        "no broker is ready on this store, and a process has it locked",
        f"{root}: process {holder}, {_name(holder)}",
        "a broker that is starting has it so: wait for its line `ready`. Another program, a "
        "RocketMQ or a repair, has to end first",
    )


def _stopped(paths: StorePaths, run: Run | None) -> NotRunning:
    """The error where no process has the lock. It says how and when the last broker ended."""
    root, hint = paths.root.absolute(), f"start it: {up_command(paths.root)}"
    if run is None:
        return NotRunning("no broker runs on this store, or has run on it", root, hint)
    if not paths.abort.exists():
        # an orderly stop removes `abort`, which changes the directory's time
        when = _time(paths.root.stat().st_mtime)
        return NotRunning("no broker runs on this store", f"{root}: it was stopped at {when}", hint)
    # `abort` is there: killed processes leave their shared memory, and a reboot clears it
    if run.boot_id == boot_id():
        how = f"its broker (pid {run.supervisor_pid}) was killed"
        when = f"at about {_time(_last_beat(run))}" if survives(run) else ""
    else:
        how, when = "its broker ran on another machine, or until this one went down", ""
    when = when or f"after {_time(_last_write(paths, run))}"
    hint += ". That recovers what it had taken"
    return NotRunning("no broker runs on this store", f"{root}: {how}, {when}", hint)


def _last_beat(run: Run) -> float:
    """When an actor of a run of this boot last moved, as Unix time.

    Heartbeats are on the monotonic clock, so they can be converted only in the same boot. If the
    clock was set since, the result is off by as much; the message says "about".
    """
    positions = Positions(run.positions)
    try:
        beat_ms = max(positions.life(name).heartbeat_ms for name in ACTORS)
    finally:
        positions.close()
    return time.time() - time.monotonic() + beat_ms / 1000


def _last_write(paths: StorePaths, run: Run) -> float:
    """The latest Unix time at which the broker surely lived: the newest trace on the disk."""
    found = [path.stat().st_mtime for path in (paths.checkpoint, paths.run) if path.exists()]
    return max([run.started_ms / 1000, *found])


def _time(at_s: float) -> str:
    return dt.datetime.fromtimestamp(at_s).isoformat(" ", "seconds")


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone by now"
    shown = " ".join(" ".join(os.fsdecode(word) for word in words).split())
    # the kernel's own processes have no command line
    return shown[:120] or "a kernel's process"
