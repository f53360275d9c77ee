"""The measured broker: one started here, one that runs on a store, or one at two endpoints.

On this machine a measurement can see the broker's processes and its positions page; at remote
endpoints it sees only what clients see. Topics are new, so that every counted message is its own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.bench.loads.accounts import Accounts
from penstock.bench.loads.load import stored_in
from penstock.bench.loads.stack import running_stack
from penstock.client import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import ACTORS
from penstock.shared.memory.run_directory import Run, read_run, running
from penstock.shared.names import MAX_QUEUES_PER_TOPIC

CAUGHT_UP_TIMEOUT_S = 120


class Where(msgspec.Struct, frozen=True):
    """Which broker to measure; without any of these, one on a temporary store."""

    store: Path | None = None
    endpoints: tuple[str, str] | None = None
    settings: tuple[tuple[str, str], ...] = ()


class Target:
    """A running broker. `run` is set if it is on this machine."""

    def __init__(self, produce: str, consume: str, run: Run | None) -> None:
        self.produce, self.consume, self.run = produce, consume, run
        # where members of groups connect; "" for a remote broker
        self.group = "" if run is None else run.endpoints.group_ipc
        self.positions = None if run is None else Positions(run.positions)
        self.accounts = Accounts(self.pids())

    def pids(self) -> dict[str, int]:
        """Its running processes, by name; of a remote broker there are none."""
        found = {"supervisor": self.run.supervisor_pid} if self.run is not None else {}
        if self.positions is not None:
            found |= {name: self.positions.life(name).pid for name in ACTORS}
        return {name: pid for name, pid in found.items() if pid}

    def new_topics(self, queues: int) -> list[str]:
        """Create this many queues, in as few topics as possible."""
        made = []
        with Producer(self.produce) as producer:
            for first in range(0, queues, MAX_QUEUES_PER_TOPIC):
                made.append(f"bench-{secrets.token_hex(6)}")
                producer.create_topic(made[-1], min(MAX_QUEUES_PER_TOPIC, queues - first), 60)
        return made

    def await_caught_up(self) -> None:
        """Wait until consume queues hold everything that was sent. Nobody may be sending."""
        if self.positions is None:
            return
        until = time.monotonic() + CAUGHT_UP_TIMEOUT_S
        while (done := self.positions["dispatched"]) < (wrote := self.positions["wrote"]):
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"the queues did not catch up within {CAUGHT_UP_TIMEOUT_S} s",
                    f"{wrote - done} bytes are missing",
                )
            time.sleep(0.001)

    def check(self, topics: list[str], messages: int, ack: str) -> int:
        """How many messages are stored: all that were acknowledged, on disk if that was promised.

        Raises StoreUnavailable if the store holds another number.
        """
        flushed = None if self.positions is None else self.positions["flushed"]
        wrote = 0 if self.positions is None else self.positions["wrote"]
        if ack == "durable" and flushed is not None and flushed < wrote:
            raise StoreUnavailable(
                "messages were acknowledged as durable that are not on disk",
                f"{wrote - flushed} bytes",
            )
        self.await_caught_up()
        if (found := stored_in(self.consume, topics)) != messages:
            raise StoreUnavailable(
                f"{messages} messages were acknowledged, and another number is stored", found
            )
        return found

    def close(self) -> None:
        if self.positions is not None:
            self.positions.close()


@contextmanager
def opened(where: Where, ack: str, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
    """The broker to measure. One that is started here acknowledges as `ack` says by default."""
    run = None if where.store is None else read_run(StorePaths(where.store))
    if where.endpoints is not None:
        target = Target(*where.endpoints, None)
    elif run is not None and running(run):
        target = Target(run.endpoints.produce, run.endpoints.consume, run)
    else:
        kind = "sync" if ack == "durable" else "async"
        flags = {"flush_disk_type": kind} | dict(settings or {}) | dict(where.settings)
        with (
            running_stack(where.store, flags=flags) as stack,
            _closed(
                Target(stack.produce, stack.consume, read_run(StorePaths(stack.store)))
            ) as target,
        ):
            yield target
        return
    with _closed(target):
        yield target


@contextmanager
def _closed(target: Target) -> Iterator[Target]:
    try:
        yield target
    finally:
        target.close()
