"""The rounds of a comparison: which broker does what, in turns, and the results.

All brokers of one phase are up at once, and only one is under load. Each is warmed up first; then
every round measures every broker once, so that a slow minute of the machine meets all of them. A
broker that does not come up gets a row that says so, and so does a load that failed; it is not
tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from penstock.bench.loads.accounts import Accounts, cpu_s_per_million
from penstock.bench.loads.load import Seen
from penstock.bench.loads.load_process import measured, started
from penstock.bench.loads.percentile import percentile
from penstock.bench.peers.brokers.peer import CONSUME, PACKED, Load, Peer, Read
from penstock.bench.peers.plan import (
    BACKLOG,
    Plan,
    Task,
    ack_in,
    backlog_of,
    load_of,
    tasks_in,
    ways_in,
)
from penstock.bench.peers.table import Row
from penstock.bench.reports.machine import Machine, measure_machine
from penstock.shared.errors import PenstockError, StoreUnavailable

Say = Callable[[str], None]

# The disk's limit is measured with as many bytes as a fast broker writes in a run: a shorter file
# would lie in memory that was just used, and a growing log does not.
LIMIT_BYTES = 256 << 20


def not_measured(peer: Peer, phase: str, why: str) -> list[Row]:
    """A row for each kind of figure that a broker would have had in a phase."""
    kinds = dict.fromkeys(way.kind for way in ways_in(peer, phase))
    return [Row(peer.name, ack_in(phase), why=why, kind=kind) for kind in kinds]


def in_turns(
    peers: Sequence[Peer], phase: str, plan: Plan, place: Path, machines: list[Machine], say: Say
) -> Iterator[Row]:
    """The rows of a phase. Stores are in `place`; the machine's limits go to `machines`."""
    with ExitStack() as servers:
        tasks: list[Task] = []
        for peer in peers:
            try:
                serving = peer.serve(place / peer.name.replace(" ", "-"), ack_in(phase))
                server = servers.enter_context(serving)
            except PenstockError as error:
                say(f"{peer.name}, {phase}: {error}")
                yield from not_measured(peer, phase, str(error)[:300])
            else:
                tasks += tasks_in(peer, server, phase, plan)
        for task in tuple(tasks) if phase == BACKLOG else ():
            if why := _fill(task, plan, say):
                tasks.remove(task)
                yield task.row(0, why)
        # Brokers take turns within each load, not after all loads of a kind: other work on the
        # machine may have grown, or ended, until the second broker has its turn.
        tasks.sort(key=what)
        for run in range(-1, plan.runs):
            machines.append(measure_machine(place, LIMIT_BYTES))
            for task in tuple(tasks):
                # one kind of load warms the broker up; clients warm up each time
                warms = task.way.kind in (PACKED, CONSUME) and task.size == plan.sizes[-1]
                if run < 0 and not warms:
                    continue
                row = _measure(task, run, plan, say)
                if row.why:
                    tasks.remove(task)
                if run >= 0 or row.why:
                    yield row
        machines.append(measure_machine(place, LIMIT_BYTES))


def what(task: Task) -> tuple[str, int, int, int, int]:
    """A sort key: what is measured, whichever broker it is."""
    way = task.way
    return way.kind, task.size, way.batch, task.in_flight, way.threads


def _fill(task: Task, plan: Plan, say: Say) -> str:
    """Send what is to be read; returns why that failed, or "" if it did not."""
    messages = plan.backlog(task.size)
    try:
        seen, _ = _run(task, backlog_of(task, plan), 0)
        if seen.stored != messages:
            raise StoreUnavailable(
                f"a backlog of {messages} messages was sent, and another number is stored",
                seen.stored,
            )
    except PenstockError as error:
        say(f"{task.peer.name}, a backlog of {task.size} bytes: {error}")
        return str(error)[:300]
    say(f"{task.peer.name}, a backlog of {task.size} bytes: {messages} messages")
    return ""


def _run(task: Task, load: Load | Read, seconds: float) -> tuple[Seen, dict[str, float]]:
    """What the client saw, and CPU seconds for a million messages."""
    accounts = Accounts(task.server.pids)
    with started([task.peer.command(task.server, load)]) as processes:
        before = accounts.cpu_s()
        (seen,) = measured(processes, seconds, lambda done, total: None)
        after = accounts.cpu_s()
    cpu = cpu_s_per_million(before, after, seen.cpu_s, seen.messages) if seen.messages else {}
    return seen, cpu


def _measure(task: Task, run: int, plan: Plan, say: Say) -> Row:
    """One load on one broker. Run -1 warms the broker up."""
    way, repeated = task.way, 0
    about = f"{way.name}, {way.kind}, {task.ack}, {task.size} bytes, {task.in_flight} in flight"
    try:
        seen, cpu = _run(task, load_of(task, run, plan), plan.seconds)
        if way.kind != CONSUME:
            repeated = seen.stored - seen.messages - seen.warm_messages
        if repeated < 0:
            sent = seen.messages + seen.warm_messages
            raise StoreUnavailable(
                f"{sent} messages were acknowledged, and fewer are stored", seen.stored
            )
    except PenstockError as error:
        say(f"{about}: {error}")
        return task.row(run, str(error)[:300])
    rate = seen.messages / seen.seconds
    say(f"{about}: {rate:.0f}/s{' (warming up)' if run < 0 else ''}")
    return msgspec.structs.replace(
        task.row(run),
        messages=seen.messages,
        repeated=repeated,
        seconds=round(seen.seconds, 3),
        messages_per_s=round(rate, 1),
        p50_ms=percentile(seen.latencies_ms, 50),
        p99_ms=percentile(seen.latencies_ms, 99),
        cpu_s_per_million=cpu,
    )
