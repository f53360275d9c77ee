"""The beats of an actor that waits for the disk."""

from __future__ import annotations

import threading
import time

from penstock.shared.process.pulse import Pulse


def test_it_beats_while_somebody_waits_and_not_otherwise() -> None:
    beaten = threading.Event()
    pulse = Pulse(beaten.set, 0.001)
    with pulse:
        assert beaten.wait(60)
    pulse.end()
    beaten.clear()
    with pulse:
        assert not beaten.wait(0.05), "it has ended"


def test_who_does_not_wait_falls_silent() -> None:
    beats: list[None] = []
    beaten = threading.Event()

    def beat() -> None:
        beats.append(None)
        beaten.set()

    pulse = Pulse(beat, 0.001)
    with pulse:
        assert beaten.wait(60)
    # one that began before may still come; it has, once the thread rests
    deadline = time.monotonic() + 60
    while not pulse._resting:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    before = len(beats)
    assert not threading.Event().wait(0.05) and len(beats) == before
    pulse.end()


def test_a_thread_that_rests_beats_again_as_soon_as_somebody_waits() -> None:
    beaten = threading.Event()
    pulse = Pulse(beaten.set, 0.001)
    for _ in range(3):
        beaten.clear()
        with pulse:
            assert beaten.wait(60)
        deadline = time.monotonic() + 60
        while not pulse._resting:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    pulse.end()
    assert pulse._thread is not None and not pulse._thread.is_alive()
