"""A broker as a process of its own, to be broken: started, killed, and removed without a trace.

Everything it starts carries a mark in its environment, so that what outlives it is found.
"""

from __future__ import annotations

import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.chaos.machine.processes import MARK, descriptors, processes_of, run_directories_below
from penstock.shared.config import DEFAULT_PRODUCE_PORT, Config
from penstock.shared.config_sources import load_config
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run
from penstock.shared.process.broker_status import read_status
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.shared.store.watermark import load_watermark
from penstock.shared.wire.introduction import ENDPOINT_OF

READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 40
GONE_TIMEOUT_S = 10
# small files, so that every boundary is met often
SETTINGS: dict[str, object] = {
    "produce_port": 0,
    "consume_port": 0,
    "group_port": 0,
    "transaction_port": 0,
    # on, so that it is broken like the others
    "gateway_enable": True,
    "gateway_port": 0,
    "gateway_name_server_port": 0,
    "monitor_port": 0,
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20 * 1000,
    "max_hash_slot_num": 2000,
    "max_index_num": 4000,
    "max_message_size_bytes": 64 << 10,
    "transient_store_pool_bytes": 8 << 20,
}
# files so small that a second of load passes every boundary
SMALL_SEGMENT_BYTES = 256 << 10
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": SMALL_SEGMENT_BYTES,
    "mapped_file_size_consume_queue_bytes": 20 * 200,
    "max_hash_slot_num": 100,
    # enough for the flusher to meet a file that grows, also on a busy machine
    "max_index_num": 1000,
    # not a multiple of a segment, so that records cross its end
    "transient_store_pool_bytes": (4 << 20) + (12 << 10),
    "flush_interval_consume_queue_ms": 50,
    "flush_consume_queue_thorough_interval_ms": 50,
}


class Broker:
    """`penstock up` on `place`/store. Only this broker gets `environment`."""

    def __init__(
        self,
        place: Path,
        settings: Mapping[str, object],
        *,
        environment: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.store = place / "store"
        self.said = place / "stderr"
        self.run_directories: set[Path] = set()
        self.environment = dict(environment or {})
        self.file = place / "broker.toml"
        self._mark = MARK + uuid.uuid4().hex
        self._wrap = wrap
        self.configure(settings)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Settings for the next start, over those that make files small."""
        lines = [f"{key} = {_toml(value)}" for key, value in {**SETTINGS, **settings}.items()]
        self.file.write_text("\n".join(lines) + "\n")

    @property
    def config(self) -> Config:
        return load_config(self.file).config

    def launch(self, **options: Any) -> None:
        """Start the process without waiting for it; `options` are those of Popen."""
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [*self._wrap, sys.executable, "-m", "penstock.cli.main", "up"]
                + ["--config", str(self.file), "--store", str(self.store)],
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, **self.environment, "PENSTOCK_CHAOS_MARK": self._mark},
                **options,
            )

    def start(self, **options: Any) -> float:
        """Start, and wait for the line that says it serves. Returns the seconds that took."""
        began = time.monotonic()
        self.launch(**options)
        self.wait_ready()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        self.read_ready_line()
        self.run_directories.add(Path(self.status()["run_directory"]))
        # A broker is ready before its gateway is; a round starts only when everything is.
        deadline = time.monotonic() + READY_TIMEOUT_S
        while any(each["state"] == "starting" for each in self.status()["actors"]):
            if time.monotonic() > deadline:
                raise StoreUnavailable("an actor has not started", None, self.output())
            time.sleep(0.02)  # a look takes 2 ms of processor time that the starting actors need
        self._descriptors = descriptors(self.process.pid)

    def descriptors_gained(self) -> list[str]:
        """What the supervisor has open beyond what it had when it was ready."""
        more = descriptors(self.process.pid) - self._descriptors
        return [f"the supervisor has {n} more of {what}" for what, n in sorted(more.items())]

    def read_ready_line(self) -> None:
        """Wait for the ready line. Raises StoreUnavailable if it does not come in time."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            in_time = bool(selector.select(READY_TIMEOUT_S))
        line = self.process.stdout.readline().decode() if in_time else ""
        if not line.startswith("ready "):
            raise StoreUnavailable("the broker did not start", line, self.output())
        found = dict(word.split("=", 1) for word in line.split()[1:])
        self.produce, self.consume = found["produce"], found["consume"]

    def status(self) -> dict[str, Any]:
        return read_status(self.store)

    def actors(self) -> dict[str, int]:
        """Name -> pid of the actors; 0 for one that is down right now."""
        return {actor["name"]: actor["pid"] for actor in self.status()["actors"]}

    def strike(self, actor: str, number: int, timeout_s: float = 15) -> int:
        """Send a signal to an actor, which may just be starting. Returns its pid."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if pid := self.actors()[actor]:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue  # it is dead already, and the page does not say so yet
                return int(pid)
            time.sleep(0.001)
        raise StoreUnavailable("an actor did not come back", actor, self.output())

    def await_dispatched(self, timeout_s: float = 30) -> None:
        """Wait until consumers can see everything that is stored."""
        deadline = time.monotonic() + timeout_s
        while True:
            positions = self.status()["positions"]
            if positions["dispatched"] == positions["wrote"]:
                return
            if time.monotonic() > deadline:
                raise StoreUnavailable("not everything was dispatched in time", positions)
            time.sleep(0.01)

    def await_checkpoint(self, timeout_s: float = 30) -> None:
        """Wait until the checkpoint covers everything that is dispatched."""
        deadline = time.monotonic() + timeout_s
        checkpoint = StorePaths(self.store).checkpoint
        while True:
            last = self.status()["positions"]["dispatched_record"]
            if load_checkpoint(checkpoint).confirm_offset == last:
                return
            if time.monotonic() > deadline:
                raise StoreUnavailable("the checkpoint did not follow in time", last)
            time.sleep(0.01)

    def await_watermark(self, timeout_s: float = 30) -> None:
        """Wait until the store's own files say that all of the log is on disk."""
        deadline = time.monotonic() + timeout_s
        paths = StorePaths(self.store)
        while True:
            mark, wrote = load_watermark(paths.watermark), self.status()["positions"]["wrote"]
            words = load_checkpoint(paths.checkpoint)
            if mark is not None and (mark.flushed, mark.checkpoint) == (wrote, words):
                return
            if time.monotonic() > deadline:
                raise StoreUnavailable("the watermark follows in time", mark)
            time.sleep(0.01)

    def clean(self) -> None:
        """`penstock clean`: delete what has expired, as far as nothing needs it any more."""
        command = [sys.executable, "-m", "penstock.cli.main", "clean", "--store", str(self.store)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=STOP_TIMEOUT_S)
        if ran.returncode:
            raise StoreUnavailable("nothing could be deleted", ran.stderr, self.output())

    def output(self) -> str:
        return self.said.read_text()

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Stop in order. Returns the seconds that took. Raises StoreUnavailable if anything is
        left."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.wait_end()
        took = time.monotonic() - began
        left = self.leftovers()
        if StorePaths(self.store).abort.exists():
            left.append("abort")
        if code != 0 or "the store is clean" not in self.output() or left:
            raise StoreUnavailable(
                "a stop left something behind", f"exit code {code}, {left}", self.output()
            )
        return took

    def kill_after(self, seconds: float) -> None:
        """kill -9 after that time, if it has not ended by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_end(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait(STOP_TIMEOUT_S)
        self.process.stdout.close()
        return code

    def kill(self) -> float:
        """kill -9 the supervisor. Returns the seconds until all its actors were gone."""
        began = time.monotonic()
        self.process.kill()
        self.wait_end()
        self.await_gone()
        return time.monotonic() - began

    def await_gone(self) -> None:
        """Wait until the actors of a supervisor that has died have ended, too."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while left := self.processes():
            if time.monotonic() > deadline:
                raise StoreUnavailable("actors outlived their supervisor", left, self.output())
            time.sleep(0.005)

    def forget_memory(self) -> None:
        """Remove the broker's shared memory, as if the machine had gone down with it."""
        run = read_run(StorePaths(self.store))
        if run is not None and run.path.is_dir():
            shutil.rmtree(run.path)

    def processes(self) -> list[int]:
        """Living processes that this broker started, whoever their parent is now."""
        return processes_of(self._mark)

    def shared_memory(self) -> list[Path]:
        """Run directories of this store, whether its run.json names them or not."""
        return run_directories_below(self.store)

    def leftovers(self) -> list[str]:
        """Processes and shared memory that are still there."""
        paths = [str(path) for path in {*self.run_directories, *self.shared_memory()}]
        paths = [path for path in paths if os.path.exists(path)]
        return [f"process {pid}" for pid in self.processes()] + paths

    def clear(self) -> None:
        """Leave no process and no shared memory, whatever has happened."""
        if hasattr(self, "process"):
            self.process.kill()
            self.wait_end()
        for pid in self.processes():
            with suppress(ProcessLookupError):  # it has ended by itself, as it does with its parent
                os.kill(pid, signal.SIGKILL)
        for path in self.run_directories | set(self.shared_memory()):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def running(place: Path, settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker that has started. Nothing of it is left afterwards, however the block ends."""
    broker = Broker(place, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.clear()


def fixed_ports(*, gateway: bool = False) -> dict[str, object]:
    """Settings for ports that survive a restart, outside the range from which connections take
    theirs: ports of Penstock's own clients, and of RocketMQ's.

    They are free now, and other brokers of this machine do not take them by themselves.
    """
    names = {f"{name}_port": at for at, name in enumerate(ENDPOINT_OF.values())}
    if gateway:
        # the gateway takes one more, below its port
        names |= {"gateway_port": 6, "gateway_name_server_port": 7}
    while True:
        base = random.SystemRandom().randrange(10_000, DEFAULT_PRODUCE_PORT - 7) // 8 * 8
        if all(_is_free(base + at) for at in range(1 + max(names.values()))):
            return {name: base + at for name, at in names.items()}


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
