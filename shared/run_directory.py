"""The run directory: what the processes of one broker run share, and how others find it.

    <memory file system>/penstock-<run id>/   0700
        positions    the positions page            queues    the queue table
        pool         the transient store pool      *.ipc     the sockets
    STORE/penstock/run.json                        names all that, and the endpoints

It lies in /dev/shm, where it outlives every process but no reboot: after a crash of all processes
the next start finds there what was written and not yet committed. Where /dev/shm is too small it
lies in the temporary directory instead. This file does not know what is in the files.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

import msgspec

from penstock.shared.durable_files import replace_file
from penstock.shared.errors import ConnectError, StoreUnavailable
from penstock.shared.layout import StorePaths

_NAME = re.compile(r"penstock-[0-9a-f]{16}")
_MEMORY = Path("/dev/shm")


class Endpoints(msgspec.Struct, frozen=True):
    """Where clients connect: tcp for everybody, ipc for this machine."""

    produce: str
    consume: str
    produce_ipc: str
    consume_ipc: str


class Run(msgspec.Struct, frozen=True):
    """One run of a broker on a store."""

    run_id: str
    boot_id: str
    directory: str
    supervisor_pid: int
    started_ms: int
    endpoints: Endpoints
    pool_enabled: bool

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def positions(self) -> Path:
        return self.path / "positions"

    @property
    def queues(self) -> Path:
        return self.path / "queues"

    @property
    def pool(self) -> Path:
        return self.path / "pool"

    def socket(self, name: str) -> str:
        return f"ipc://{self.path / name}.ipc"


def boot_id() -> str:
    """What is different after each boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def new_run_directory(need_bytes: int) -> tuple[str, Path, str]:
    """(run id, the empty directory, a remark or ""). Takes the first place with enough room."""
    places = [_MEMORY, Path(tempfile.gettempdir())]
    refused = []
    for place in places:
        if not place.is_dir():
            refused.append(f"{place} is not there")
            continue
        room = os.statvfs(place)
        free = room.f_bavail * room.f_frsize
        if free < need_bytes:
            refused.append(f"{place} has {free >> 20} MiB free, {need_bytes >> 20} are needed")
            continue
        run_id = secrets.token_hex(8)
        directory = place / f"penstock-{run_id}"
        directory.mkdir(mode=0o700)
        remark = f"{refused[0]}: shared memory is in {place}" if refused else ""
        return run_id, directory, remark
    raise StoreUnavailable(
        "there is room for shared memory", "; ".join(refused), "free some, or make the pool smaller"
    )


def write_run(paths: StorePaths, run: Run) -> None:
    """Name the run in the store, so that the next start and other commands find it."""
    replace_file(paths.run, msgspec.json.encode(run))


def read_run(paths: StorePaths) -> Run | None:
    """The last run on this store, running or not; None when there was none."""
    try:
        return msgspec.json.decode(paths.run.read_bytes(), type=Run)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def survives(run: Run) -> bool:
    """Whether the run's shared memory is still that of this boot."""
    whole = all(path.is_file() for path in (run.positions, run.queues))
    return run.boot_id == boot_id() and whole and _NAME.fullmatch(run.path.name) is not None


def running(run: Run) -> bool:
    """Whether the run's supervisor is alive."""
    if not survives(run):
        return False
    try:
        command = Path(f"/proc/{run.supervisor_pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return command.rpartition(")")[2].split()[0] != "Z"


def find_running(store: Path) -> Run:
    """The running broker of this store. Raises ConnectError when there is none."""
    run = read_run(StorePaths(store))
    if run is None or not running(run):
        raise ConnectError(
            "a broker runs on this store",
            store.resolve(),
            f"start one: penstock up --store {store}",
        )
    return run


def remove_run_directory(run: Run) -> None:
    """Remove a run's shared memory. Does nothing when it is gone already."""
    if _NAME.fullmatch(run.path.name) and run.path.is_dir():
        shutil.rmtree(run.path)
