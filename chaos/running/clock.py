"""A wall clock that jumps while a broker works: by a second, an hour, ten years, there and back.

Store times do not go back along the log, and a search by time finds the right message. No message
is deleted for its age. Waits are not measured by this clock: no actor is taken for frozen, and none
waits too long or spins. The producers' clock is right, and so are born times.
"""

from __future__ import annotations

import mmap
import random
import struct
import time
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

import zmq

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.interposed import preload
from penstock.chaos.load import TOPIC
from penstock.chaos.machine.usage import cpu_seconds
from penstock.chaos.scene import Scene, scene
from penstock.client.reading.consumer import Consumer
from penstock.shared.memory.roster import ACTORS
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode
from penstock.shared.wire.sockets import dial

SOURCE = Path(preload.__file__).with_name("skew.c")
YEARS_S = 10 * 365 * 86_400
JUMPS_S = (-1.0, 1.0, -3600.0, 3600.0, -YEARS_S, YEARS_S)
# a bad time server's corrections, again and again
SAWTOOTH_S = (0.05, 0.1, 0.15, -0.3)
# so small that segments could expire, and checked so often that they would
SETTINGS: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": 256 << 10,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "clean_resource_interval_ms": 50,
    "flush_interval_consume_queue_ms": 100,
    "flush_consume_queue_thorough_interval_ms": 100,
}
TIMES_LOOKED_FOR = 20
WAIT_MS = 400
ANSWER_TIMEOUT_MS = 5000
IDLE_S = 0.5
# share of one core, for all processes together
IDLE_CPU_SHARE = 0.3


class Skew:
    """How far the broker's wall clock is ahead. `environment` is for its processes."""

    def __init__(self, place: Path, library: Path) -> None:
        file = place / "skew"
        file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "PENSTOCK_SKEW_FILE": str(file)}
        with file.open("r+b") as handle:
            self._page = mmap.mmap(handle.fileno(), 8)

    def jump(self, seconds: float) -> None:
        (before,) = struct.unpack_from("=q", self._page)
        struct.pack_into("=q", self._page, 0, before + int(seconds * 1e9))

    def close(self) -> None:
        self._page.close()


def clock_round(arena: Arena, dice: random.Random, replay: str) -> None:
    library = arena.library(SOURCE)
    with arena.room() as room:
        skew = Skew(room, library)
        began_ms = time.time_ns() // 1_000_000
        settings = {**SETTINGS, **any_settings(dice)}
        with scene(arena, room, settings, skew.environment, rate=500) as it:
            for seconds in dice.sample(JUMPS_S, len(JUMPS_S)):
                jump(it, skew, seconds, dice)
            for seconds in SAWTOOTH_S * 3:
                skew.jump(seconds)
                time.sleep(0.02)
            it.probe("clock sawtooth", time.monotonic())
            it.settle()
            wrong = _check_waiting(it.broker.consume, skew)
            wrong += _check_times(it.broker.consume, began_ms, dice)
            wrong += _check_actors(it.broker)
            it.finish(replay, wrong)
        skew.close()


def jump(it: Scene, skew: Skew, seconds: float, dice: random.Random) -> None:
    """The clock jumps, perhaps when something dies, and a message gets through."""
    time.sleep(dice.uniform(0, 0.1))
    struck = time.monotonic()
    what = dice.choices(("works", "actor", "kill", "stop"), (4, 3, 1, 1))[0]
    if what == "stop":
        it.broker.stop()
    elif what == "kill":
        it.broker.kill()
    skew.jump(seconds)
    if what == "actor":
        it.broker.strike(dice.choice(ACTORS), 9)
    elif what != "works":
        it.broker.start()
    it.arena.report.add_fault("clock jump")
    it.probe("clock jump", struck)


def _check_waiting(endpoint: str, skew: Skew) -> list[str]:
    """Check that a pull waits as long as it was told, whatever the clock does."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = dial(context, endpoint)
    wrong = []
    for seconds in (-3600.0, 3600.0):
        peer.send(encode(messages.Pull(1, "nowhere", {0: 0}, 0, 1, WAIT_MS)))
        began = time.monotonic()
        skew.jump(seconds)
        answered = peer.poll(20 * WAIT_MS)
        waited_ms = (time.monotonic() - began) * 1000
        if not answered or waited_ms < 0.9 * WAIT_MS:
            wrong.append(f"a pull that may wait {WAIT_MS} ms waits {waited_ms:.0f} ms")
        else:
            peer.recv_multipart()
    peer.close()
    context.term()
    return wrong


def _check_times(endpoint: str, began_ms: int, dice: random.Random) -> list[str]:
    stored: dict[int, list[int]] = defaultdict(list)
    by_place: list[tuple[int, int]] = []
    wrong = []
    ended_ms = time.time_ns() // 1_000_000
    with Consumer(endpoint, TOPIC, follow=False) as consumer:
        for message in consumer:
            stored[message.queue_id].append(message.store_timestamp_ms)
            by_place.append((message.physical_offset, message.store_timestamp_ms))
            if not began_ms <= message.born_timestamp_ms <= ended_ms:
                wrong.append(f"a message is born at {message.born_timestamp_ms}")
    times = [stored_ms for _, stored_ms in sorted(by_place)]
    if times != sorted(times):
        wrong.append("store times go back along the log")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = dial(context, endpoint)
    for at_ms in (0, *dice.sample(times, min(TIMES_LOOKED_FOR, len(times))), times[-1] + 1):
        peer.send(encode(messages.Describe(1, TOPIC, at_ms)))
        if not peer.poll(ANSWER_TIMEOUT_MS):
            wrong.append(f"nobody says where time {at_ms} is")
            break
        answer = messages.decode_consume_answer(peer.recv_multipart()[0])
        if not isinstance(answer, messages.Described):
            wrong.append(f"time {at_ms} is not found: {answer}")
            break
        for queue in answer.queues:
            expected = bisect_left(stored[queue.queue_id], at_ms)
            if queue.at_offset != expected:
                wrong.append(f"time {at_ms} is found at {queue.at_offset}, not at {expected}")
    peer.close()
    context.term()
    return wrong[:3]


def _check_actors(broker: Broker) -> list[str]:
    """Check that no actor was taken for frozen, nothing has expired, and all actors are idle."""
    wrong = [line for line in broker.output().splitlines() if "; replacing it" in line][:1]
    if start := broker.status()["positions"]["log_start"]:
        wrong.append(f"messages below log offset {start} have been deleted")
    pids = broker.processes()
    before = cpu_seconds(pids)
    time.sleep(IDLE_S)
    burned = cpu_seconds(pids) - before
    if burned > IDLE_S * IDLE_CPU_SHARE:
        wrong.append(f"an idle broker has burned {burned:.2f} s in {IDLE_S} s")
    return wrong
