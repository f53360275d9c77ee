"""How long does a broker take from its start after a kill to its first acknowledgement?

And then to a query by key? How much memory does it have? Does all that depend on how much it has
stored? Stores of several sizes take turns, so that a slower minute of the machine meets all.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from penstock.bench.loads.accounts import Accounts
from penstock.bench.stores.sparse_store import make_sparse_store, named
from penstock.chaos.broker import SETTINGS, Broker, fixed_ports
from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer
from penstock.shared.config_sources import load_config
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.recovery.history import load_recoveries

MEDIANS = (
    *("acknowledged_s", "ready_s", "cpu_s", "recovery_s", "read_bytes"),
    *("key_query_ms", "memory_mib"),
)
TOPIC, QUEUES, BODY = "bench", 4, bytes(1000)
ANSWER_TIMEOUT_S = 60
QUERIES = 20


class Restart(msgspec.Struct, frozen=True):
    """One start of a killed broker. What it read counts for the log and for consume queues. A query
    is by the unique key of a stored message, and the median of several. Memory is the PSS of all
    its processes after that, without pages of files."""

    gib: float
    queues: int
    index_files: int
    from_memory: bool
    acknowledged_s: float
    ready_s: float
    cpu_s: float  # of all its processes, until the acknowledgement
    recovery_s: float
    read_files: int
    read_bytes: int
    scanned_bytes: int
    key_query_ms: float
    memory_mib: float
    load_1m: float


def bench_restart(
    sizes_gib: Sequence[float],
    queues: int,
    messages: int,
    runs: int,
    settings: Mapping[str, str],
    *,
    memory: bool,
    moved: Callable[[int, int], None],
) -> Iterator[Restart]:
    """Start brokers that were killed right after `messages` of 1000 bytes, `runs` times each.

    Without `memory`, their shared memory is lost, as after a power failure. Raises
    StoreUnavailable.
    """
    config = load_config(flags=settings).config
    chosen = {key: getattr(config, key) for key in (*SETTINGS, *settings)}
    place = Path(tempfile.mkdtemp(prefix="penstock-restart-"))
    brokers: list[Broker] = []
    try:
        for gib in sizes_gib:
            broker = Broker(place / str(len(brokers)), {**chosen, **fixed_ports(gateway=True)})
            brokers.append(broker)
            segments = max(1, round(gib * (1 << 30) / config.mapped_file_size_commit_log_bytes))
            make_sparse_store(broker.store, broker.config, segments, queues, moved)
            broker.start()
            _use(broker, messages)
            broker.await_dispatched()
            broker.await_checkpoint()
            broker.kill()
        for run in range(runs):
            for gib, broker in zip(sizes_gib, brokers, strict=True):
                if not memory:
                    broker.forget_memory()
                yield _restart(broker, gib, queues)
                _use(broker, messages)
                broker.kill()
            moved(run + 1, runs)
    finally:
        for broker in brokers:
            broker.clear()
        shutil.rmtree(place)


def _use(broker: Broker, messages: int) -> None:
    """Send this many messages; all are acknowledged on return."""
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)
        for _ in range(messages):
            producer.send(TOPIC, BODY)
        producer.flush(ANSWER_TIMEOUT_S)


def _restart(broker: Broker, gib: float, queues: int) -> Restart:
    began = time.monotonic()
    broker.launch()
    with Producer(broker.produce, wait_for_broker_ms=ANSWER_TIMEOUT_S * 1000) as producer:
        producer.send(TOPIC, BODY, queue=0).result(ANSWER_TIMEOUT_S)
        acknowledged = time.monotonic()
        cpu_s = _cpu_s(broker.process.pid)
        broker.wait_ready()
        ready = time.monotonic()
    key_query_ms = _key_query_ms(broker, queues)
    memory = Accounts({"broker": broker.process.pid}).memory()["broker"]
    found = load_recoveries(StorePaths(broker.store))[-1].found
    return Restart(
        gib=gib,
        queues=queues,
        index_files=len(list(StorePaths(broker.store).index.iterdir())),
        from_memory=found.from_memory,
        acknowledged_s=round(acknowledged - began, 3),
        ready_s=round(ready - began, 3),
        cpu_s=round(cpu_s, 2),
        recovery_s=round(found.seconds, 3),
        read_files=found.read_files,
        read_bytes=found.read_bytes,
        scanned_bytes=found.scanned_bytes,
        key_query_ms=round(key_query_ms, 2),
        memory_mib=memory.own_mib,
        load_1m=round(psutil.getloadavg()[0], 1),
    )


def _key_query_ms(broker: Broker, queues: int) -> float:
    """The median for messages in the sparse store's first segments."""
    took = []
    with MessageQuery(broker.consume) as query:
        for number in range(min(queues, QUERIES)):
            topic, key = named(number, queues)
            began = time.perf_counter()
            if not query.by_unique_key(topic, key):
                raise StoreUnavailable("a message of the store is not found by its key", key)
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def _cpu_s(pid: int) -> float:
    broker = psutil.Process(pid)
    times = [process.cpu_times() for process in (broker, *broker.children())]
    return float(sum(each.user + each.system for each in times))


def medians(restarts: Sequence[Restart]) -> list[tuple[float, ...]]:
    """For each size: the number of starts, and the median and the longest of their times, ..."""
    rows = []
    for gib in dict.fromkeys(each.gib for each in restarts):
        chosen = [each for each in restarts if each.gib == gib]
        middle = [
            round(statistics.median(getattr(each, name) for each in chosen), 3) for name in MEDIANS
        ]
        longest = max(each.acknowledged_s for each in chosen)
        rows.append((gib, len(chosen), middle[0], longest, *middle[1:]))
    return rows
