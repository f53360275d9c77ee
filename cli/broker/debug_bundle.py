"""`penstock debug-bundle`: what a helper needs to know, in one file that can be sent.

It has no bodies, keys or properties of messages, and no secrets: from the environment only what
Penstock uses, and from the configuration nothing whose name says that it is a secret.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import store_option
from penstock.cli.printing.output import output_option, print_json, progress
from penstock.shared.errors import ConnectError, PenstockError
from penstock.shared.layout import StorePaths

LOG_BYTES = 1 << 20
_PY_SPY_S = 20
_SECRET = re.compile(r"password|secret|token|credential|private", re.I)
_PROC = ("status", "wchan", "syscall", "stack", "limits")
_PACKAGES = ("pyzmq", "msgspec", "numpy", "psutil", "click", "rich", "pyarrow", "pyspark")


@click.command(
    "debug-bundle",
    epilog="""\b
Examples:
  penstock debug-bundle
  penstock debug-bundle --store ./store --to /tmp/help.tar.gz
""",
)
@store_option
@click.option(
    "--to",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: penstock-debug-TIME.tar.gz]",
)
@output_option
def debug_bundle(store: Path | None, file: Path | None, output: str) -> None:
    """Gather what somebody needs who is to help: a tar.gz, which nobody else can read.

    Status, configuration with the origin of each value, versions, what `doctor` says, recovery
    reports, the end of the broker's log, names and sizes of files, and where each actor is in its
    code (by py-spy where it is installed). No message is in it, and no secret. What could not be
    had is said in it. The broker may run or not.
    """
    paths = StorePaths(store_of(store).absolute())
    made = file or Path(time.strftime("penstock-debug-%Y%m%dT%H%M%S.tar.gz", time.gmtime()))
    parts: dict[str, int] = {}
    missing: list[str] = []
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(handle, 0o600)  # an existing file keeps its mode otherwise
    with (
        progress("gathering") as moved,
        open(handle, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as bundle,
    ):
        for done, (name, gather) in enumerate(PARTS.items(), 1):
            try:
                raw = gather(paths)
            except (PenstockError, OSError, subprocess.SubprocessError) as error:
                missing.append(f"{name}: {error}")
            else:
                parts[name] = len(raw)
                _put(bundle, name, raw)
            moved(done, len(PARTS))
        _put(bundle, "missing.txt", "".join(f"{each}\n" for each in missing).encode())
    if output == "json":
        print_json({"file": str(made), "parts": parts, "missing": missing})
        return
    for each in missing:
        click.echo(f"not there: {each}", err=True)
    click.echo(f"{made}: {', '.join(parts)}")


def _put(bundle: tarfile.TarFile, name: str, raw: bytes) -> None:
    entry = tarfile.TarInfo(f"penstock-debug/{name}")
    entry.size, entry.mtime, entry.mode = len(raw), int(time.time()), 0o600
    bundle.addfile(entry, io.BytesIO(raw))


def _json(found: Any) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(found)) + b"\n"


def _versions(paths: StorePaths) -> bytes:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from penstock import __version__
    from penstock.shared.loops.active import why_pure

    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return _json(
        {
            "penstock": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "loops": why_pure or "compiled",
            "packages": packages,
        }
    )


def _status(paths: StorePaths) -> bytes:
    from penstock.shared.process.broker_status import read_status

    return _json(read_status(paths.root))


def _config(paths: StorePaths) -> bytes:
    """The running broker's configuration, or else that of a broker that would be started here."""
    from penstock.shared.config_sources import STORE_KEY, load_config
    from penstock.shared.memory.run_settings import settings_of
    from penstock.shared.process.find_broker import find_running
    from penstock.shared.store.geometry import settled_sizes

    try:
        config = settings_of(find_running(paths.root), paths.root)
        origins = dict.fromkeys(config.__struct_fields__, "the broker that runs")
    except ConnectError:
        config, origins = load_config(None, {STORE_KEY: str(paths.root)}, os.environ, settled_sizes)
    return _json(
        {
            key: {
                "value": "(left out)" if _SECRET.search(key) else getattr(config, key),
                "origin": origins[key],
            }
            for key in config.__struct_fields__
        }
    )


def _doctor(paths: StorePaths) -> bytes:
    from penstock.maintenance.machine.checks import check_machine
    from penstock.shared.config import Config

    return _json(list(check_machine(Config(store_path_root_dir=str(paths.root)))))


def _recovery(paths: StorePaths) -> bytes:
    from penstock.shared.recovery.history import load_recoveries

    return _json(load_recoveries(paths))


def _log(paths: StorePaths) -> bytes:
    with paths.log.open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_BYTES))
        return log.read(LOG_BYTES)


def _files(paths: StorePaths) -> bytes:
    def lines() -> Iterator[str]:
        for path in sorted(paths.root.rglob("*")):
            found = path.lstat()
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
            yield f"{found.st_size:>14} {at} {path.relative_to(paths.root)}\n"

    return "".join(lines()).encode("utf-8", "backslashreplace")


def _stacks(paths: StorePaths) -> bytes:
    """What the kernel says of each actor, and py-spy's dump if it is installed and allowed."""
    from penstock.shared.process.broker_status import read_status

    spy, told = shutil.which("py-spy"), []
    for actor in read_status(paths.root)["actors"]:
        pid = actor["pid"]
        told.append(f"=== {actor['name']}, pid {pid}\n")
        if not pid:
            continue
        if spy is not None:
            dump = [spy, "dump", "--nonblocking", "--pid", str(pid)]
            try:
                ran = subprocess.run(dump, capture_output=True, text=True, timeout=_PY_SPY_S)
                told.append(ran.stdout + ran.stderr)
            except subprocess.TimeoutExpired as error:  # only for this actor: go on with the others
                told.append(f"{error}\n")
        for name in _PROC:
            try:
                text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
            except OSError as error:  # it has just ended, or only another user may read it
                text = str(error)
            told.append(f"--- {name}\n{text}\n")
    return "".join(told).encode()


PARTS: dict[str, Callable[[StorePaths], bytes]] = {
    "versions.json": _versions,
    "status.json": _status,
    "config.json": _config,
    "doctor.json": _doctor,
    "recovery.json": _recovery,
    "log.txt": _log,
    "files.txt": _files,
    "stacks.txt": _stacks,
}
