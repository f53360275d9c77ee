"""How to test the worker: with a broker of the test's own, which leaves nothing on the machine.

pip install penstock pytest
pytest test_worker.py
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from penstock.testing import AppClient, Broker

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def worker() -> dict[str, Any]:
    return run_path(str(WORKER))


def test_an_order_is_billed(penstock: Broker, worker: dict[str, Any]) -> None:
    with AppClient(worker["app"], penstock) as client:
        client.send("orders", worker["Order"](17, "Ada"))
    (bill,) = penstock.consumer("bills", follow=False)
    assert bill.decode(worker["Bill"]) == worker["Bill"](17, "for Ada")
    assert bill.keys == "17"


def test_the_writer_may_die_meanwhile(penstock: Broker, worker: dict[str, Any]) -> None:
    with AppClient(worker["app"], penstock) as client:
        penstock.kill_actor("writer")
        client.send("orders", worker["Order"](18, "Bo"))
