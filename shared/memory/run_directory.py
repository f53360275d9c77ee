"""The run directory: what the processes of one broker run share, and how others find it.

    <memory file system>/penstock-<run id>/   0700
        positions    the positions page            queues    the queue table
        pool         the transient store pool      *.ipc     the sockets
        store        the path of the store         alive     locked (shared) by each living actor
        ring-*       rings that producers fill
    STORE/penstock/run.json                        names all that, and the endpoints

It lies in /dev/shm, which survives the end of every process but not a reboot: after a crash of all
processes the next start finds there what was written and not yet committed. Where /dev/shm is too
small it lies in the temporary directory. This file does not know what is in the files.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.shared.errors import StoreLocked, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.files.durable import replace_file
from penstock.shared.layout import StorePaths
from penstock.shared.memory.process_state import process_state
from penstock.shared.memory.roster import ACTORS
from penstock.shared.wire.endpoint import MAX_IPC_PATH_BYTES

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(rf"penstock-{_RUN_ID.pattern}")
_MEMORY = Path("/dev/shm")
# The kernel kills the actors with their supervisor; one that waits for a disk ends later.
_GONE_TIMEOUT_MS = 30_000
# what a socket's longest path adds to the place; ZeroMQ and the kernel allow 107 bytes in all
_SOCKET_NAME_BYTES = len(f"/penstock-{'0' * 16}/bell-{max(ACTORS, key=len)}.ipc")
_NOWHERE = "/nonexistent/penstock"


class Endpoints(msgspec.Struct, frozen=True):
    """Where clients connect: tcp for everybody, ipc for this user on this machine.

    The roster names these fields, to say which actor serves which. "" where no such
    actor runs.
    """

    produce: str
    consume: str
    produce_ipc: str
    consume_ipc: str
    group: str = ""
    group_ipc: str = ""
    transaction: str = ""
    transaction_ipc: str = ""
    name_server: str = ""
    remoting: str = ""
    remoting_vip: str = ""
    # http://HOST:PORT, for browsers and Prometheus
    monitor: str = ""

    @property
    def store_port(self) -> int:
        """The broker's port in stored messages, and so in their ids. Clients of RocketMQ look
        messages up there, if the broker serves them."""
        return int((self.remoting or self.produce).rpartition(":")[2])


class Run(msgspec.Struct, frozen=True):
    """One run of a broker on a store.

    It is read from run.json, which is copied with a store and outlives its run. So it proves
    nothing by itself: `survives`, `running` and the store's lock say what is still true.
    """

    run_id: str  # 16 random hex digits; no two runs share one
    boot_id: str  # the run's memory is gone in any other boot
    directory: str
    supervisor_pid: int  # may be another process's by now
    started_ms: int  # Unix time
    endpoints: Endpoints
    pool_enabled: bool  # if not, the writer stored straight into segments

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

    @property
    def clean_request(self) -> Path:
        """Exists while somebody wants the cleaner to start at once. The cleaner removes it."""
        return self.path / "clean-request"

    def socket(self, name: str) -> str:
        return f"ipc://{self.path / name}.ipc"


def ask_to_clean(run: Run, how: bytes = b"") -> None:
    """Have the cleaner look for expired files at once. Raises OSError."""
    asked = run.clean_request.with_name(f"{run.clean_request.name}.{os.getpid()}")
    asked.write_bytes(how)
    asked.replace(run.clean_request)


def boot_id() -> str:
    """An id that differs after each boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def new_run_directory(store: Path, need_bytes: int) -> tuple[str, Path, str]:
    """(run id, the new directory, a remark or ""). Takes the first place with enough room.

    `need_bytes` have to be free there. Raises StoreUnavailable, with the reason for each place.
    """
    refused = []
    for place in _places():
        if not place.is_dir():
            refused.append(f"{place} is not there")
            continue
        if len(os.fsencode(place)) + _SOCKET_NAME_BYTES > MAX_IPC_PATH_BYTES:
            refused.append(f"{place} is too long a path for sockets")
            continue
        room = os.statvfs(place)
        free = room.f_bavail * room.f_frsize
        if free < need_bytes:
            refused.append(f"{place} has {free >> 20} MiB free, {need_bytes >> 20} are needed")
            continue
        run_id = os.urandom(8).hex()
        directory = place / f"penstock-{run_id}"
        directory.mkdir(mode=0o700)
        # The first file: if this start is killed, the next one sees by it whose directory this is.
        (directory / "store").write_bytes(_identity(store))
        remark = f"{refused[0]}: shared memory is in {place}" if refused else ""
        return run_id, directory, remark
    raise StoreUnavailable(
        "there is no room for shared memory",
        "; ".join(refused),
        "free some, or make the pool smaller: penstock up --set transient_store_pool_bytes=BYTES",
    )


def _places() -> tuple[Path, ...]:
    return _MEMORY, Path(os.environ.get("TMPDIR") or "/tmp")


def _run_directories() -> Iterator[Path]:
    """Paths with a run directory's name. Others may be thousands, so no path is made of those."""
    for place in _places():
        with suppress(OSError):  # the place does not exist, or may not be read
            yield from [place / name for name in os.listdir(place) if _NAME.fullmatch(name)]


def run_places(run_id: str) -> list[Path]:
    """Where that run's directory may be on this machine; nowhere if it is no run's id."""
    if not _RUN_ID.fullmatch(run_id):
        return []
    return [place / f"penstock-{run_id}" for place in _places()]


def find_store(run_id: str) -> Path:
    """The store of that run, if both are on this machine and this user's.

    Raises StoreUnavailable where they are not: the broker is on another machine, in a container of
    its own, or another user's.
    """
    refused: object = "no such run directory"
    for directory in run_places(run_id):
        try:
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                refused = f"{directory} is another user's"
                continue
            store = Path(os.fsdecode((directory / "store").read_bytes()))
            run = read_run(StorePaths(store))
        except OSError as error:
            refused = error
            continue
        if run is not None and run.run_id == run_id:
            return store
        # Without this check, a store at the same path in another container would pass.
        refused = f"the store in {store} is another one"
    raise StoreUnavailable("the broker's store is not on this machine", refused)


def abandoned_runs() -> list[Path]:
    """Run directories of this user that nothing can use again: their store is gone, and none of
    their actors lives. A start removes those of its own store; without the store none will come.
    """
    return list(filter(_abandoned, _run_directories()))


def run_stores() -> list[Path]:
    """The stores that this user's run directories name, whether anything runs on them or not."""
    return sorted({Path(os.fsdecode(each)) for each in map(_store_of, _run_directories()) if each})


def _store_of(directory: Path) -> bytes | None:
    """The store that a run directory of this user names."""
    with suppress(OSError):  # it was just removed, or is not a run's directory
        mode = directory.lstat()
        if stat.S_ISDIR(mode.st_mode) and mode.st_uid == os.geteuid():
            return (directory / "store").read_bytes()
    return None


def _abandoned(directory: Path) -> bool:
    try:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        # the store is made before its run directory, and locked by the start that makes it
        if os.path.lexists(os.fsdecode((directory / "store").read_bytes())):
            return False
        handle = os.open(directory / "alive", os.O_RDWR)
    except FileNotFoundError:
        # Without `store` it is just being made, or its removal was killed at the last step. The two
        # look the same, so it stays. Without `alive` no actor has begun.
        return (directory / "store").exists()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _identity(store: Path) -> bytes:
    return os.fsencode(store.resolve())


def remove_strays(store: Path, last_run: Run | None) -> None:
    """Remove this store's run directories that no run.json names: those of starts that were killed.

    The caller holds the store's lock, so no such start is still at work.
    """
    named, identity = last_run and last_run.path, _identity(store)
    for directory in _run_directories():
        if directory != named and _store_of(directory) == identity:
            with suppress(FileNotFoundError):  # another store's broker has removed it
                remove_directory(directory)


def join_run(run: Run) -> int:
    """Count as alive in this run until the descriptor closes, as it also does when we die."""
    handle = os.open(run.path / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    # Shared: actors do not wait for each other; only a start waits for all of them.
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def await_actors_gone(run: Run) -> None:
    """Return when no actor lives of a run whose supervisor is dead.

    Until then one of them could still write. Raises StoreLocked when that takes too long.
    """
    try:
        handle = os.open(run.path / "alive", os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        deadline = time.monotonic() + _GONE_TIMEOUT_MS / 1000
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreLocked(
                        "an actor of the last run is still alive",
                        f"it holds {run.path / 'alive'} for {_GONE_TIMEOUT_MS} ms now",
                        "it waits for a disk, or was not killed with its supervisor; find it: "
                        f"fuser -v {run.path / 'alive'}",
                    ) from None
            time.sleep(0.002)
    finally:
        os.close(handle)


def write_run(paths: StorePaths, run: Run) -> None:
    """Name the run in the store, so that the next start and other commands find it.

    Call it before `abort` names this process: a run that `abort` does not name has written nothing.
    """
    replace_file(paths.run, msgspec.json.encode(run))


_decoder: msgspec.json.Decoder[Run] = msgspec.json.Decoder(Run)


def read_run(paths: StorePaths) -> Run | None:
    """The last run on this store, running or not; None if it has had no run."""
    try:
        run = _decoder.decode(read_file(paths.run))
        return run if b"\0" not in os.fsencode(run.directory) else None
    # invalid paths and invalid text are ValueErrors
    except (FileNotFoundError, NotADirectoryError, ValueError, msgspec.DecodeError, RecursionError):
        return None


def read_last_run(paths: StorePaths) -> Run | None:
    """The last run, for the process that has the store's lock and may take and remove its memory.

    A store may come from elsewhere, and its run.json may name any directory. That directory counts
    only if it was made for this store, by this user or the store's owner; otherwise the store has
    no memory here. The memory of a copied store is the original's, which may need it.
    """
    run = read_run(paths)
    if run is None or not os.path.lexists(run.path) or _is_of(paths, run):
        return run
    return msgspec.structs.replace(run, directory=_NOWHERE)


def _is_of(paths: StorePaths, run: Run) -> bool:
    """Whether the run's directory, which exists, belongs to this store."""
    found = run.path.lstat()  # not what a link leads to, which may be any directory
    if not (_NAME.fullmatch(run.path.name) and stat.S_ISDIR(found.st_mode)):
        return False
    if found.st_uid not in (os.geteuid(), paths.root.stat().st_uid):
        return False
    try:
        mark = (run.path / "store").read_bytes()
    except FileNotFoundError:
        return not any(run.path.iterdir())  # a removal was killed at its last step
    named = Path(os.fsdecode(mark))
    if not os.path.lexists(named):  # the store was moved
        return run.path.parent in _places()
    return mark == _identity(paths.root) or named.samefile(paths.root)


def original_of(paths: StorePaths, run: Run) -> Path | None:
    """The store that this one was copied from, with the run that its run.json names.

    None for a store that is not a copy; a store that was moved is not one.
    """
    try:
        named = Path(os.fsdecode((run.path / "store").read_bytes()))
        other = read_run(StorePaths(named))
        if other is None or other.run_id != run.run_id or os.path.samefile(named, paths.root):
            return None
    except OSError:
        return None  # the memory is gone, or nothing is left where the store was
    return named


def survives(run: Run) -> bool:
    """Whether the run's shared memory is still that of this boot."""
    # A removal takes `positions` first, so one that was killed leaves nothing that seems whole.
    whole = all(path.is_file() for path in (run.positions, run.queues))
    return run.boot_id == boot_id() and whole and _NAME.fullmatch(run.path.name) is not None


def running(run: Run) -> bool:
    """Whether the run's supervisor is alive, or another process that has its pid by now.

    To be sure, also ask for the holder of the store's lock: see find_broker.py.
    """
    if not survives(run):
        return False
    try:
        # a zombie has ended and lost its lock; only its parent has not reaped it yet
        return process_state(run.supervisor_pid) != "Z"
    except FileNotFoundError:
        return False


def remove_run_directory(run: Run) -> None:
    """Remove a run's shared memory. Does nothing when it is gone already.

    If it is killed half way, no start takes the rest for a run's memory, and the next removes it.
    """
    if _NAME.fullmatch(run.path.name) and run.path.is_dir() and not run.path.is_symlink():
        remove_directory(run.path)


def remove_directory(directory: Path) -> None:
    """Remove a run directory. What makes it whole goes first, what names its store goes last."""
    names = {path.name for path in directory.iterdir()}
    for name in sorted(names, key=lambda name: (name != "positions", name == "store", name)):
        (directory / name).unlink()
        crash_point("run.mid_removal")
    directory.rmdir()
