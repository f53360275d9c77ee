"""How long the gateway lets messages gather: clients in a model, in which time is counted."""

from __future__ import annotations

import pytest

from penstock.actors.gateway.pace import (
    AGAIN_MS,
    BATCH,
    COUNT_MS,
    FEWEST_BATCHES_PER_MS,
    FEWEST_PER_MS,
    GATHERED,
    KEPT,
    MOST_MS,
    SPAN_MS,
    SPANS,
    Pace,
)

# What it takes to look, to have stored what was there, and to answer it.
TURN_MS = 0.3


class Clients:
    """As many requests have no answer at any time; a client makes one in `making_ms`."""

    def __init__(self, in_flight: int, making_ms: float, batch: int = 1) -> None:
        self._making_ms, self._may = making_ms, float(in_flight)
        self.batch = batch
        self._on_way = 0.0
        self.sent = 0

    def between_looks(self, ms: float) -> int:
        """What came meanwhile. What is taken at a look is answered at the next."""
        came = min(int(self._may), round(ms / self._making_ms))
        self._may += self._on_way - came
        self._on_way = came
        self.sent += came
        return came


def looks(pace: Pace, clients: Clients, from_ms: int, ms: int) -> int:
    """Look for as long; how often that was."""
    now_ms, count = float(from_ms), 0
    while now_ms < from_ms + ms:
        took_ms = TURN_MS + pace.pause_ms
        now_ms += took_ms
        count += 1
        came = clients.between_looks(took_ms)
        pace.note(int(now_ms), came, came * clients.batch)
    return count


class NoPace(Pace):
    def note(self, now_ms: int, came: int, messages: int) -> None:
        """It never pauses."""


def test_what_comes_one_by_one_gathers_and_none_the_less_comes() -> None:
    paced, other = Clients(64, 0.1), Clients(64, 0.1)
    few, many = looks(Pace(), paced, 0, 10_000), looks(NoPace(), other, 0, 10_000)
    assert paced.sent / few > 3 * other.sent / many
    assert paced.sent > 0.95 * other.sent


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("in_flight", [1, 2, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("making_ms", [0.01, 0.05, 0.1])
def test_who_waits_for_answers_is_not_held_up(in_flight: int, making_ms: float, batch: int) -> None:
    paced, other = Clients(in_flight, making_ms, batch), Clients(in_flight, making_ms, batch)
    looks(Pace(), paced, 0, 20_000)
    looks(NoPace(), other, 0, 20_000)
    least = 0.94 if in_flight <= 8 else 0.95 * KEPT
    assert paced.sent > least * other.sent


def test_a_thread_that_waits_for_each_answer_is_hardly_held_up() -> None:
    """Its next message is there at each look, however soon that comes."""
    pace, round_trip_ms, now_ms, sent = Pace(), 0.15, 0.0, 0
    while now_ms < 20_000:
        now_ms += round_trip_ms + pace.pause_ms
        pace.note(int(now_ms), 1, 1)
        sent += 1
    unpaced = 20_000 / round_trip_ms
    assert 0.985 * unpaced < sent < 0.999 * unpaced, "it was compared"


@pytest.mark.parametrize(
    "came", [pytest.param(1, id="too few to gather"), pytest.param(GATHERED, id="many at once")]
)
def test_it_looks_at_once_where_a_pause_is_of_no_use(came: int) -> None:
    pace = Pace()
    step_ms = round(2 / FEWEST_PER_MS) if came == 1 else 1
    for now_ms in range(0, 10_000, step_ms):
        now = came if came > 1 else now_ms // step_ms % 3 // 2
        pace.note(now_ms, now, now)
        assert pace.pause_ms == 0


def test_a_thread_that_waits_for_each_message_is_not_even_compared_where_batches_are() -> None:
    """At this rate a pause would be a quarter of what it sends, while they are compared."""
    per_ms = FEWEST_BATCHES_PER_MS
    single, few, batches = Pace(), Pace(), Pace()
    paused = [0, 0, 0]
    for now_ms in range(0, 5000, round(1 / per_ms)):
        for at, (pace, messages) in enumerate(((single, 1), (few, BATCH - 1), (batches, BATCH))):
            pace.note(now_ms, 1, messages)
            paused[at] += pace.pause_ms > 0
    assert paused[:2] == [0, 0] and paused[2] > 4000 * per_ms


def test_a_pause_is_as_long_as_enough_takes_to_come_and_never_longer_than_its_limit() -> None:
    for per_ms in (3, 5, 8, 12, 15):
        pace = Pace()
        for now_ms in range(COUNT_MS + 2 * SPANS * SPAN_MS + 2):
            pace.note(now_ms, per_ms, per_ms)
        assert pace.pause_ms == pytest.approx(min(MOST_MS, GATHERED / per_ms), rel=0.1)


def test_when_no_more_comes_it_pauses_no_longer() -> None:
    pace = Pace()
    looks(pace, Clients(64, 0.1), 0, 1000)
    assert pace.pause_ms > 0
    for counts in (1, 2):
        pace.note(1000 + counts * COUNT_MS, 0, 0)
    assert pace.pause_ms == 0


def test_it_pauses_no_longer_when_what_comes_is_sent_otherwise() -> None:
    """By few that wait for answers, or many at once."""
    for other in (Clients(4, 0.05), Clients(64, 0.01)):
        pace = Pace()
        looks(pace, Clients(64, 0.1), 0, 1000)
        assert pace.pause_ms > 0
        looks(pace, other, 1000, 2 * AGAIN_MS)
        assert pace.pause_ms == 0


def test_what_harms_is_tried_only_now_and_then() -> None:
    pace, clients = Pace(), Clients(4, 0.05)
    paused = 0
    for at_ms in range(0, 20_000, 5):
        looks(pace, clients, at_ms, 5)
        paused += pace.pause_ms > 0
    assert 0 < paused < 0.1 * 4000
