"""How soon do many groups share their queues, and what do they cost when nothing happens?

A broker of its own, and a process for each member that a group has. A process holds one member of
every group, so a kill of one process takes one member from every group.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from signal import SIGKILL

import msgspec
import psutil
import zmq

from penstock.bench.loads.crowd_process import Crowd
from penstock.bench.loads.load_process import LoadProcess, Moved, started
from penstock.bench.loads.target import Target, Where, opened
from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire.messages import CreateTopic, Routed, decode_produce_answer, encode
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

SESSION_MS = 15_000
SETTLE_S = 120.0
# Connections that operators and this process need besides.
SPARE_CONNECTIONS = 1000
STEPS = 5
# Topics to request together.
AT_ONCE = 256


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance", tag_field="kind"):
    """One run. `cold_s` goes from when all members are told to join until each has its queues,
    `killed_s` from the kill of one of each group until the others have its queues. CPU is that of
    the coordinator in these times, and that of all members' processes (`clients`); when nothing
    happens it is in percent of one processor. Connections were made before."""

    groups: int
    members: int  # of each group
    queues: int  # of each topic
    connect_s: float
    cold_s: float
    cold_coordinator_cpu_s: float
    cold_clients_cpu_s: float
    killed_s: float
    killed_coordinator_cpu_s: float
    quiet_seconds: float
    quiet_coordinator_percent: float
    quiet_broker_percent: float
    load_1m: float


def bench_rebalance(
    groups: int, members: int, queues: int, quiet_seconds: float, where: Where, moved: Moved
) -> Rebalance:
    """Raises StoreUnavailable if the groups do not settle."""
    names = [f"crowd-{number}" for number in range(groups)]
    settings = {"max_connections": str(groups * members + SPARE_CONNECTIONS)}
    with opened(where, "written", settings) as target:
        _make_topics(target, names, queues)
        moved(1, STEPS)
        began = time.monotonic()
        with started(_commands(target, names, members)) as processes:
            connect_s = time.monotonic() - began
            moved(2, STEPS)
            cold_s, cold_cpu_s, clients_cpu_s = _settled(target, processes, "go\n")
            moved(3, STEPS)
            quiet = _quiet(target, quiet_seconds)
            moved(4, STEPS)
            killed_s, killed_cpu_s, _ = _settled(
                target, processes[1:], f"expect {members - 1}\n", processes[0]
            )
            moved(STEPS, STEPS)
    return Rebalance(
        groups=groups,
        members=members,
        queues=queues,
        connect_s=round(connect_s, 2),
        cold_s=round(cold_s, 3),
        cold_coordinator_cpu_s=round(cold_cpu_s, 2),
        cold_clients_cpu_s=round(clients_cpu_s, 2),
        killed_s=round(killed_s, 3),
        killed_coordinator_cpu_s=round(killed_cpu_s, 2),
        quiet_seconds=quiet_seconds,
        quiet_coordinator_percent=round(100 * quiet["coordinator"] / quiet_seconds, 1),
        quiet_broker_percent=round(100 * sum(quiet.values()) / quiet_seconds, 1),
        load_1m=round(psutil.getloadavg()[0], 1),
    )


def _make_topics(target: Target, names: Sequence[str], queues: int) -> None:
    """Make all of them, many at a time: one that waits for its answer takes a change of its own.

    Raises StoreUnavailable.
    """
    with zmq.Context() as context, dial(context, target.produce, PRODUCE_ANSWER_BYTES) as socket:
        for first in range(0, len(names), AT_ONCE):
            part = names[first : first + AT_ONCE]
            for number, name in enumerate(part):
                socket.send(encode(CreateTopic(number + 1, name, queues, "")))
            for _ in part:
                answer = None
                if socket.poll(SETTLE_S * 1000):
                    answer = decode_produce_answer(socket.recv_multipart()[0])
                if not isinstance(answer, Routed):
                    raise StoreUnavailable("the topics of this measurement were not made", answer)


def _commands(target: Target, names: Sequence[str], members: int) -> list[list[str]]:
    orders = (
        Crowd(target.group, list(names), number, members, SESSION_MS) for number in range(members)
    )
    command = (sys.executable, "-m", "penstock.bench.loads.crowd_process")
    return [[*command, msgspec.json.encode(order).decode()] for order in orders]


def _settled(
    target: Target, processes: Sequence[LoadProcess], word: str, victim: LoadProcess | None = None
) -> tuple[float, float, float]:
    """Seconds until all have reported that they are settled, and CPU seconds of the coordinator and
    of the processes; with a `victim`, from its death on."""
    before = target.accounts.cpu_s()["coordinator"]
    if victim is not None:
        for process in processes:
            process.tell(word)
    began_ns = time.monotonic_ns()
    if victim is not None:
        victim.process.send_signal(SIGKILL)
    else:
        for process in processes:
            process.tell(word)
    told = [process.hear(SETTLE_S) for process in processes]
    used = target.accounts.cpu_s()["coordinator"] - before
    seconds = (max(each["settled_ns"] for each in told) - began_ns) / 1e9
    return seconds, used, sum(each["cpu_s"] for each in told)


def _quiet(target: Target, seconds: float) -> dict[str, float]:
    """CPU seconds of each actor in this time, in which members send only heartbeats."""
    time.sleep(SESSION_MS / 2000)  # until the last changes have been heard
    before = target.accounts.cpu_s()
    time.sleep(seconds)
    after = target.accounts.cpu_s()
    return {name: after[name] - before[name] for name in after}
