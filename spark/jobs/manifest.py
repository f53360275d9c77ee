"""What an archive holds: one file for each run that has added to it, written last.

    ARCHIVE/topic=orders/day=2026-11-23/000001-00000.parquet     messages
    ARCHIVE/_penstock/archive.json                               which archive this is
    ARCHIVE/_penstock/run-000001.json                            what a run has added
    ARCHIVE/_penstock/staging/                                   files of a run under way

A run writes its files into staging, moves them to their places, and names them in its own file,
which gets its name last. So files that no run names were left by a run that was killed. The next
run removes them before it adds anything, so that no message is there twice. Readers skip names that
begin with _.

Knows nothing of stores, or of what is in a message.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from penstock.shared.errors import ConfigError, StoreDamaged, StoreLocked
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import make_directory, replace_file, sync_directory
from penstock.shared.next_steps import quoted

VERSION = 1
_RUN = re.compile(r"run-(\d{6})\.json")

# queue id, and consecutive offsets [start, stop) of that queue
Stretch = tuple[int, int, int]


class ArchiveFile(msgspec.Struct, frozen=True):
    """One Parquet file. `stretches` are its rows, in their order. `digest` is the 16-byte BLAKE2b
    of the file's bytes, in hex."""

    path: str  # from the archive's directory
    topic: str
    day: str
    rows: int
    size_bytes: int
    digest: str
    stretches: list[Stretch]


def digest_of(path: Path) -> str:
    """The digest of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class ArchivedQueue(msgspec.Struct, frozen=True):
    """The offsets [start, stop) of a queue that a run has archived.

    `holes` are offsets among them whose messages the store has lost. `position` is the log offset
    of the last message, -1 if that is lost; it tells the queue from another one of the same name.
    """

    topic: str
    queue_id: int
    start: int
    stop: int
    position: int
    holes: list[tuple[int, int]] = []


class Run(msgspec.Struct, frozen=True):
    """What one run has added."""

    version: int
    number: int
    files: list[ArchiveFile]
    queues: list[ArchivedQueue]


class _Identity(msgspec.Struct, frozen=True):
    version: int
    id: str


T = TypeVar("T", Run, _Identity)


class Manifest:
    """The runs of an archive, in their order."""

    def __init__(self, root: Path) -> None:
        """Raises ConfigError if there is no archive, StoreDamaged, OSError."""
        self.root = root
        self._own = root / "_penstock"
        self.staging = self._own / "staging"
        self.id = _decoded(self._own / "archive.json", _Identity).id
        numbers = sorted(
            int(found[1]) for name in os.listdir(self._own) if (found := _RUN.fullmatch(name))
        )
        if numbers != list(range(1, len(numbers) + 1)):
            missing = sorted(set(range(1, numbers[-1])) - set(numbers))
            raise StoreDamaged(
                "the archive has lost the list of a run",
                f"{self._own}: {', '.join(_run_name(number) for number in missing)}",
                "bring it back from a copy of the archive",
            )
        self.runs = [_decoded(self._own / _run_name(number), Run) for number in numbers]

    @property
    def files(self) -> list[ArchiveFile]:
        return [file for run in self.runs for file in run.files]

    @property
    def next_number(self) -> int:
        return len(self.runs) + 1

    def last_of(self) -> dict[tuple[str, int], ArchivedQueue]:
        """Each queue, as the last run that added to it left it."""
        return {(each.topic, each.queue_id): each for run in self.runs for each in run.queues}

    def clear(self) -> None:
        """Remove what a killed run has left. Its messages are still in the store, else planning
        this run would have failed. Raises OSError, and StoreDamaged if the files are those of a
        finished run whose list is lost."""
        left = [*self.root.glob(f"topic=*/day=*/{self.next_number:06d}-*.parquet")]
        # A run keeps its staging until its list is written, and this method until the files left by
        # a killed run are gone. So files without staging are those of a finished run.
        if left and not self.staging.exists():
            raise StoreDamaged(
                "the archive has lost the list of its last run",
                f"{self._own / _run_name(self.next_number)}, with {len(left)} files",
                "bring it back from a copy of the archive, or remove the files, whose messages may "
                "be nowhere else",
            )
        for path in left:
            path.unlink()
        for directory in {path.parent for path in left}:
            sync_directory(directory)
        if self.staging.exists():
            shutil.rmtree(self.staging)

    def place(self, staged: Path, path: str) -> None:
        """Move a durable file from staging to its place. Its name is not durable before `add`."""
        make_directory((self.root / path).parent)
        staged.rename(self.root / path)
        crash_point("archive.moved")

    def add(self, run: Run) -> None:
        """Name a run and its files, which are in their places; durable on return."""
        for directory in {(self.root / file.path).parent for file in run.files}:
            sync_directory(directory)
        crash_point("archive.placed")
        replace_file(self._own / _run_name(run.number), msgspec.json.encode(run))
        self.runs.append(run)
        crash_point("archive.listed")
        self.clear()


def file_path(topic: str, day: str, run: int, part: int) -> str:
    """The place of a file of messages, relative to the archive's directory. Raises ConfigError if
    the topic's name is too long for a directory's."""
    # Spark and Hive quote characters that a path cannot have in the same way
    directory = f"topic={quote(topic, safe='|')}"
    if len(directory) > 255:
        raise ConfigError(
            "the topic's name is too long for an archive", topic, "leave it out with --topics"
        )
    return f"{directory}/day={day}/{run:06d}-{part:05d}.parquet"


@contextmanager
def archive_to_write(root: Path) -> Iterator[Manifest]:
    """An archive that nobody else changes meanwhile; a new one if there is nothing.

    Raises StoreLocked, ConfigError, StoreDamaged, OSError.
    """
    own = root / "_penstock"
    if not own.is_dir() and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError("what stands there is no archive", root, "name a new directory")
    make_directory(own)
    handle = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreLocked(
                "another job writes into the archive", root, "wait until it is done"
            ) from None
        if not (own / "archive.json").exists():
            identity = _Identity(VERSION, uuid.uuid4().hex[:16])
            replace_file(own / "archive.json", msgspec.json.encode(identity))
        yield Manifest(root)
    finally:
        os.close(handle)


def _run_name(number: int) -> str:
    return f"run-{number:06d}.json"


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no archive",
            path.parent.parent,
            f"make one: penstock spark archive STORE {quoted(path.parent.parent)}",
        ) from error
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            "the list of what an archive holds cannot be read",
            f"{path}: {error}",
            "bring it back from a copy of the archive",
        ) from error
    if found.version != VERSION:
        raise ConfigError(
            "the archive is of another version",
            f"{path}: {found.version}, and not {VERSION}",
            "go on with the version that wrote it",
        )
    return found
