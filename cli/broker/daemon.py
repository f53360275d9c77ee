"""`penstock up --daemon`, `penstock down` and `penstock logs`: a broker without a terminal.

For machines that have neither systemd nor containers. The broker is the same: a fork of
`penstock up` goes on in a session of its own, and logs to a file of the store. The command ends
when the fork says that it serves, by the protocol that systemd would hear. `down` finds a broker by
its store, so it also stops one in a terminal.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import Seconds, store_option
from penstock.cli.streams import check_reader, stop_when_unread
from penstock.shared.errors import BrokerTimeout, ConnectError, StoreUnavailable
from penstock.shared.files.readable import is_readable
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import quoted

# The size from which a start puts the log aside; one such file is kept.
LOG_BYTES = 16 << 20
# How often the log is polled: a file does not notify its readers.
_LOOK_AGAIN_S = 0.1
_TAIL_BYTES = 64 << 10


def go_on_in_background(paths: StorePaths) -> None:
    """Return in a forked process, without a terminal and with its output in the store's log.

    In the caller's process this never returns: that ends when the fork serves, or ends as it did.
    """
    from penstock.cli.broker.service_manager import SOCKET_KEY

    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    heard.bind("")  # the kernel chooses an abstract address, which leaves no file
    log = _open_log(paths)
    began_at = os.lseek(log, 0, os.SEEK_END)
    pid = os.fork()
    if pid:
        _wait_for(pid, heard, paths.log, began_at)
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ[SOCKET_KEY] = "@" + heard.getsockname()[1:].decode()
    heard.close()


def _open_log(paths: StorePaths) -> int:
    """The log, opened to append; a long one is put aside, unless a broker still writes to it."""
    from penstock.shared.process.find_broker import lock_holder

    paths.log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(paths.log, flags, 0o600)
    if os.fstat(log).st_size > LOG_BYTES and lock_holder(paths.lock) is None:
        os.close(log)
        paths.log.replace(paths.log.with_suffix(".log.1"))
        log = os.open(paths.log, flags, 0o600)
    return log


def _wait_for(pid: int, heard: socket.socket, log: Path, began_at: int) -> NoReturn:
    """Wait until the broker serves or has ended; then print what it printed, and exit as it did."""
    ended = os.pidfd_open(pid)
    looked = select.poll()
    for handle in (heard.fileno(), ended):
        looked.register(handle, select.POLLIN)
    try:
        while True:
            found = {handle for handle, _ in looked.poll()}
            words = heard.recv(4096).decode().split("\n") if heard.fileno() in found else []
            if "READY=1" in words:
                for word in words:
                    if word.startswith("STATUS="):
                        click.echo(word.removeprefix("STATUS="))
                raise click.exceptions.Exit(0)
            if ended in found:
                _, status = os.waitpid(pid, 0)
                with log.open("rb") as said:
                    said.seek(began_at)
                    sys.stderr.write(said.read().decode(errors="replace"))
                # a broker that was killed has no exit code, and has printed no reason
                raise click.exceptions.Exit(os.waitstatus_to_exitcode(status) or 1)
    except KeyboardInterrupt:
        signal.pidfd_send_signal(ended, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise


@click.command(
    epilog="""\b
Examples:
  penstock down --store ./store
  penstock down --store ./store --within 5m
"""
)
@store_option
@click.option(
    "--within",
    type=Seconds(),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long its end may take, in seconds or as in 2m.",
)
def down(store: Path | None, within: float) -> None:
    """Stop the broker that runs on a store, in order, and wait for its end.

    It is asked as by Ctrl-C: what was acknowledged is on disk then, and the store is clean.
    """
    paths = StorePaths(store_of(store))
    pid = _ask_to_stop(paths, within)
    if paths.abort.exists():
        raise StoreUnavailable(
            "the broker has ended, but the store is not clean",
            f"{paths.root}, pid {pid}",
            "the next start recovers; what the broker printed says why",
        )
    click.echo(f"stopped (pid {pid}); the store is clean")


def _ask_to_stop(paths: StorePaths, timeout_s: float) -> int:
    """The pid that the broker had. Raises ConnectError, BrokerTimeout."""
    from penstock.shared.process.find_broker import find_running

    pid = find_running(paths.root).supervisor_pid
    try:
        broker = os.pidfd_open(pid)
    except ProcessLookupError:
        raise ConnectError("the broker has just ended", f"{paths.root}, pid {pid}") from None
    try:
        # only this ensures that the descriptor is the broker's, and not that of a later process
        if find_running(paths.root).supervisor_pid != pid:
            raise ConnectError("another broker has just been started on the store", paths.root)
        signal.pidfd_send_signal(broker, signal.SIGTERM)
        if not is_readable(broker, timeout_s):
            raise BrokerTimeout(
                "the broker has not ended yet",
                f"pid {pid}, {timeout_s:g} s",
                f"wait for longer: penstock down --store {quoted(paths.root)} --within 10m",
            )
    finally:
        os.close(broker)
    return pid


@click.command(
    epilog="""\b
Examples:
  penstock logs --store ./store
  penstock logs --store ./store --lines 200
  penstock logs --store ./store --follow
"""
)
@store_option
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="How many to begin with: the last ones of the file.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
def logs(store: Path | None, lines: int, follow: bool) -> None:
    """Print what a broker started with --daemon has said."""
    stop_when_unread()
    paths = StorePaths(store_of(store))
    if not paths.log.exists():
        raise StoreUnavailable(
            "no broker has written a log into this store",
            paths.log,
            f"one does that starts with: penstock up --daemon --store {quoted(paths.root)}",
        )
    file: BinaryIO = paths.log.open("rb")
    try:
        for line in _last_lines(file, lines):
            click.echo(line.decode(errors="replace"))
        while follow:
            sys.stdout.flush()
            file = _continued(file, paths.log)
            click.echo(file.read().decode(errors="replace"), nl=False)
    finally:
        file.close()


def _last_lines(file: BinaryIO, most: int) -> list[bytes]:
    """Read backwards from the end, because a log may be large. The file is left at its end."""
    end = at = file.seek(0, os.SEEK_END)
    found = b""
    while at and found.count(b"\n") <= most:
        step = min(at, _TAIL_BYTES)
        at -= step
        found = os.pread(file.fileno(), step, at) + found
    file.seek(end)
    return found.splitlines()[-most:] if most else []


def _continued(file: BinaryIO, path: Path) -> BinaryIO:
    """The file once there is more in it, or the one by which a start has replaced it."""
    while True:
        size = os.fstat(file.fileno()).st_size
        if size < file.tell():  # copied and truncated, as by logrotate
            file.seek(0)
        if size > file.tell():
            return file
        with suppress(FileNotFoundError):  # just put aside
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.close()
                return path.open("rb")
        check_reader()
        time.sleep(_LOOK_AGAIN_S)
