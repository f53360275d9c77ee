"""Power failures at every event: traces of a stepped broker break no promise, seeded bugs do.

PENSTOCK_CHAOS_TRACES=50 tries this many traces, each as deep as a round of `penstock chaos`, and
PENSTOCK_CHAOS_CANARIES=all has one more bug. A bug that shows only while two actors work at the
same moment cannot be found this way: they take turns.
"""

from __future__ import annotations

import importlib
import os
import random
import runpy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos.stepped.event_judge import Depth, Judged, judge_trace
from penstock.chaos.stepped.event_trace import Trace, record_trace
from penstock.chaos.stepped.events import MOST_ACTS, ROUND
from penstock.chaos.stepped.replay import in_memory

pytestmark = pytest.mark.takes(60)

CANARIES = runpy.run_path(str(Path(__file__).parents[1] / "canaries" / "canaries.py"))["CANARIES"]
TRACES = int(os.environ.get("PENSTOCK_CHAOS_TRACES", "0"))
QUICK = (
    "acknowledged_before_flush",
    "segment_names_not_synced",
    "checkpoint_ahead_of_queues",
    "torn_tail_kept",
)
DEEP = (*QUICK, "directories_not_synced")
SHALLOW = Depth(few=2, chosen=0)
# Traces in which a bug may show, one after the other.
CANARY_SEEDS = range(20, 40)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="events-of-penstock-", dir=in_memory()) as made:
        yield Path(made)


def _trace(place: Path, seed: int, acts: int) -> Trace:
    room = place / f"trace-{seed}"
    room.mkdir()
    return record_trace(room, random.Random(seed), acts)


def _judged(place: Path, trace: Trace, depth: Depth) -> Judged:
    scratch = place / "image"
    scratch.mkdir(exist_ok=True)
    return judge_trace(trace, scratch, random.Random(1), depth)


@contextmanager
def _bug(name: str) -> Iterator[None]:
    """Have a canary's bug in its module, and in nothing that has taken names from it before."""
    canary = CANARIES[name]
    module = importlib.import_module(canary.module)
    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    before = [(owner, dict(vars(owner))) for owner in owners]
    canary.put_in(module)
    try:
        yield
    finally:
        for owner, names in before:
            for key, value in names.items():
                if vars(owner).get(key) is not value:
                    setattr(owner, key, value)


@pytest.mark.parametrize("seed", range(TRACES) or (26,))
def test_a_power_failure_at_any_event_breaks_no_promise(place: Path, seed: int) -> None:
    acts = 1 + seed % MOST_ACTS if TRACES else 1
    trace = _trace(place, seed, acts)
    judged = _judged(place, trace, ROUND if TRACES else SHALLOW)
    assert judged.wrong == []
    assert judged.events == len(trace.events) and judged.states >= judged.events


def test_the_first_events_of_a_store_are_tried_in_all_states(place: Path) -> None:
    trace = _trace(place, 1, 1)
    start = trace._replace(events=trace.events[:30])
    judged = _judged(place, start, Depth(few=4096, chosen=0))
    assert (judged.whole, judged.wrong) == (30, [])


@pytest.mark.parametrize(
    "name", DEEP if os.environ.get("PENSTOCK_CHAOS_CANARIES") == "all" else QUICK
)
def test_a_seeded_bug_breaks_a_promise(place: Path, name: str) -> None:
    with _bug(name):
        for seed in CANARY_SEEDS:
            wrong = _judged(place, _trace(place, seed, 2), SHALLOW).wrong
            if wrong:
                break
    assert wrong, f"{name} is not found: {CANARIES[name].sentence}"


def test_a_trace_is_a_function_of_its_seed(place: Path) -> None:
    first, again = (_trace(place / name, 3, 3) for name in _rooms(place))
    assert [each.what for each in first.events] == [each.what for each in again.events]
    assert (len(first.acked), len(first.seen)) == (len(again.acked), len(again.seen))


def _rooms(place: Path) -> Iterator[str]:
    for name in ("one", "two"):
        (place / name).mkdir()
        yield name


def test_traces_meet_every_kind_of_file_and_of_end(place: Path) -> None:
    """What a power failure is placed at in these traces, so that no promise is empty."""
    calls = {"create", "rename", "unlink", "mkdir", "fsync", "fdatasync", "store", "pwrite"}
    files = {"commitlog", "consumequeue", "index", "checkpoint", "abort", "topics.json", "queues"}
    wanted = calls | files | {"exchange", "power", "acked", "seen", "repaired"}
    met: Any = set()
    for seed in range(120, 160):  # mostly a few; what a seed gives changes with the product
        trace = _trace(place, seed, MOST_ACTS)
        assert trace.wrong == []
        met |= {each.what.split()[0] for each in trace.events}
        met |= {part for each in trace.events for part in Path(each.what.split()[-1]).parts}
        met |= {"acked"} if trace.acked else set()
        met |= {"seen"} if trace.seen else set()
        met |= {"repaired"} if trace.lost else set()
        if wanted <= met:
            break
    assert wanted <= met
    assert {"00000000000000004096", "00000000000000000080"} <= met, "segments and queues roll"
