"""An actor whose generation is over ends before it does anything more, and writes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.sending.producer import Producer
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.process_state import is_stopped
from penstock.shared.memory.roster import ACTORS
from penstock.shared.process.find_broker import find_running

FENCED_EXIT_CODE = 3
TIMEOUT_S = 60


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@pytest.mark.parametrize("actor", ACTORS)
def test_a_frozen_actor_that_goes_on_beside_a_successor_ends_itself(
    broker: Callable[..., Any], actor: str
) -> None:
    """The supervisor never lets it come to that, so it stands still here while the page says so."""
    running = broker()
    running.start()
    with Producer(running.produce) as producer:
        producer.send("t", b"before").result(TIMEOUT_S)
        zombie = running.actors()[actor]
        os.kill(running.process.pid, signal.SIGSTOP)
        # in its sleep, for the turn that it is in it would end
        _await(lambda: _sleeps(zombie), "it has nothing to do")
        os.kill(zombie, signal.SIGSTOP)
        _await(lambda: is_stopped(zombie), "it stands still")
        positions = Positions(find_running(running.store).positions, owner="supervisor")
        life = positions.life(actor)
        positions.supervise(actor, generation=life.generation + 1)
        positions.close()
        wrote = running.status()["positions"]["wrote"]
        future = producer.send("t", b"for the successor")
        os.kill(zombie, signal.SIGCONT)
        # it has ended when the kernel keeps nothing of it but how
        _await(lambda: _state(zombie) == "Z", "the zombie ends itself")
        if actor == "writer":
            assert running.status()["positions"]["wrote"] == wrote
        os.kill(running.process.pid, signal.SIGCONT)
        future.result(TIMEOUT_S)
    said = f"{actor} (pid {zombie}) exited with {FENCED_EXIT_CODE};"
    _await(lambda: said in running.output(), "the supervisor notices")
    running.stop()


def _sleeps(pid: int) -> bool:
    """Whether it has not been woken for a while, and is not at work now."""
    seen = [_switches(pid)]
    time.sleep(0.02)  # what it does after an answer takes less
    seen.append(_switches(pid))
    return seen[0] == seen[1] and _state(pid) == "S"


def _switches(pid: int) -> list[str]:
    with open(f"/proc/{pid}/status") as status:
        return [line for line in status if "ctxt_switches" in line]


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
