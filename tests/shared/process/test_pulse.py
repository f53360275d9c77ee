"""The beats of an actor that waits for the disk."""

from __future__ import annotations

import threading

from penstock.shared.process.pulse import Pulse


def test_it_beats_while_somebody_waits_and_not_otherwise() -> None:
    beaten = threading.Event()
    pulse = Pulse(beaten.set, 0.001)
    with pulse:
        assert beaten.wait(10)
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
        assert beaten.wait(10)
    # one that began before may still come
    assert not threading.Event().wait(0.02)
    before = len(beats)
    assert not threading.Event().wait(0.05) and len(beats) == before
    pulse.end()
