"""How fast does a group's member read, compared with a consumer without a group?

A broker of its own and one backlog. Processes of one consumer each read it from the beginning, one
after the other and again in each run: so the ways take turns, and a ratio is within one run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

import msgspec
import psutil

from penstock.bench.loads.group_load import NEVER_MS, OFTEN_MS, Read, Reading
from penstock.bench.loads.load import body_of
from penstock.bench.loads.load_process import Moved, started
from penstock.bench.loads.target import Target, Where, opened
from penstock.client import Producer

BATCH = 500
# Each way: what it is, and its commit interval in ms. Neighbours are compared.
WAYS: dict[str, tuple[Literal["plain", "batches", "handler"], int]] = {
    "plain": ("plain", NEVER_MS),
    "batches": ("batches", 200),
    "uncommitted": ("batches", NEVER_MS),
    "often": ("batches", OFTEN_MS),
    "handler": ("handler", 200),
}
COMMITS_PER_S = 5
# A process that takes longer than this for its way counts as stuck.
WAIT_S = 60.0


class Speed(msgspec.Struct, frozen=True, tag="speed", tag_field="kind"):
    """One run: messages a second by each way of reading. Batches are also read with no commit
    before the end, and with as many `commits` as possible: `commit_cost_percent` is how much more
    time the default of five commits a second takes."""

    run: int
    messages: int
    size: int
    workers: int
    plain_per_s: int
    batches_per_s: int
    handler_per_s: int
    uncommitted_per_s: int
    often_committed_per_s: int
    commits: int
    batches_of_plain: float
    commit_cost_percent: float
    coordinator_cpu_s: float
    load_1m: float


def bench_speed(
    messages: int, size: int, queues: int, workers: int, runs: int, where: Where, moved: Moved
) -> Iterator[Speed]:
    """Measure each way of reading in each run."""
    with opened(where, "written") as target:
        (topic,) = target.new_topics(queues)
        _fill(target, topic, messages, size)
        target.await_caught_up()
        for run in range(runs):
            found: dict[str, Read] = {}
            cpu = target.accounts.cpu_s().get("coordinator", 0.0)
            # ways to be compared are next to each other, and the order alternates between runs
            for step, way in enumerate(list(WAYS)[:: 1 if run % 2 else -1]):
                how, commit_ms = WAYS[way]
                order = Reading(
                    target.produce,
                    target.consume,
                    topic,
                    messages,
                    how,
                    f"bench-{topic}-{way}-{run}",
                    workers if way == "handler" else 1,
                    commit_ms,
                )
                found[way] = _read(order)
                moved(len(WAYS) * run + step + 1, len(WAYS) * runs)
            used = target.accounts.cpu_s().get("coordinator", 0.0) - cpu
            yield _speed(run, size, workers, found, used)


def _speed(run: int, size: int, workers: int, found: dict[str, Read], cpu_s: float) -> Speed:
    rates = {way: each.messages / each.seconds for way, each in found.items()}
    never, often = found["uncommitted"], found["often"]
    per_commit_s = (often.seconds - never.seconds) / max(1, often.commits)
    return Speed(
        run=run,
        messages=never.messages,
        size=size,
        workers=workers,
        plain_per_s=round(rates["plain"]),
        batches_per_s=round(rates["batches"]),
        handler_per_s=round(rates["handler"]),
        uncommitted_per_s=round(rates["uncommitted"]),
        often_committed_per_s=round(rates["often"]),
        commits=often.commits,
        batches_of_plain=round(rates["batches"] / rates["plain"], 3),
        commit_cost_percent=round(100 * COMMITS_PER_S * per_commit_s, 2),
        coordinator_cpu_s=round(cpu_s, 3),
        load_1m=round(psutil.getloadavg()[0], 1),
    )


def medians(results: Sequence[Speed]) -> tuple[float, ...]:
    """Medians of plain, batches, handler and uncommitted, and of the ratios of each run."""
    names = ("plain_per_s", "batches_per_s", "handler_per_s", "uncommitted_per_s")
    ratios = ("batches_of_plain", "commit_cost_percent")
    return tuple(median(getattr(each, name) for each in results) for name in (*names, *ratios))


def _fill(target: Target, topic: str, messages: int, size: int) -> None:
    body = body_of(size)
    with Producer(target.produce, ack="written") as producer:
        for first in range(0, messages, BATCH):
            producer.send_batch(topic, [body] * min(BATCH, messages - first))
        producer.flush(WAIT_S)


def _read(order: Reading) -> Read:
    command = [sys.executable, "-m", "penstock.bench.loads.group_load"]
    command.append(msgspec.json.encode(order).decode())
    with started([command]) as processes:
        processes[0].go()
        return msgspec.convert(processes[0].hear(WAIT_S), Read)
