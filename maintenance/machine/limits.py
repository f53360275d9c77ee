"""What a shell, systemd or a container allows a broker's processes: files, processes, memory.

The judgements are pure: the limit and the present use are arguments, so any caller gets the same.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.maintenance.machine.need import FINE, WARNING, Check
from penstock.shared.config import Config

# Each queue's segment is a file, and so is each client.
_ENOUGH_FILES = 4096
# Tasks, as the kernel calls processes and threads: a broker has 13 processes of 4 threads each.
_BROKER_TASKS = 100
# An actor maps this many segments of the log at once, and needs these bytes besides.
_SEGMENTS, _OTHER_BYTES = 4, 2 << 30
_CAP_IPC_LOCK, _CAP_SYS_RESOURCE = 14, 24
_GROUPS = Path("/sys/fs/cgroup")


def check_limits(config: Config, container: Path = _GROUPS) -> Iterator[Check]:
    """All checks; that of locked memory only if a broker of this configuration locks some."""
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield processes(_most_tasks(container), _own_tasks())
    if config.warm_mapped_file_enable and not config.transient_store_pool_enable:
        # the soft limit applies: nothing raises it
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        is_held = not _may(_CAP_IPC_LOCK)
        yield locked_memory(most if is_held else resource.RLIM_INFINITY, config)
    yield address_space(resource.getrlimit(resource.RLIMIT_AS)[0], config)


def open_files(most: int) -> Check:
    if most == resource.RLIM_INFINITY:
        return Check("open files", FINE, "no limit")
    found = f"at most {most} for a process"
    if most >= _ENOUGH_FILES:
        return Check("open files", FINE, found)
    remedy = f"raise it: ulimit -n {_ENOUGH_FILES}, LimitNOFILE= of systemd, --ulimit of Docker"
    return Check("open files", WARNING, found, remedy)


def processes(most: int, there: int) -> Check:
    """`there` is the number of present tasks, `most` the number allowed."""
    if most == resource.RLIM_INFINITY:
        return Check("processes", FINE, f"no limit, {there} threads are there")
    found = f"at most {most} with their threads, {there} are there"
    if most - there >= _BROKER_TASKS:
        return Check("processes", FINE, found)
    remedy = (
        f"a broker takes up to {_BROKER_TASKS}: ulimit -u, TasksMax= of systemd, "
        "--pids-limit of Docker"
    )
    return Check("processes", WARNING, found, remedy)


def locked_memory(most: int, config: Config) -> Check:
    needed = 2 * config.mapped_file_size_commit_log_bytes
    if most == resource.RLIM_INFINITY:
        return Check("locked memory", FINE, "no limit")
    found = f"at most {most >> 20} MiB for a process"
    if most >= needed:
        return Check("locked memory", FINE, found)
    remedy = (
        f"segments are not locked below {needed >> 20} MiB: ulimit -l {needed >> 10}, "
        "LimitMEMLOCK= of systemd, --ulimit memlock= of Docker"
    )
    return Check("locked memory", WARNING, found, remedy)


def address_space(most: int, config: Config) -> Check:
    if most == resource.RLIM_INFINITY:
        return Check("address space", FINE, "no limit")
    needed = _SEGMENTS * config.mapped_file_size_commit_log_bytes + _OTHER_BYTES
    found = f"at most {most >> 20} MiB for a process"
    if most >= needed:
        return Check("address space", FINE, found)
    remedy = (
        f"files are mapped, which takes {needed >> 20} MiB: ulimit -v unlimited, or smaller "
        "segments (mapped_file_size_commit_log_bytes)"
    )
    return Check("address space", WARNING, found, remedy)


def _most_tasks(container: Path) -> int:
    """The lower of this user's and this container's limits."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    found = [] if most == resource.RLIM_INFINITY or _may(_CAP_SYS_RESOURCE) else [most]
    try:
        text = (container / "pids.max").read_text().strip()
        found += [int(text)] if text.isdecimal() else []
    except OSError:
        pass  # the machine's own group has no limit, and cgroups before 2016 are elsewhere
    return min(found, default=resource.RLIM_INFINITY)


def _own_tasks() -> int:
    """Threads of this user's processes; in a container those that it sees."""
    own, count = os.getuid(), 0
    for process in psutil.process_iter():
        try:
            if process.uids().real == own:
                count += process.num_threads()
        except psutil.Error:
            pass  # it has ended, or is not shown
    return count


def _may(capability: int) -> bool:
    """Whether this process has the capability, so that the limit does not apply to it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(found, 16) >> capability & 1)
