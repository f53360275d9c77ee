"""Delayed messages while the scheduler, the writer and the whole broker are killed: none is early,
none is lost, none comes twice.

PENSTOCK_CHAOS_KILLS sets how many kills (8 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.bench.groups.delay import bench_delay
from penstock.chaos.running.delay_load import judge
from penstock.chaos.running.delays import run_delays
from penstock.client.core.message import Message
from penstock.shared.formats.record import Record, encode_record

pytestmark = pytest.mark.takes(20)

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "8"))


@pytest.mark.timeout(600 + 10 * KILLS)
def test_whoever_is_killed_delayed_messages_come_once_and_not_early(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_KILLS={KILLS}")
    struck, wrong = run_delays(tmp_path, {}, KILLS, random.Random(seed))
    assert wrong == [], struck
    assert struck.total() == KILLS


def test_thousands_that_are_due_together_come_once_whoever_is_killed() -> None:
    """The bench with 50 kills and a million messages, in short: batches and not single ones."""
    found = bench_delay(20_000, 5, 1_000, 4, 100, lambda done, of: None)
    assert (found.early, found.lost, found.twice) == (0, 0, 0), found
    assert found.start_s > 0 and found.memory_mb < 300


def _came(body: str, stored_ms: int, queue_id: int = 0) -> Message:
    record = Record("t", body.encode(), queue_id=queue_id, store_timestamp_ms=stored_ms)
    return Message(encode_record(record))


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([("0 5 1", 5), ("1 9 0", 9), ("2 9 0", 10)], []),
        ([("1 9 0", 9), ("2 9 0", 10)], ["1 delayed messages are lost, such as 0 5 1"]),
        (
            [("0 5 1", 5), ("1 9 0", 9), ("2 9 0", 10), ("0 5 1", 6)],
            ["1 delayed messages came twice, such as 0 5 1"],
        ),
        ([("0 5 1", 4), ("1 9 0", 9), ("2 9 0", 10)], ["message 0 came 1 ms early"]),
        (
            [("0 5 1", 5), ("2 9 0", 10), ("1 9 0", 10)],
            ["message 1 of a level stands after 2"],
        ),
        (
            [("0 5 1", 5), ("1 9 0", 9), ("2 9 0", 10), ("3 5 1", 5), ("4 5 1", 5)],
            ["messages came that nobody sent, such as 4 5 1"],
        ),
    ],
    ids=["nothing", "lost", "twice", "early", "disordered", "nobody's"],
)
def test_the_judge_sees_each_wrong_and_nothing_else(
    found: list[tuple[str, int]], wrong: list[str]
) -> None:
    known, unsure = {"0 5 1", "1 9 0", "2 9 0"}, {"3 5 1"}
    assert judge(known, unsure, [_came(*each) for each in found]) == wrong


def test_levels_are_in_order_within_a_queue_and_not_among_queues() -> None:
    assert judge({"1 9 0", "2 9 0"}, set(), [_came("2 9 0", 9, 1), _came("1 9 0", 9, 0)]) == []


def test_the_judge_finds_what_came_though_it_was_recalled() -> None:
    found = [_came("1 9 2", 9), _came("2 9 2", 9)]
    assert judge({"1 9 2"}, set(), found, {"2 9 2", "3 9 2"}) == [
        "1 of 2 recalled messages came, such as 2 9 2"
    ]
    assert judge({"1 9 2", "2 9 2"}, set(), found, {"3 9 2"}) == []
