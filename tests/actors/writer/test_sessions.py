"""Sessions: whatever arrives, each takes a gapless run of frames of one connection."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.actors.writer import sessions as module
from penstock.actors.writer.sessions import Sessions

PRODUCERS, PEERS = st.integers(1, 2), st.sampled_from([b"a", b"b"])
NUMBERS, SEQS = st.integers(1, 3), st.integers(1, 6)


class AnyTraffic(RuleBasedStateMachine):
    """Frames and greetings in any order, judged by the history of what was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions()
        self.latest: dict[int, tuple[int, bytes, int]] = {}
        # (producer, session) -> first frame promised, connection, frames taken since
        self.taken: dict[tuple[int, int], list[int]] = {}

    @rule(producer=PRODUCERS, number=NUMBERS, seq=SEQS, peer=PEERS)
    def hello(self, producer: int, number: int, seq: int, peer: bytes) -> None:
        newest, owner, _ = self.latest.get(producer, (0, b"", 0))
        begun = bool(self.taken.get((producer, number)))
        session = self.sessions.open(producer, number, seq, seq * 100, peer)
        if number < newest or (number == newest and begun and peer != owner):
            assert session is None
            return
        assert session is not None and session.number == number
        if number > newest or peer != owner:
            self.latest[producer] = (number, peer, seq)
            self.taken[producer, number] = []
            assert (session.next_seq, session.stored_after) == (seq, seq * 100)
        else:
            first = self.latest[producer][2]
            assert session.next_seq == first + len(self.taken[producer, number])

    @rule(producer=PRODUCERS, number=NUMBERS, seq=SEQS, peer=PEERS)
    def frame(self, producer: int, number: int, seq: int, peer: bytes) -> None:
        session = self.sessions.take(producer, number, seq, peer)
        newest, owner, first = self.latest.get(producer, (0, b"", 0))
        frames = self.taken.get((producer, number), [])
        is_next = number == newest and peer == owner and seq == first + len(frames)
        assert (session is not None) == is_next
        if session is not None:
            frames.append(seq)
            assert session.next_seq == seq + 1

    @rule(producer=PRODUCERS)
    def end(self, producer: int) -> None:
        self.sessions.end(producer)
        self.latest.pop(producer, None)
        for key in [key for key in self.taken if key[0] == producer]:
            del self.taken[key]

    @invariant()
    def what_was_taken_has_no_gap_and_no_repetition(self) -> None:
        for frames in self.taken.values():
            assert frames == list(range(frames[0], frames[0] + len(frames))) if frames else True


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_frame_without_a_session_is_not_taken() -> None:
    assert Sessions().take(1, 1, 1, b"a") is None


def test_a_session_is_bound_anew_until_its_first_frame() -> None:
    """A greeting may have come through a connection that broke before its answer."""
    sessions = Sessions()
    sessions.open(1, 1, 5, 0, b"a")
    assert sessions.open(1, 1, 5, 0, b"b") is not None
    assert sessions.take(1, 1, 5, b"a") is None
    assert sessions.take(1, 1, 5, b"b") is not None
    assert sessions.open(1, 1, 6, 0, b"a") is None


def test_what_a_dead_connection_still_delivers_is_not_taken() -> None:
    sessions = Sessions()
    sessions.open(1, 1, 1, 0, b"a")
    sessions.take(1, 1, 1, b"a")
    sessions.open(1, 2, 2, 0, b"b")
    assert sessions.take(1, 1, 2, b"a") is None
    assert sessions.take(1, 2, 2, b"a") is None
    assert sessions.take(1, 2, 2, b"b") is not None


@pytest.mark.parametrize("sign_of_life", ["frame", "greeting"])
def test_the_producer_that_was_silent_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, sign_of_life: str
) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCERS", 3)
    sessions = Sessions()
    for producer in (1, 2, 3):
        sessions.open(producer, 1, 1, 0, b"a")
    if sign_of_life == "frame":
        sessions.take(1, 1, 1, b"a")
    else:
        sessions.open(1, 2, 1, 0, b"a")
    sessions.open(4, 1, 1, 0, b"a")
    assert sessions.take(2, 1, 1, b"a") is None
    assert sessions.take(3, 1, 1, b"a") is not None
    assert sessions.take(4, 1, 1, b"a") is not None
