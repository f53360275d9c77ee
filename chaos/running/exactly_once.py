"""Programs that copy a topic exactly once, killed with whatever of the broker they talk to.

Two are members of a group; a third reads all their queues besides them, so that each meets what
another has done. Inputs are fed all the while. Once every input has had its effect, the outputs
must be the function of the inputs: nothing missing, nothing twice.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import NamedTuple

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, running
from penstock.chaos.clients.copier import FROM, TO, outputs_of
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import FlushTimeout

PROGRAMS = ("member", "member", "stranger")
QUEUES = 3
# in a round
STRIKES = 12
# Seconds from the last strike until all inputs must have had their effect.
SETTLE_S = 90.0
# Makes the broker tell programs of a late disk, as while the flusher is frozen.
LATE = {"sync_flush_timeout_ms": 200}
# Characters shown of the output of a program that has failed.
_LAST_WORDS = 2000
# What is struck, in percent.
STRUCK = {
    "program": 32,
    "writer": 20,
    "coordinator": 10,
    "reput": 4,
    "flusher": 4,
    "frozen flusher": 6,
    "broker": 14,
    "broker and memory": 10,
}


class Verdict(NamedTuple):
    """What was struck, and which outputs are missing or there more often than they should be."""

    struck: Counter[str]
    inputs: int
    outputs: int
    missing: list[bytes]
    twice: list[bytes]
    ended: list[str]  # the last words of programs that ended by themselves

    def __str__(self) -> str:
        struck = ", ".join(f"{count} x {name}" for name, count in sorted(self.struck.items()))
        return (
            f"{self.struck.total()} kills ({struck}): {self.inputs:,} inputs, {self.outputs:,} "
            f"outputs, {len(self.missing)} missing, {len(self.twice)} twice"
            + "".join(f"; {each}" for each in self.ended)
        )


def exactly_once_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        found = run_exactly_once(room, any_settings(dice), STRIKES, dice)
    for kind, count in found.struck.items():
        arena.report.add_fault(f"{kind} killed while copying", count)
    wrong = [f"an output is missing: {body.decode()}" for body in found.missing]
    wrong += [f"an output is there twice: {body.decode()}" for body in found.twice]
    # where a program has ended by itself, its outputs are missing, too
    arena.report.add_violations(found.ended + wrong, replay)


class _Program:
    """One copier, started again whenever it is killed."""

    def __init__(self, broker: Broker, said: Path, seed: int, kind: str) -> None:
        self._store, self._said, self._seed, self._kind = broker.store, said, seed, kind
        self.start()

    def start(self) -> None:
        self._seed += 1000
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "penstock.chaos.clients.copier",
                    self._store,
                    str(self._seed),
                    self._kind,
                ],
                stdout=said,
                stderr=said,
            )

    @property
    def last_words(self) -> str:
        """What it printed before it ended by itself, which it never should; "" while it runs."""
        if (code := self._process.poll()) is None:
            return ""
        said = self._said.read_text(errors="replace")[-_LAST_WORDS:]
        return f"a copier ({self._kind}) has ended with {code}: ...{said}"

    def kill(self) -> None:
        self._process.send_signal(SIGKILL)
        self._process.wait()


def run_exactly_once(
    place: Path,
    settings: Mapping[str, object],
    strikes: int,
    dice: random.Random,
    inputs_each: int = 50,
) -> Verdict:
    """Strike `strikes` times, feed `inputs_each` inputs after each, and return the verdict."""
    struck: Counter[str] = Counter()
    with ExitStack() as stack:
        broker = stack.enter_context(running(place, LATE | dict(settings)))
        feeder = stack.enter_context(Producer(store=broker.store, timeout_ms=120_000))
        feeder.create_topic(FROM, QUEUES)
        for topic in TO:
            feeder.create_topic(topic, QUEUES)
        programs = [
            stack.enter_context(_program(broker, place / f"copier-{number}", number, kind))
            for number, kind in enumerate(PROGRAMS)
        ]
        number = 0
        for _ in range(strikes):
            for _ in range(inputs_each):
                feeder.send(FROM, b"%d" % number)
                number += 1
            time.sleep(dice.uniform(0, 0.4))  # a strike comes at a random moment
            kind = dice.choices(list(STRUCK), list(STRUCK.values()))[0]
            _strike(kind, broker, programs, dice)
            struck[kind] += 1
        with suppress(FlushTimeout):  # what is not stored shows as missing outputs
            feeder.flush(SETTLE_S)
        wanted = Counter(each for at in range(number) for each in outputs_of(b"%d" % at))
        found = _outputs(broker, wanted.total(), programs)
        ended = [program.last_words for program in programs if program.last_words]
    missing, twice = wanted - found, found - wanted
    return Verdict(
        struck,
        number,
        found.total(),
        [body for _, body in missing.elements()],
        [body for _, body in twice.elements()],
        ended,
    )


def _strike(kind: str, broker: Broker, programs: list[_Program], dice: random.Random) -> None:
    if kind == "program":
        program = dice.choice(programs)
        program.kill()
        program.start()
    elif kind.startswith("broker"):
        broker.kill()
        if kind != "broker":
            broker.forget_memory()  # as when a container is made again: the log has what it has
        broker.start()
    elif kind == "frozen flusher":
        broker.strike("flusher", SIGSTOP)
    else:
        broker.strike(kind, SIGKILL)


def _outputs(broker: Broker, wanted: int, programs: list[_Program]) -> Counter[tuple[str, bytes]]:
    """All outputs, once there are as many as there should be and no more come, a program that was
    to write them has ended by itself, or the time is up."""
    until = time.monotonic() + SETTLE_S
    before = -1
    while True:
        found: Counter[tuple[str, bytes]] = Counter()
        for topic in TO:
            with Consumer(store=broker.store, topic=topic, follow=False) as consumer:
                found.update((topic, bytes(message.body)) for message in consumer)
        settled = found.total() == before
        before = found.total()
        has_ended = any(program.last_words for program in programs)
        if has_ended or before >= wanted and settled or time.monotonic() > until:
            return found
        time.sleep(0.5)


@contextmanager
def _program(broker: Broker, said: Path, seed: int, kind: str) -> Iterator[_Program]:
    program = _Program(broker, said, seed, kind)
    try:
        yield program
    finally:
        program.kill()
