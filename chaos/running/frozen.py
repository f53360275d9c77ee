"""Processes that freeze for a while and continue: actors, the supervisor, a client.

A frozen actor may continue before it is noticed, while it is being replaced, or just when its
supervisor, frozen too, comes back to kill it. Whenever that is, no old actor may write next to its
successor.
"""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.scene import Scene, scene
from penstock.shared.faults import FIRED_VARIABLE, VARIABLE
from penstock.shared.memory.process_state import is_stopped
from penstock.shared.memory.roster import ACTORS

# in a round
FREEZES = 7
# around the 200 ms after which an actor counts as stopped
MOMENTS_S = (0.02, 0.15, 0.19, 0.2, 0.21, 0.25, 0.5, 1.0)
LINES = 2000
TIMEOUT_S = 30
# seconds for the supervisor to freeze after its point has fired
GOES_ON_S = 2


def frozen_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        fired = room / "fired"
        fired.touch()
        # the supervisor itself freezes right before a kill, or right after a fork
        point = dice.choice(("sup.before_kill_old", "sup.after_spawn"))
        # skip the forks of the start: with the supervisor frozen the broker would never be ready
        started = len(ACTORS) + 1 if point == "sup.after_spawn" else 0
        environment = {
            VARIABLE: f"{point}=stop@{dice.randint(1, 2) + started}",
            FIRED_VARIABLE: str(fired),
        }
        with scene(arena, room, any_settings(dice), environment, rate=500) as it:
            with _client(it) as wrong:
                for _ in range(FREEZES):
                    time.sleep(dice.uniform(0, 0.1))
                    freeze(it, dice)
                    if fired.stat().st_size:
                        _thaw_beside_the_supervisor(it, dice)
                        fired.write_bytes(b"")
                if _disarm(fired, point):
                    _thaw_beside_the_supervisor(it, dice)
            it.finish(replay, wrong)


def freeze(it: Scene, dice: random.Random) -> None:
    """Freeze an actor or the supervisor, let it continue, and check that a message gets through."""
    broker = it.broker
    struck = time.monotonic()
    kind = dice.choices(("actor", "flutter", "supervisor"), (5, 1, 2))[0]
    if kind == "supervisor":
        os.kill(broker.process.pid, SIGSTOP)
        actor = dice.choice(ACTORS)
        # the frozen supervisor cannot notice this
        pid = broker.strike(actor, dice.choice((SIGKILL, SIGSTOP)))
        time.sleep(dice.choice(MOMENTS_S))
        first, then = dice.sample((pid, broker.process.pid), 2)
        _go_on(first)
        time.sleep(dice.choice((0.0, *MOMENTS_S)))
        _go_on(then)
    else:
        actor = dice.choice(ACTORS)
        for _ in range(8 if kind == "flutter" else 1):
            pid = broker.strike(actor, SIGSTOP)
            time.sleep(0.03 if kind == "flutter" else dice.choice(MOMENTS_S))
            _go_on(pid)
    it.arena.report.add_fault(f"frozen for a while: {kind}")
    if not is_stopped(broker.process.pid):
        it.probe(f"frozen for a while: {kind}", struck)


def _disarm(fired: Path, point: str) -> bool:
    """Return whether the point had fired, and keep it from firing: it may do so only once."""
    with fired.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        had_fired = bool(file.read())
        file.write(f"{point} {os.getpid()}\n")
    return had_fired


def _thaw_beside_the_supervisor(it: Scene, dice: random.Random) -> None:
    """The supervisor is frozen at the point; let actors that it takes for frozen continue."""
    struck = time.monotonic()
    supervisor = it.broker.process.pid
    while not is_stopped(supervisor):
        if time.monotonic() > struck + GOES_ON_S:
            return  # another freeze, at the same time, has already let it continue
        time.sleep(0.001)
    for pid in it.broker.processes():
        if pid != supervisor:
            _go_on(pid)
    time.sleep(dice.choice(MOMENTS_S))
    os.kill(supervisor, SIGCONT)
    it.arena.report.add_fault("frozen for a while: supervisor at a kill")
    it.probe("frozen for a while: supervisor at a kill", struck)


@contextmanager
def _client(it: Scene) -> Iterator[list[str]]:
    """A producer in its own process, which freezes, too; yields what is wrong with its messages."""
    wrong: list[str] = []
    command = [sys.executable, "-m", "penstock.cli.main", "produce", "client", "-o", "json"]
    client = subprocess.Popen(
        [*command, "--endpoint", it.broker.produce],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert client.stdin is not None
    try:
        client.stdin.write("".join(f"{number}\n" for number in range(LINES // 2)))
        client.stdin.flush()
        os.kill(client.pid, SIGSTOP)
        yield wrong
        os.kill(client.pid, SIGCONT)
        said, _ = client.communicate("".join(f"{n}\n" for n in range(LINES // 2, LINES)), TIMEOUT_S)
        if client.returncode or len(said.splitlines()) != LINES:
            got = len(said.splitlines())
            wrong.append(f"a client that stood still got {got} of {LINES} messages through")
    finally:
        client.kill()
        client.wait()


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, SIGCONT)
    except ProcessLookupError:
        return  # it has been replaced
