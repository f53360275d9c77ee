"""What is left behind is seen; actors that are replaced again and again hold no more each time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.chaos.broker import Broker
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.interposed.recorder import SOURCE
from penstock.chaos.machine.leaks import Baseline
from penstock.chaos.machine.processes import MARK, descriptors
from penstock.chaos.storage.power import record_run
from penstock.shared.errors import StoreUnavailable
from penstock.shared.memory.roster import ACTORS

pytestmark = pytest.mark.takes(15)

KILLS = 30
# what an actor opens by the clock, it has opened by then
SETTLED_S = 1.5


def test_a_socket_a_thread_s_pipe_a_child_and_a_broker_s_process_are_leaks(tmp_path: Path) -> None:
    before = Baseline(tmp_path)
    held = socket.socket()
    (tmp_path / "file").touch()
    file = os.open(tmp_path / "file", os.O_RDONLY)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeper, env={**os.environ, "PENSTOCK_CHAOS_MARK": MARK})
    try:
        found = before.leaked()
        assert len(found) == 4, found
        for what in ("socket", "file", "child", "process of a broker"):
            assert any(what in each for each in found), what
    finally:
        child.kill()
        child.wait()
        held.close()
        os.close(file)
    assert before.leaked() == []


def test_thirty_kills_leave_every_process_with_the_descriptors_it_had(
    broker: Callable[..., Broker],
) -> None:
    running = broker()
    running.start()
    supervisor = descriptors(running.process.pid)
    first = _settled(running)
    for number in range(KILLS):
        pid = running.strike(ACTORS[number % len(ACTORS)], signal.SIGKILL)
        while pid in running.actors().values() or 0 in running.actors().values():
            time.sleep(0.005)
    assert _settled(running) == first
    assert descriptors(running.process.pid) == supervisor
    running.stop()


def _settled(broker: Broker) -> dict[str, Counter[str]]:
    """What each actor has open, once that stays so."""
    found: dict[str, Counter[str]] = {}
    since = time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        now = {name: descriptors(pid) for name, pid in broker.actors().items()}
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.05)
    return found


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_recorded_run_whose_broker_fails_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build_library(SOURCE, tmp_path)
    before = threading.active_count()

    def fail(*given: object) -> int:
        raise StoreUnavailable("an actor did not come back", given[1])

    monkeypatch.setattr(Broker, "strike", fail)
    monkeypatch.setattr(Broker, "kill", fail)
    with pytest.raises(StoreUnavailable):
        record_run(tmp_path / "run", library, {}, "durable", 30, random.Random(1), orderly=True)
    assert threading.active_count() == before
