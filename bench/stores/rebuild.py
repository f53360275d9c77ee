"""How long does a rebuild of queues and index take, in one process and on Spark's cores?

A broker writes a store, or one is named. Then `penstock store rebuild`, pinned to one core, takes
turns with the job on Spark, with one core and more. After each run the files must be those that the
broker's reput wrote. The time is that of the rebuild, without the start of a Spark session. Memory
is the most that one of Spark's Python workers had, and the most of all processes with Java's
together, sampled 20 times a second.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from penstock.bench.loads.stack import running_stack
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreDamaged, StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.store.watermark import load_watermark
from penstock.spark.jobs.manifest import digest_of

TOPICS, QUEUES = 4, 4
LOOK_S = 0.05
Moved = Callable[[int, int], None]


class _Done(msgspec.Struct, frozen=True):
    """The fields that are used here of what both commands print with -o json."""

    messages: int
    keys: int
    seconds: float


class RebuildRow(msgspec.Struct, frozen=True):
    """The best run of one way. `cores` 0 is `penstock store rebuild`, on one core."""

    cores: int
    seconds: float
    to_native: float
    worker_mib: int
    all_mib: int


class RebuildResult(msgspec.Struct, frozen=True):
    messages: int
    log_bytes: int
    keys: int
    rows: list[RebuildRow]


def bench_rebuild(
    store: Path | None, gib: float, size: int, cores: Sequence[int], runs: int, moved: Moved
) -> RebuildResult:
    """Measure on `store`, which is made if it does not exist, or on a temporary one.

    Raises StoreDamaged if a rebuild makes other files than there were.
    """
    place = Path(tempfile.mkdtemp(prefix="penstock-rebuild-"))
    root = store or place / "store"
    try:
        if not (root / "commitlog").is_dir():
            fill(root, int(gib * (1 << 30)), size)
        paths = StorePaths(root)
        before = digests(paths)
        best: dict[int, tuple[_Done, int, int]] = {}
        ways = [0, *cores]
        for number in range(runs * len(ways)):
            way = ways[number % len(ways)]
            found = _on_spark(root, way) if way else _native(root)
            if way not in best or found[0].seconds < best[way][0].seconds:
                best[way] = found
            if digests(paths) != before:
                raise StoreDamaged("a rebuild made other files than the reput", root)
            moved(number + 1, runs * len(ways))
        log_bytes = _log_bytes(paths)
    finally:
        shutil.rmtree(place)
    native = best[0][0]
    rows = [
        RebuildRow(way, done.seconds, native.seconds / done.seconds, worker, together)
        for way, (done, worker, together) in best.items()
    ]
    return RebuildResult(native.messages, log_bytes, native.keys, rows)


def _log_bytes(paths: StorePaths) -> int:
    """The bytes in the log; the length of its files if only RocketMQ has written it, because that
    keeps no note of the log's end."""
    mark = load_watermark(paths.watermark)
    if mark is None:
        return sum(file.stat().st_size for file in paths.commit_log.iterdir())
    return mark.flushed - min(int(file.name) for file in paths.commit_log.iterdir())


def fill(root: Path, log_bytes: int, size: int) -> None:
    """Fill a store with messages with keys: 4 topics of 4 queues each, no two bodies equal."""
    dice = random.Random(1)
    settings = ('flush_disk_type = "async"',)
    with running_stack(root, settings) as stack, Producer(store=stack.store) as producer:
        for topic in range(TOPICS):
            producer.create_topic(f"bench-{topic}", QUEUES)
        # about what a record has besides its body
        for number in range(log_bytes // (size + 180)):
            producer.send(
                f"bench-{number % TOPICS}",
                dice.randbytes(size),
                queue=number // TOPICS % QUEUES,
                tags="tag",
                keys=f"key-{number}",
            )
        producer.flush(600)


def digests(paths: StorePaths) -> tuple[dict[str, str], list[str]]:
    """Digests of the queues' files by name, and of the index files, whose names are times."""
    queues = sorted(path for path in paths.consume_queue.rglob("*") if path.is_file())
    return (
        {str(path.relative_to(paths.consume_queue)): digest_of(path) for path in queues},
        [digest_of(path) for path in sorted(paths.index.iterdir())],
    )


def _native(root: Path) -> tuple[_Done, int, int]:
    core = min(os.sched_getaffinity(0))
    return _measured(["taskset", "--cpu-list", str(core)], ["store", "rebuild", str(root)])


def _on_spark(root: Path, cores: int) -> tuple[_Done, int, int]:
    return _measured([], ["spark", "rebuild", str(root), "--master", f"local[{cores}]"])


def _measured(under: Sequence[str], arguments: Sequence[str]) -> tuple[_Done, int, int]:
    """A command's result; the MiB of the largest Python process below it, and of all together."""
    command = [*under, sys.executable, "-m", "penstock.cli.main", *arguments, "-o", "json"]
    with tempfile.TemporaryFile() as said:
        running = psutil.Popen(command, stdout=said)
        try:
            below, together = _watched(running)
        finally:  # also if the user interrupts this
            if running.poll() is None:
                running.terminate()
        if running.wait():
            raise StoreUnavailable("a rebuild has failed", f"exit code {running.returncode}")
        said.seek(0)
        done = msgspec.json.decode(said.read().splitlines()[-1], type=_Done)
    return done, below >> 20, together >> 20


def _watched(running: psutil.Popen) -> tuple[int, int]:
    """The most bytes of one Python process below it, and of all together, until it ends."""
    below = together = 0
    while running.poll() is None:
        time.sleep(LOOK_S)
        with suppress(psutil.NoSuchProcess):  # one has ended since it was listed
            sizes = {each: each.memory_info().rss for each in _tree(running)}
            together = max(together, sum(sizes.values()))
            workers = [each for each in sizes if each != running and "python" in each.name()]
            below = max([below, *(sizes[each] for each in workers)])
    return below, together


def _tree(running: psutil.Process) -> list[psutil.Process]:
    return [running, *running.children(recursive=True)]
