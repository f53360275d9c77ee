"""What does a broker cost that nobody uses? Consumers wait for messages, and none comes.

All actors run that run by default. At the end one message is sent, and every consumer must get it:
actors that sleep well have to wake up, too.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec

from penstock.bench.loads.accounts import Ran, ran
from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.target import Where, opened
from penstock.client import Consumer, Producer
from penstock.shared.errors import BrokerTimeout

# Enabled by default, here on free ports; brokers of other measurements have them off.
DEFAULTS = {
    "gateway_enable": "true",
    "gateway_port": "0",
    "gateway_name_server_port": "0",
    "monitor_enable": "true",
    "monitor_port": "0",
}
# By then the actors that a start does not await have begun, and everything that was made for this
# is on disk: queues are synced five seconds after they have grown.
SETTLE_S = 8.0
ANSWER_S = 60


class Rest(msgspec.Struct, frozen=True):
    """One process; `percent` is of one processor, `wakes_per_s` of all its threads."""

    process: str
    percent: float
    wakes_per_s: float


class Idle(msgspec.Struct, frozen=True, tag="idle", tag_field="kind"):
    """One run. `percent` is of one processor, all processes of the broker together."""

    consumers: int
    seconds: float
    percent: float
    wakes_per_s: float
    woken_ms: float  # from the last message's send until the last consumer had it
    processes: list[Rest]
    load_1m: float


def bench_idle(consumers: int, seconds: float, where: Where, moved: Moved) -> Idle:
    """Raises BrokerTimeout if a consumer does not get the message."""
    with opened(where, "durable", DEFAULTS) as target, ExitStack() as stack:
        (topic,) = target.new_topics(4)
        waiting = [stack.enter_context(Consumer(target.consume, topic)) for _ in range(consumers)]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, consumers)))
        timeout_s = SETTLE_S + seconds + ANSWER_S
        polls = [pool.submit(each.poll, timeout_s) for each in waiting]
        _pass(SETTLE_S, moved, 0, SETTLE_S + seconds)
        pids = target.pids()
        before, began = {name: ran(pid) for name, pid in pids.items()}, time.monotonic()
        _pass(seconds, moved, SETTLE_S, SETTLE_S + seconds)
        after, passed_s = {name: ran(pid) for name, pid in pids.items()}, time.monotonic() - began
        with Producer(target.produce) as producer:
            producer.topics()  # connect first, so that only the message is timed
            sent = time.monotonic()
            producer.send(topic, b"wake up")
            if not all(poll.result(timeout_s) for poll in polls):
                raise BrokerTimeout("a consumer that waited did not get the message", topic)
            woken_ms = (time.monotonic() - sent) * 1000
    rows = [_rest(name, before[name], after[name], passed_s) for name in pids]
    return Idle(
        consumers,
        round(passed_s, 3),
        round(sum(row.percent for row in rows), 3),
        round(sum(row.wakes_per_s for row in rows), 1),
        round(woken_ms, 2),
        rows,
        round(os.getloadavg()[0], 1),
    )


def _rest(name: str, before: Ran, after: Ran, seconds: float) -> Rest:
    percent = (after.ns - before.ns) / seconds / 1e7
    return Rest(name, round(percent, 3), round((after.wakes - before.wakes) / seconds, 1))


def _pass(seconds: float, moved: Moved, done_s: float, all_s: float) -> None:
    """Let time pass: the measurement is of nothing happening."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        moved(round((done_s + seconds - left_s) * 1000), round(all_s * 1000))
        time.sleep(min(1.0, left_s))
