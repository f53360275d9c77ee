"""Making, replacing and cutting files so that a crash leaves the old state or the new one.

Every function here says what is durable when it returns. A new file is readable only by its owner;
an existing file, or one that somebody has made readable, keeps its mode. The callers decide when to
sync: they batch it, and only they know what an acknowledgement waits for.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.shared.faults import crash_point
from penstock.shared.files.bad_sectors import FILL, read_at
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.layout import PAGE_BYTES

# Errors of a full disk, a quota and a limit on file sizes.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OWN_FILE, OWN_DIRECTORY = 0o600, 0o700
# Among the allocator's files in staging, those that were segments have names that begin so.
EXPIRED = "commitlog-expired-"
_ZEROS = bytes(1 << 20)
_HERE, _RENAME_EXCHANGE = -100, 2  # Linux's AT_FDCWD and flag
_OF_IMAGE = "a directory of a container's image cannot be renamed; change a copy (cp -a)"
_WRITE = 2  # Linux's SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None, use_errno=True)


class FlushFailed(OSError):
    """A sync has failed. The kernel reports that once and then treats the pages as clean, so a
    second sync can succeed although nothing was written. It must not be retried."""


def sync_file(handle: int) -> None:
    """Make a file's bytes durable. Raises FlushFailed."""
    try:
        os.fdatasync(handle)
    except OSError as error:
        raise FlushFailed(error.errno, error.strerror) from error


def begin_writing(handle: int) -> None:
    """Have the kernel begin to write a file's bytes out. Makes nothing durable, waits for nothing.

    If this is called for many files before the first of them is synced, their writes overlap and
    one journal commit can cover them all. It is only a hint, so its result is ignored: the sync
    reports a write that fails.
    """
    _libc.sync_file_range(handle, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises FlushFailed, OSError where it is not there."""
    handle = take_descriptor(lambda: os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    try:
        os.fsync(handle)
    except OSError as error:
        raise FlushFailed(error.errno, error.strerror, str(directory)) from error
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents; their names are durable on return.

    An empty directory may not be durable yet: its maker may have died before it synced the parent.
    One with something in it is durable, because nothing is put into a directory before its parent
    has been synced. Raises OSError, and then leaves no directory that it made.
    """
    is_new = not directory.is_dir()
    if not is_new and take_descriptor(lambda: os.listdir(directory)):
        return
    if is_new:
        make_directory(directory.parent)
        directory.mkdir(OWN_DIRECTORY, exist_ok=True)
    try:
        sync_directory(directory.parent)
    except OSError as error:
        if is_new:
            directory.rmdir()
        elif isinstance(error, PermissionError):
            # The parent is not readable, so this process cannot have made the directory. An
            # administrator did, and is responsible for the durability of its name.
            return
        raise


class NewFile(NamedTuple):
    """A file to be made: its first bytes, which zeros follow."""

    target: str
    head: bytes


def make_files(staging: Path, wanted: Sequence[NewFile], size: int, *, sparse: bool) -> None:
    """Make files of one size; each is whole on disk before it has its name. Names are not durable.

    The files grow under `staging` and get their names last, so a directory of segments never
    holds a short one. Unless sparse, their blocks are allocated: a full disk is an OSError here and
    never a SIGBUS later. All are open at once. Raises OSError; then some may have been made, and
    nothing else is left.
    """
    growing: list[str] = []
    try:
        with ExitStack() as files:
            handles = []
            for target, head in wanted:
                # Different queues have files and directories of the same names. The number keeps
                # the files of one call apart, the process id those of different actors.
                *_, directory, name = target.split("/")
                growing.append(f"{staging}/{directory}-{name}-{os.getpid()}-{len(growing)}")
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
                handle = files.enter_context(opened(growing[-1], flags))
                handles.append(handle)
                # A store into a mapped hole allocates its block. On a full disk that raises a
                # signal, which no code can handle.
                if sparse:
                    os.ftruncate(handle, size)
                else:
                    os.posix_fallocate(handle, 0, size)
                write_at(handle, head, 0)
                begin_writing(handle)
            for handle in handles:
                os.fsync(handle)
        crash_point("make.grown")
        # Each renamed file is taken off the list at once, so that a failure half way unlinks only
        # those that have no name in the store yet.
        for target, _ in reversed(wanted):
            os.rename(growing[-1], target)
            growing.pop()
    finally:
        for path in growing:
            with suppress(FileNotFoundError):  # the file could not even be opened
                os.unlink(path)


def unfinished_files(staging: Path) -> list[Path]:
    """The files that dead processes have left there. Penstock makes no directories in it."""
    return [path for path in staging.iterdir() if path.is_symlink() or not path.is_dir()]


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A file's descriptor, which closes with the block. A new file is for its owner only.

    Raises OSError, also for a symbolic link, which could lead out of the store.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    handle = take_descriptor(lambda: os.open(path, flags, OWN_FILE))
    try:
        yield handle
    finally:
        os.close(handle)


def make_file(staging: Path, target: Path, size: int, *, sparse: bool, head: bytes = b"") -> None:
    """Make one such file; its name is durable on return. Raises OSError; then nothing is left."""
    make_files(staging, (NewFile(str(target), head),), size, sparse=sparse)
    crash_point("make.named")
    _settle_name(target)


def give_name(path: Path, target: Path) -> None:
    """Give a file that is whole on disk its name; durable on return. Raises OSError; then the file
    is gone."""
    os.rename(path, target)
    crash_point("recycle.named")
    _settle_name(target)


def _settle_name(target: Path) -> None:
    try:
        sync_directory(target.parent)
    except OSError:
        # Otherwise the next try would find the file and believe that its name is durable.
        os.unlink(target)
        raise


def replace_file(target: Path, content: bytes) -> None:
    """Replace a small file as a whole; durable on return. It keeps the mode of the old one.

    Raises OSError. Then the old file is still there, except where the last sync has failed: then
    it is the new one, which a power failure may undo. A file with the ending .tmp may be left:
    nobody reads it, and the next writer overwrites it. Only one process at a time may do this.
    """
    growing = target.with_name(target.name + ".tmp")
    try:
        mode = target.stat().st_mode & 0o666
    except FileNotFoundError:
        mode = OWN_FILE
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    handle = take_descriptor(lambda: os.open(growing, flags, OWN_FILE))
    try:
        os.fchmod(handle, mode)
        while content:
            content = content[os.write(handle, content) :]
        # before the rename: if the name became durable before the bytes, the file would be empty
        os.fsync(handle)
    finally:
        os.close(handle)
    crash_point("file.tmp_written")
    os.rename(growing, target)
    crash_point("file.renamed")
    sync_directory(target.parent)


def drop_empty_last(directory: Path) -> None:
    """Remove an empty last file: a RocketMQ leaves one that crashes before it sizes a segment."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    if files and files[-1].stat().st_size == 0:
        files[-1].unlink()
        sync_directory(directory)


def delete_file(path: Path) -> None:
    """Delete a file, if it is there; durable on return. Raises OSError."""
    path.unlink(missing_ok=True)
    _settle_deletion(path)


def expired_segments(staging: Path) -> list[Path]:
    """Files from `set_aside` that nobody has reused yet; none if the directory is missing."""
    try:
        return [path for path in unfinished_files(staging) if path.name.startswith(EXPIRED)]
    except FileNotFoundError:
        return []


def set_aside(path: Path, staging: Path) -> None:
    """Remove a segment's name, durably, like `delete_file`, but keep the file in `staging`, where
    the allocator may reuse it. Raises OSError."""
    with suppress(FileNotFoundError):
        os.rename(path, staging / (EXPIRED + path.name))
    _settle_deletion(path)


def _settle_deletion(path: Path) -> None:
    crash_point("clean.mid_unlink")
    sync_directory(path.parent)


# The page cache allocates memory for a whole call at once, up to 2 MiB. A virtual machine may have
# given free memory of that size back to its host, which returns it 4 KiB at a time while the call
# waits. Memory in smaller pieces is mostly still there. What one call writes stays together; but a
# call that does not begin at a multiple of its size is split into ever smaller pieces, which take
# longer to write and to read (`penstock bench bytes` shows all that).
WRITE_BYTES = 64 << 10


def write_at(handle: int, content: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of it, in aligned pieces; a short write is continued. Not synced."""
    view = memoryview(content)
    while view:
        done = os.pwrite(handle, view[: WRITE_BYTES - at % WRITE_BYTES], at)
        view, at = view[done:], at + done


def write_again(handle: int, start: int, stop: int, *, replaces: bool = False) -> None:
    """Write the bytes of [start, stop) to the same place, so that the next sync writes them out.

    After a failed sync the kernel may treat pages as clean that never reached the disk. Writing
    them makes them dirty again, for a process that cannot know how its predecessor's sync ended.
    With `replaces`, pages that cannot be read are replaced: see `replace_lost`.
    """
    at = start
    while at < stop:
        size = min(len(_ZEROS), stop - at)
        try:
            piece = os.pread(handle, size, at)
        except OSError as error:
            if error.errno != errno.EIO or not replaces:
                raise
            replace_lost(handle, at, at + size)
            piece = os.pread(handle, size, at)
        if not piece:
            raise OSError(errno.EIO, "the file has become shorter")
        write_at(handle, piece, at)
        at += len(piece)


def replace_lost(handle: int, start: int, stop: int) -> None:
    """Write the pages of [start, stop) that cannot be read, so that they can be written in part.

    A disk puts another sector in the place of a lost one when that is written. But to write a part
    of a page the kernel first reads it, so whoever mends a file has its lost pages replaced first.
    They become bytes of 0xFF on the disk, too, for good: only for a file that can be made again, or
    whose bytes are kept elsewhere. Not synced. Raises OSError.
    """
    length = os.fstat(handle).st_size
    for begin, end in data_ranges(handle, start - start % PAGE_BYTES, min(stop, length)):
        at = begin
        while at < end:
            try:
                got = len(os.pread(handle, min(len(_ZEROS), end - at), at))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                at -= at % PAGE_BYTES
                _replace_page(handle, at, length)
                got = PAGE_BYTES
            if not got:
                return  # it has become shorter
            at += got


def _replace_page(handle: int, at: int, length: int) -> None:
    try:
        # a longer read may have failed for a page that follows
        os.pread(handle, PAGE_BYTES, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        os.pwrite(handle, bytes([FILL]) * PAGE_BYTES, at)
        if at + PAGE_BYTES > length:
            os.ftruncate(handle, length)  # a part of the last page would have had to be read


def data_ranges(handle: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, stop) that are not holes, as (start, stop).

    A part may still be zeros: a file system that does not track holes calls everything data. This
    turns off read-ahead for `handle` for good. Pages that the kernel reads ahead into a hole count
    as data, and reading part after part would then lead through an empty gigabyte.
    """
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    while start < stop:
        try:
            at = os.lseek(handle, start, os.SEEK_DATA)
            start = min(os.lseek(handle, at, os.SEEK_HOLE), stop)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # only a hole follows
        if at < stop:
            yield at, start


def zero_from(handle: int, start: int, size: int, *, again: bool = False) -> int:
    """Zero what is not a hole in [start, size). Returns the number of bytes that were not zero.

    With `again`, zeros are overwritten, too: a page that is zero in the page cache may still be
    something else on the disk. Not synced: the caller decides when.
    """
    changed = 0
    for at, stop in data_ranges(handle, start, size):
        while at < stop:
            piece = read_at(handle, min(len(_ZEROS), stop - at), at)
            zeros = _ZEROS[: len(piece)]
            is_zero = piece == zeros  # a segment with warm pages has up to a gigabyte of zeros
            if again or not is_zero:
                changed += 0 if is_zero else len(piece) - piece.count(0)
                write_at(handle, zeros, at)
            at += len(piece)
    return changed


def exchange(first: Path, second: Path) -> None:
    """Exchange two names, in one step that a crash cannot halve; durable on return.

    Raises OSError: EINVAL where the file system, for example a network's, cannot do it, and EXDEV
    for a directory of a container's image.
    """
    names = (_HERE, os.fsencode(first), _HERE, os.fsencode(second))
    if _libc.renameat2(*names, _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        why = _OF_IMAGE if number == errno.EXDEV else os.strerror(number)
        raise OSError(number, why, str(first), None, str(second))
    sync_directory(first.parent)
    sync_directory(second.parent)


def sync_tree(directory: Path) -> None:
    """Make everything below a directory durable, names and contents. Raises OSError.

    Its own name is not made durable: that is an entry of the parent, which the caller syncs.
    """
    for place, _, names in os.walk(directory):
        for name in names:
            handle = os.open(Path(place) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(place))
