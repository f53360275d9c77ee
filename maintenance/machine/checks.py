"""All needs, in the order in which they are shown; checks system, memory, disk and ports itself."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.maintenance.machine.clock import check_clock
from penstock.maintenance.machine.installed_size import installed_bytes
from penstock.maintenance.machine.limits import check_limits
from penstock.maintenance.machine.need import FINE, PROBLEM, WARNING, Check
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.files.disk_space import disk_used_percent
from penstock.shared.loops.active import why_pure
from penstock.shared.memory.run_directory import abandoned_runs
from penstock.shared.process.listeners import listen_tcp


def check_machine(config: Config) -> Iterator[Check]:
    """All checks, the quick ones first. `config` says which ports and which disk."""
    yield _system()
    yield _loops()
    yield _installed()
    yield from check_limits(config)
    yield _shared_memory(config)
    yield _abandoned()
    yield _disk(config)
    yield check_clock()
    yield from _ports(config)


def _system() -> Check:
    found = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    if sys.platform == "linux":
        return Check("system", FINE, found)
    return Check("system", PROBLEM, found, "run the broker on Linux; clients run here")


def _loops() -> Check:
    if not why_pure:
        return Check("native loops", FINE, "compiled")
    compiler = shutil.which(sysconfig.get_config_var("CC") or "cc") or shutil.which("cc")
    remedy = "pip install --force-reinstall --no-binary penstock penstock"
    if compiler is None:
        remedy = f"install a C compiler (apt install build-essential), then: {remedy}"
    return Check("native loops", WARNING, f"pure Python, which is slower: {why_pure}", remedy)


def _installed() -> Check:
    own, libraries = installed_bytes()
    found = f"{own / 1e6:.0f} MB, and {libraries / 1e6:.0f} MB of libraries that it needs"
    return Check("installed size", FINE, found)


def _shared_memory(config: Config) -> Check:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Check("shared memory", PROBLEM, f"{place} is not there", "mount a tmpfs there")
    free = shutil.disk_usage(place).free
    found = f"{free >> 20} MiB free in {place}"
    if free > 2 * config.transient_store_pool_bytes:
        return Check("shared memory", FINE, found)
    remedy = "make room there; in Docker: --shm-size 256m; or make transient_store_pool_bytes less"
    return Check("shared memory", PROBLEM, found, remedy)


def _abandoned() -> Check:
    left = abandoned_runs()
    size = sum(_bytes_in(each) for each in left)
    found = f"{len(left)} of stores that are gone, {size >> 20} MiB"
    if not left:
        return Check("left memory", FINE, found)
    return Check("left memory", WARNING, found, "remove it: penstock doctor --fix")


def _bytes_in(directory: Path) -> int:
    size = 0
    with suppress(FileNotFoundError):  # another process that looked has removed it
        for file in directory.iterdir():
            size += file.stat().st_blocks * 512
    return size


def _disk(config: Config) -> Check:
    place = config.store.absolute()
    while not place.exists():
        place = place.parent
    used = disk_used_percent(place)
    found = f"{used} % used where {config.store} lies or would lie"
    limit = config.disk_space_warning_level_ratio_percent
    if not os.access(place, os.W_OK):
        return Check(
            "disk", PROBLEM, f"{place} cannot be written", f"chown it, or --store: {place}"
        )
    if used < limit:
        return Check("disk", FINE, found)
    return Check("disk", PROBLEM, found, f"free some: at {limit} % messages are refused")


def _ports(config: Config) -> Iterator[Check]:
    for name, port in (config.ports | config.gateway_ports).items():
        if port:
            yield _port(name, config.bind_host, port)
    if config.monitor_enable and config.monitor_port:
        remedy = "the page is at any free port then: penstock status says which"
        yield _port("monitor", config.monitor_host, config.monitor_port, remedy)


def _port(name: str, host: str, port: int, remedy: str = "") -> Check:
    """Whether it is free; without a `remedy` the hint of a start's error is shown."""
    try:
        listen_tcp(host, port).socket.close()
    except PenstockError as error:
        return Check(f"port {name}", WARNING, str(error.value), remedy or error.hint)
    return Check(f"port {name}", FINE, f"{host}:{port} is free")
