"""Programs with transactions, killed with whatever of the broker they talk to.

In the end each message whose local transaction was committed is seen once, no other message is
seen, and no half message is left without an outcome.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, running
from penstock.chaos.clients.seller import GROUP, QUEUES, TOPIC, answer, decided
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer

PROGRAMS = 2
# in a round
STRIKES, TRANSACTIONS = 10, 500
# Seconds from the last strike until all open ones must have been checked and ended.
SETTLE_S = 45.0
# What is struck, in percent.
STRUCK = {"program": 30, "transactions": 30, "writer": 15, "reput": 5, "flusher": 5, "broker": 15}
SOON: dict[str, object] = {"transaction_check_interval_ms": 500, "transaction_time_out_ms": 200}


class Verdict(NamedTuple):
    """What was struck, how local transactions ended, and where messages disagree with that."""

    struck: Counter[str]
    committed: int
    rolled_back: int
    seconds: float
    wrong: list[str]

    def __str__(self) -> str:
        struck = ", ".join(f"{count} x {name}" for name, count in sorted(self.struck.items()))
        return (
            f"{self.struck.total()} kills ({struck}) in {self.seconds:.0f} s: "
            f"{self.committed:,} committed, {self.rolled_back:,} rolled back, "
            f"{len(self.wrong)} wrong"
        )


def transactions_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        found = run_transactions(room, any_settings(dice), STRIKES, TRANSACTIONS, dice)
    for kind, count in found.struck.items():
        arena.report.add_fault(f"{kind} killed in transactions", count)
    arena.report.add_violations(found.wrong, replay)


class Sellers:
    """Programs on one broker, and the record of their local transactions."""

    def __init__(self, broker: Broker, place: Path) -> None:
        self.broker, self._place = broker, place
        self.record = place / "record"
        self.record.mkdir(parents=True)
        with Producer(store=broker.store, timeout_ms=60_000) as producer:
            producer.create_topic(TOPIC, QUEUES)
        self._started = 0
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start one more program."""
        self._started += 1
        with (self._place / f"seller-{self._started}").open("ab") as said:
            seller = (sys.executable, "-m", "penstock.chaos.clients.seller")
            self._programs.append(
                subprocess.Popen(
                    [*seller, self.broker.store, self.record, str(self._started)],
                    stdout=said,
                    stderr=said,
                )
            )

    def kill(self) -> None:
        """Kill the oldest program."""
        program = self._programs.pop(0)
        program.send_signal(SIGKILL)
        program.wait()

    def mend(self) -> None:
        """Start programs again that have ended because their broker was away."""
        ended = [program for program in self._programs if program.poll() is not None]
        for program in ended:
            self._programs.remove(program)
            self.start()

    def kill_all(self) -> None:
        while self._programs:
            self.kill()

    def settle(self) -> list[str]:
        """End open transactions as a program that answers checks; return what is wrong."""
        self.kill_all()

        def on_check(message: object) -> object:
            return answer(self.record, message)

        arguments = {"group": GROUP, "on_check": on_check, "timeout_ms": 60_000}
        with Producer(store=self.broker.store, **arguments):  # type: ignore[arg-type]  # by name
            until = time.monotonic() + SETTLE_S
            while open_now := self.broker.status()["positions"]["transactions_open"]:
                if time.monotonic() > until:
                    return [f"{open_now} half messages have no outcome"]
                time.sleep(0.2)
        return self._compare()

    def _compare(self) -> list[str]:
        with Consumer(store=self.broker.store, topic=TOPIC, follow=False) as consumer:
            seen = Counter(bytes(message.body).decode() for message in consumer)
        known = decided(self.record)
        wrong = [f"{key} is seen {count} times" for key, count in seen.items() if count > 1]
        wrong += [f"{key} is seen: {known.get(key)}" for key in seen if known.get(key) != "commit"]
        committed = {key for key, outcome in known.items() if outcome == "commit"}
        wrong += [f"{key} was committed, and is not seen" for key in committed - seen.keys()]
        return wrong


def run_transactions(
    place: Path,
    settings: Mapping[str, object],
    strikes: int,
    transactions: int,
    dice: random.Random,
) -> Verdict:
    """Strike `strikes` times, and continue until this many local transactions have ended."""
    struck: Counter[str] = Counter()
    began = time.monotonic()
    with running(place, {**settings, **SOON}) as broker:
        sellers = Sellers(broker, place)
        try:
            for _ in range(PROGRAMS):
                sellers.start()
            while struck.total() < strikes or len(os.listdir(sellers.record)) < transactions:
                time.sleep(dice.uniform(0.1, 0.8))  # the moment is what varies
                sellers.mend()
                if struck.total() < strikes:
                    kind = dice.choices(list(STRUCK), list(STRUCK.values()))[0]
                    _strike(kind, broker, sellers)
                    struck[kind] += 1
            wrong = sellers.settle()
        finally:
            sellers.kill_all()
        outcomes = Counter(decided(sellers.record).values())
    seconds = time.monotonic() - began
    return Verdict(struck, outcomes["commit"], outcomes["rollback"], seconds, wrong)


def _strike(kind: str, broker: Broker, sellers: Sellers) -> None:
    if kind == "program":
        sellers.kill()
        sellers.start()
    elif kind == "broker":
        broker.kill()
        broker.start()
    else:
        broker.strike(kind, SIGKILL)
