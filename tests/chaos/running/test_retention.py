"""Messages expire under load, while the cleaner and the broker are killed: nothing else is lost.

Whoever is ahead reads everything, whoever lags is told, the store stays whole, and the disk
gets its room back.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos.history import digest
from penstock.cli.admin.clean import request_clean
from penstock.client.reading.consumer import Consumer
from penstock.shared.layout import StorePaths
from penstock.shared.process.find_broker import find_running
from penstock.shared.store.deletions import KEPT
from penstock.shared.store.directory import StoreDirectory

pytestmark = pytest.mark.takes(15)

TOPIC = "chaos"
QUEUES = 4
KILLS = 12
SEGMENT_BYTES = 256 << 10
TIMEOUT_S = 60
# the checkpoint bounds what may go, so it is written often
QUICK: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": SEGMENT_BYTES,
    "mapped_file_size_consume_queue_bytes": 20 * 200,
    "file_reserved_time_h": 0,
    "flush_interval_consume_queue_ms": 100,
    "flush_consume_queue_thorough_interval_ms": 100,
    "delete_commit_log_files_interval_ms": 20,
    "delete_consume_queue_files_interval_ms": 5,
    "clean_resource_interval_ms": 50,
}
ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))


class Reading:
    """A consumer that is polled by hand; remembers offsets and bodies of each queue."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self.consumer = Consumer(endpoint, TOPIC, **options)
        self.seen: dict[int, dict[int, bytes]] = defaultdict(dict)

    def poll(self) -> None:
        for message in self.consumer.poll(0.02):
            queue = self.seen[message.queue_id]
            assert not queue or message.queue_offset > max(queue), "in order, and once"
            queue[message.queue_offset] = bytes(message.body)

    def until(self, ends: dict[int, int]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.consumer.positions.get(queue, 0) < end for queue, end in ends.items()):
            assert time.monotonic() < deadline, (self.consumer.positions, ends)
            self.poll()
        self.poll()

    def missing(self, ends: dict[int, int]) -> int:
        """Offsets of queues, from 0 on, that never came; of one all may have gone."""
        return sum(end - len(self.seen.get(queue, ())) for queue, end in ends.items())


@pytest.fixture
def reading() -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(endpoint: str, **options: Any) -> Reading:
        made.append(Reading(endpoint, **options))
        return made[-1]

    yield make
    for each in made:
        each.consumer.close()


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _ends(load: Any) -> dict[int, int]:
    ends: dict[int, int] = {}
    for sent in load.acked:
        ends[sent.queue_id] = max(ends.get(sent.queue_id, 0), sent.queue_offset + 1)
    return ends


def _check_stored(load: Any, found: Reading) -> None:
    """Every acknowledged message is where it was acknowledged, from each queue's beginning on."""
    for sent in load.acked:
        there = found.seen[sent.queue_id]
        if there and sent.queue_offset >= min(there):
            assert digest(there[sent.queue_offset]) == sent.digest


def _position(broker: Any, name: str) -> int:
    return int(broker.status()["positions"][name])


def _check_told(broker: Any) -> None:
    """All that went is on the list, once, with its messages, whoever was killed."""
    found = broker.status()
    rows = found["deletions"]
    ends = [row["log_end"] for row in rows]
    assert [row["log_start"] for row in rows][1:] == ends[:-1] and len(rows) < KEPT
    assert rows[0]["log_start"] == 0 and ends[-1] == found["positions"]["log_start"]
    assert [row["segments"] for row in rows] == [
        (row["log_end"] - row["log_start"]) // SEGMENT_BYTES for row in rows
    ]
    with StoreDirectory(broker.store) as store:
        gone = sum(queue.min_offset for queue in store.queues())
    assert sum(row["messages"] for row in rows) == gone > 0
    said = broker.output()
    for row in rows:
        assert f", {row['log_end']}), with" in said


def test_under_load_old_messages_go_and_no_others_whoever_is_killed(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    reading: Callable[..., Reading],
    check_store: Callable[..., None],
) -> None:
    running = broker(**QUICK, delete_when=ALWAYS)
    running.start()
    sent = load("p", running.produce, rate=3000)
    ahead = reading(running.consume)
    _await(lambda: sent.count() > 0, "the first acknowledgement")
    dice = random.Random(5)
    for _ in range(KILLS):
        before = _position(running, "deleted_segments")
        while _position(running, "deleted_segments") == before:
            ahead.poll()
        stop = time.monotonic() + dice.uniform(0, 0.05)
        while time.monotonic() < stop:
            ahead.poll()
        if pid := running.actors()["cleaner"]:
            os.kill(pid, signal.SIGKILL)
    sent.finish()
    ends = _ends(sent)
    ahead.until(ends)
    assert ahead.missing(ends) == ahead.consumer.skipped, "what it did not get it was told of"
    assert _position(running, "log_start") >= KILLS * SEGMENT_BYTES
    assert _position(running, "recycled_segments") > 0
    running.kill()  # between two deletions, or after the last
    running.start()
    # Nothing new comes, so the cleaner soon has nothing to do; what went while a slow consumer
    # reads would be a gap.
    _await(lambda: request_clean(running.store)["segments"] == [], "the last deletion")
    after = reading(running.consume, start=dict.fromkeys(range(QUEUES), 0))
    after.until(ends)
    assert after.consumer.skipped == after.missing(ends) > 0
    for queue, found in after.seen.items():
        assert list(found) == list(range(min(found), ends[queue])), (
            "from its beginning without gaps"
        )
    _check_stored(sent, after)
    _check_told(running)
    running.stop()
    check_store(running)


def test_a_broker_killed_between_two_deletions_opens_and_goes_on(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    reading: Callable[..., Reading],
    check_store: Callable[..., None],
) -> None:
    running = broker(**QUICK | {"clean_resource_interval_ms": 10**8}, delete_when="00")
    running.start()
    sent = load("p", running.produce, rate=6000)
    _await(lambda: _position(running, "wrote") > 8 * SEGMENT_BYTES, "eight segments")
    sent.finish()
    reached = set()
    for _ in range(4):
        before = _position(running, "deleted_segments")

        def deleted(before: int = before) -> bool:
            # asked again: at first the cleaner does not know yet what the scheduler still needs
            find_running(running.store).clean_request.touch()
            return _position(running, "deleted_segments") > before

        _await(deleted, "a deletion")
        running.kill()
        first = min(StorePaths(running.store).commit_log.iterdir())
        reached.add(int(first.name))
        running.start()
        assert _position(running, "log_start") == int(first.name)
        if int(first.name) >= 6 * SEGMENT_BYTES:
            break
    found = reading(running.consume)
    found.until(_ends(sent))
    _check_stored(sent, found)
    _check_told(running)
    running.stop()
    check_store(running)


def test_a_consumer_that_is_stopped_while_it_reads_keeps_no_room_on_the_disk(
    broker: Callable[..., Any],
    load: Callable[..., Any],
    reading: Callable[..., Reading],
) -> None:
    running = broker(
        **QUICK | {"clean_resource_interval_ms": 10**8},
        delete_when="00",
        destroy_mapped_file_interval_forcibly_ms=500,
    )
    running.start()
    sent = load("p", running.produce, rate=6000)
    _await(lambda: _position(running, "wrote") > 6 * SEGMENT_BYTES, "six segments")
    sent.finish()
    running.await_dispatched()
    ahead = reading(running.consume)
    ahead.until(_ends(sent))
    command = [sys.executable, "-m", "penstock.cli.main", "consume", TOPIC, "--follow"]
    stuck = subprocess.Popen(
        [*command, "--endpoint", running.consume], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert stuck.stdout is not None and stuck.stdout.readline()
        stuck.send_signal(signal.SIGSTOP)
        log = StorePaths(running.store).commit_log
        before = _blocks(log)
        _await(lambda: len(request_clean(running.store)["segments"]) > 0, "something to delete")
        assert _blocks(log) < before
        _await(lambda: _deleted_and_open(running) == [], "every process lets go")
    finally:
        stuck.kill()
        stuck.communicate()
    ahead.poll()
    assert (ahead.missing(_ends(sent)), ahead.consumer.skipped) == (0, 0)
    running.stop()


def _blocks(directory: Path) -> int:
    return sum(path.stat().st_blocks for path in directory.iterdir())


def _deleted_and_open(broker: Any) -> list[str]:
    """What the broker's processes still have open or mapped of deleted files of the store."""
    found = []
    for pid in broker.processes():
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        found += [line for line in maps if str(broker.store) in line and "(deleted)" in line]
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except FileNotFoundError:
                continue  # closed since
            if str(broker.store) in target and target.endswith("(deleted)"):
                found.append(target)
    return found
