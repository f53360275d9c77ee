"""Starts and stops of a broker that die at any of their points are repeated, and nothing is
lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from penstock.chaos.arena import Arena
from penstock.chaos.broker import GONE_TIMEOUT_S, SMALL, SMALL_SEGMENT_BYTES, Broker
from penstock.chaos.crashes.armed import Armed, not_reached
from penstock.chaos.load import TOPIC, Load
from penstock.chaos.stepped.replay import check_store
from penstock.chaos.under_load import await_acked, make_topics
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import read_run

# what is written stays in the pool, unless somebody waits for the disk or half of it is full
LAZY: dict[str, object] = {
    "commit_commit_log_least_pages": 10_000,
    "commit_commit_log_thorough_interval_ms": 60_000,
}


def die_in_start(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Arm the points of a start and a stop, pass them, and start until nothing fires."""
    broker = Broker(place, SMALL | LAZY)
    sent: list[Load] = []
    try:
        broker.start()
        make_topics(broker)
        number = torn = 0
        while missing := armed.missing():
            number += 1
            if armed.has_stalled():
                raise not_reached(missing, broker)
            send_some(broker, sent)
            # as long as shared memory is there, a start leaves the index to the next reput
            power_fails = "index.mid_repair" in missing and number % 4 == 1
            if power_fails:
                _send_durable(broker, sent)
            _end(broker, missing, number)
            if StorePaths(broker.store).abort.exists():
                torn += tear(broker, dice)
                if power_fails:
                    broker.forget_memory()
            if "geometry.written" in missing:
                # like a store of an older version
                StorePaths(broker.store).geometry.unlink(missing_ok=True)
            if any(name.startswith("recover.queue") for name in missing):
                shutil.rmtree(StorePaths(broker.store).queue(TOPIC, 0))
            broker.environment = armed.environment()
            while not start_or_die(broker):
                arena.moved()
        broker.stop()
        acked = [each for load in sent for each in load.acked]
        wrong = check_store(broker.store, broker.config, TOPIC, acked, [])
        return wrong if torn else [*wrong, "no start found a torn end"]
    finally:
        for each in sent:
            each.abandon()
        broker.clear()


def send_some(broker: Broker, sent: list[Load]) -> None:
    """Send messages that get to disk, and some more that stay in the pool."""
    _send_durable(broker, sent)
    sent.append(Load(f"w{len(sent)}", broker.produce, ack="written"))
    await_acked(sent[-1:], 600)
    sent[-1].abandon()


def _send_durable(broker: Broker, sent: list[Load]) -> None:
    """Send messages that get to disk, with all that came before them."""
    sent.append(Load(f"d{len(sent)}", broker.produce, ack="durable"))
    await_acked(sent[-1:], 100)
    sent[-1].finish()


def _end(broker: Broker, missing: set[str], number: int) -> None:
    """Bring the broker down in such a way that it passes points that have not fired yet."""
    if "sup.before_kill_old" in missing and broker.environment:
        broker.strike("reader", SIGSTOP)
        broker.process.wait(GONE_TIMEOUT_S)
    elif number % 2 == 0 or all(name.startswith("shutdown.") for name in missing):
        broker.process.terminate()
    else:
        broker.process.kill()
    broker.wait_end()
    broker.await_gone()


def tear(broker: Broker, dice: random.Random) -> bool:
    """Leave bytes past the log's end, like a write cut off by a crash. Returns whether there was
    room."""
    run = read_run(StorePaths(broker.store))
    assert run is not None
    positions = Positions(run.positions)
    wrote = positions["wrote"]
    positions.close()
    path = StorePaths(broker.store).commit_log / segment_name(wrote - wrote % SMALL_SEGMENT_BYTES)
    if not path.exists() or wrote % SMALL_SEGMENT_BYTES > SMALL_SEGMENT_BYTES - 100:
        return False
    with path.open("r+b") as file:
        file.seek(wrote % SMALL_SEGMENT_BYTES)
        file.write(dice.randbytes(30))
    return True


def start_or_die(broker: Broker) -> bool:
    """Start. Returns whether it serves; otherwise it was killed at a point."""
    broker.launch()
    try:
        broker.wait_ready()
        return True
    except StoreUnavailable:
        if broker.wait_end() != -SIGKILL:
            raise
        broker.await_gone()
        return False
