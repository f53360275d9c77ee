"""Producers that are killed at every point of their work with a ring in shared memory.

Each is `penstock produce` in a process of its own, which reports what was acknowledged until it is
killed. The broker is never killed: its actors go on, whatever a producer leaves half done, and free
its memory.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import STALL_S, Armed, not_reached
from penstock.chaos.history import Sent, check_acknowledged, check_order, digest
from penstock.chaos.load import TOPIC, read_all
from penstock.chaos.stepped.replay import check_whole
from penstock.chaos.under_load import make_topics
from penstock.shared.errors import StoreUnavailable
from penstock.shared.memory.ring_file import ring_files

# enough for a ring, and for some frames in it
MESSAGES, BODY_BYTES = 4000, 1000
_QUEUE = 1


def die_sending(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Kill producers at every point where their death could show in shared memory."""
    broker = Broker(place, SMALL | any_settings(dice))
    acked: list[Sent] = []
    try:
        broker.start()
        make_topics(broker)
        actors, round_number = broker.actors(), 0
        while armed.missing():
            if armed.has_stalled():
                raise not_reached(armed.missing(), broker)
            acked += send_and_die(broker, place, f"p{round_number}", armed)
            round_number += 1
            arena.moved()
        wrong = [] if broker.actors() == actors else ["an actor was restarted"]
        wrong += rings_left(broker)
        broker.await_dispatched()
        stored = read_all(broker.consume)
        wrong += check_acknowledged(acked, stored, "which were acknowledged") + check_order(stored)
        broker.stop()
        return wrong + check_whole(broker.store, broker.config)
    finally:
        broker.clear()


def send_and_die(broker: Broker, place: Path, name: str, armed: Armed) -> list[Sent]:
    """Run one producer. Returns what it reported as acknowledged. Raises StoreUnavailable if it
    fails."""
    lines = place / name
    bodies = [f"{name}/{_QUEUE}/{n}/".encode().ljust(BODY_BYTES, b".") for n in range(MESSAGES)]
    lines.write_bytes(b"\n".join(bodies))
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "produce", TOPIC, str(lines)]
        + ["--queue", str(_QUEUE), "--endpoint", broker.produce, "-o", "json"],
        env={**os.environ, **armed.environment(alone=True)},
        capture_output=True,
        timeout=60,
    )
    if ran.returncode not in (0, -SIGKILL):
        raise StoreUnavailable(
            "a producer ended with another exit code than 0", ran.returncode, ran.stderr.decode()
        )
    # an incomplete line does not count
    said = ran.stdout[: ran.stdout.rfind(b"\n") + 1].splitlines()
    receipts = [json.loads(line) for line in said]
    return [
        Sent(receipt["queue_id"], receipt["queue_offset"], digest(body), 0)
        for receipt, body in zip(receipts, bodies, strict=False)
    ]


def rings_left(broker: Broker) -> list[str]:
    """The rings that are still there without a producer; the broker has some seconds to notice."""
    until = time.monotonic() + STALL_S
    while True:
        status = broker.status()
        files = ring_files(Path(status["run_directory"]))
        count = status["positions"]["rings"]
        if not files and not count:
            return []
        if time.monotonic() > until:
            return [f"without producers {count} rings are counted, and there are {files}"]
        time.sleep(0.05)
