"""Why a broker is not healthy, and why a healthy one takes no message: a sentence each."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.monitor.history import SAMPLE_MS, History
from penstock.actors.monitor.overview import (
    ERRORS,
    heartbeat_age_ms,
    overview,
    problems,
    refusals,
)
from penstock.actors.monitor.reading import Reading
from penstock.shared.memory.positions import STATES, Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.roster import ROSTER

NOW_MS = 100_000
STALL_MS = 3000
ENOSPC = os.strerror(errno.ENOSPC)


@pytest.fixture
def reading(pipeline: Callable[..., Any]) -> Iterator[Reading]:
    """A broker whose actors all run, and have moved this very moment."""
    broker = pipeline(actor_stall_timeout_ms=STALL_MS)
    found = Reading(broker.config, broker.run, broker.positions, broker.clock)
    for row in ROSTER:
        supervise(found, row.name, pid=1, generation=1, state="running")
        beat(found, row.name, NOW_MS)
    yield found
    found.queues.close()


def supervise(reading: Reading, actor: str, *, state: str, **words: int) -> None:
    reading.positions.supervise(actor, state=STATES.index(state), **words)


def beat(reading: Reading, actor: str, at_ms: int, generation: int = 1) -> None:
    own = Positions(reading.run.positions, owner=actor)
    own.beat(at_ms, generation)
    own.close()


def test_a_broker_in_which_all_moves_has_no_problem(reading: Reading) -> None:
    assert problems(reading, NOW_MS) == refusals(reading) == []


@pytest.mark.parametrize(
    ("state", "pid", "said"),
    [
        ("down", 1, ["writer is down"]),
        ("starting", 1, ["writer is starting"]),
        ("running", 0, ["writer is running"]),
        ("stopping", 0, ["writer is stopping"]),
        ("stopping", 1, []),
        ("off", 0, []),
    ],
)
def test_an_actor_that_should_run_and_does_not_is_a_problem(
    reading: Reading, state: str, pid: int, said: list[str]
) -> None:
    supervise(reading, "writer", pid=pid, state=state)
    assert problems(reading, NOW_MS) == said


def test_one_that_is_off_hides_no_other(reading: Reading) -> None:
    first, *_, last = (row.name for row in ROSTER if not row.is_spare)
    supervise(reading, first, pid=0, state="off")
    supervise(reading, last, pid=0, state="down")
    assert problems(reading, NOW_MS) == [f"{last} is down"]


def test_an_actor_does_not_move_once_its_time_is_over_and_not_in_its_last_ms(
    reading: Reading,
) -> None:
    for row in ROSTER:
        beat(reading, row.name, NOW_MS + 1)
    beat(reading, "reput", NOW_MS)
    assert problems(reading, NOW_MS + STALL_MS) == []
    assert problems(reading, NOW_MS + STALL_MS + 1) == ["reput does not move"]
    beat(reading, "reput", NOW_MS + 1)
    assert problems(reading, NOW_MS + STALL_MS + 1) == []


def test_what_a_predecessor_beat_is_no_word_of_its_successor(reading: Reading) -> None:
    assert heartbeat_age_ms(reading.positions, "reput", NOW_MS + 5) == 5
    assert heartbeat_age_ms(reading.positions, "reput", NOW_MS - 5) == 0, "read before it beat"
    supervise(reading, "reput", generation=2, state="running")
    assert heartbeat_age_ms(reading.positions, "reput", NOW_MS) is None
    assert problems(reading, NOW_MS) == ["reput does not move"]
    beat(reading, "reput", NOW_MS, generation=2)
    assert problems(reading, NOW_MS) == []


def test_a_spare_process_is_missed_by_nobody(reading: Reading) -> None:
    (spare,) = (row.name for row in ROSTER if row.is_spare)
    supervise(reading, spare, pid=0, state="down")
    assert problems(reading, NOW_MS) == []


def test_a_word_that_says_why_something_stands_still_is_a_problem_by_its_name(
    reading: Reading,
) -> None:
    assert "flush_error" in ERRORS
    for name in ERRORS:
        reading.positions.initialise(name, errno.ENOSPC)
        said = [] if name == "lock_error" else [f"{name}: {ENOSPC}"]
        assert problems(reading, NOW_MS) == said
        reading.positions.initialise(name, 0)


def test_a_damaged_log_is_a_problem(reading: Reading) -> None:
    reading.positions.initialise("read_only", 1)
    assert problems(reading, NOW_MS) == ["the log is damaged, so no message is taken"]


def test_a_full_disk_is_no_illness_and_takes_no_message(reading: Reading) -> None:
    reading.positions.initialise("disk_full", 93)
    assert problems(reading, NOW_MS) == []
    assert refusals(reading) == ["the disk is 93 % full, so no message is taken"]


def test_how_far_an_actor_is_is_told_of_those_that_have_a_place_in_the_log(
    reading: Reading,
) -> None:
    """A word that is read later may be ahead of the one before it: that is not late."""
    for name, value in {"wrote": 1000, "committed": 400, "flushed": 1007}.items():
        reading.positions.initialise(name, value)
    supervise(reading, "committer", pid=0, state="down")
    history = History()
    history.look(reading.positions, reading.clock.monotonic_ms())
    actors = {each["name"]: each for each in overview(reading, history)["actors"]}
    shown = {
        name: [actors[name][key] for key in ("pid", "position", "at", "behind_bytes", "behind_ms")]
        for name in ("writer", "committer", "flusher", "coordinator")
    }
    assert shown == {
        "writer": [1, "wrote", 1000, 0, 0],
        "committer": [None, "committed", 400, 600, None],
        "flusher": [1, "flushed", 1007, 0, 0],
        "coordinator": [1, None, None, None, None],
    }


def test_the_first_screen_has_the_counts_of_the_broker(reading: Reading) -> None:
    table = QueueTable(reading.run.queues, writable=True)
    for slot, high in enumerate((3, 4, 5)):
        table.add(slot, QueueKey("orders", slot), 0, high)
    table.close()
    for name, value in {
        "queue_count": 3,
        "deleted_queues": 1,
        "waiting_pulls": 5,
        "filtered_pulls": 6,
        "pending_delayed": 7,
        "transactions_open": 8,
        "log_start": 9,
        "wrote": 10,
    }.items():
        reading.positions.initialise(name, value)
    found = overview(reading, history := History())
    counts = ("messages", "queues", "topics", "groups", "waiting_pulls", "pending_delayed")
    assert [found[name] for name in counts] == [12, 2, 1, 0, 11, 7]
    assert (found["transactions_open"], found["log"]) == (8, {"start": 9, "end": 10})
    assert found["rates"] is None, "nothing was sampled yet"
    for second in (1, 2):
        reading.positions.initialise("wrote", 10 * second)
        history.look(reading.positions, second * SAMPLE_MS)
        history.sample(reading.positions, 12, second * SAMPLE_MS, second)
    assert overview(reading, history)["rates"]["bytes_s"] == 10
