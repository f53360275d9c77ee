"""Processes that share checks: order, errors, and that none stays."""

from __future__ import annotations

import math

import psutil
import pytest

from penstock.chaos.machine.workers import Workers, batched
from penstock.shared.errors import ConfigError
from penstock.shared.faults import parse_faults


def test_results_come_in_order_from_other_processes_which_end_with_it() -> None:
    workers = Workers()
    results = workers.map(math.factorial, range(20))
    # multiprocessing's own, which lasts as long as this process, is another
    working = [each for each in psutil.Process().children() if "spawn_main" in str(each.cmdline())]
    assert list(results) == [math.factorial(n) for n in range(20)]
    assert working
    workers.close()
    assert not any(each.is_running() for each in working)


def test_an_error_arrives_as_it_was_raised() -> None:
    workers = Workers()
    try:
        with pytest.raises(ConfigError) as caught:
            list(workers.map(parse_faults, ["nonsense"]))
    finally:
        workers.close()
    assert (caught.value.what, caught.value.value) == (
        "this is no fault of the form POINT=ACTION[@N][xM]",
        "nonsense",
    )


def test_batches_keep_all_in_order() -> None:
    assert [list(some) for some in batched(range(5), 2)] == [[0, 1], [2, 3], [4]]
