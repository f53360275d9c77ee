"""Which actors have numpy: those that the roster names, and no other imports it at work.

The others are forked before it is imported. One that imported it itself would make some message
wait for that, and have a copy that it shares with nobody.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.chaos.broker import Broker
from penstock.client.connection import Connection
from penstock.client.groups.admin import GroupAdmin
from penstock.shared.memory.roster import ROSTER, start_order

WAIT_S = 60
NUMPY = {row.name for row in ROSTER if row.needs_numpy}


def test_whoever_starts_before_numpy_is_needed_does_not_import_it() -> None:
    look = """
import sys, penstock.cli.broker.up
from penstock.shared.memory.roster import start_order
from penstock.shared.process.actor import import_actors
for name in start_order():
    import_actors(name)
    print(name, "numpy" in sys.modules)
"""
    said = subprocess.check_output([sys.executable, "-c", look], timeout=WAIT_S, text=True)
    assert said.splitlines() == [f"{name} {name in NUMPY}" for name in start_order()]


def test_a_store_that_is_opened_waits_for_the_import_of_no_actor_but_those_that_acknowledge() -> (
    None
):
    look = """
import sys, penstock.supervisor
from penstock.shared.memory.roster import start_order
from penstock.shared.process.actor import CLASSES, importing
with importing(start_order()):
    pass
print(*CLASSES)
"""
    said = subprocess.check_output([sys.executable, "-c", look], timeout=WAIT_S, text=True)
    assert said.split() == ["writer", "committer", "flusher"]


# For what few starts come to, and what an acknowledgement does not need.
LATER = {
    "difflib",
    "shutil",
    "click.shell_completion",
    "penstock.shared.process.port_owner",
    "penstock.shared.wire.group_messages",
    "penstock.shared.wire.transaction_messages",
}


def test_a_start_imports_nothing_before_the_first_fork_that_it_can_do_without() -> None:
    look = """
import sys, penstock.cli.main, penstock.cli.broker.up, penstock.supervisor
from penstock.shared.memory.roster import ROSTER
from penstock.shared.process.actor import import_actors
import_actors(*(row.name for row in ROSTER if row.acknowledges))
print(*sys.modules)
"""
    said = subprocess.check_output([sys.executable, "-c", look], timeout=WAIT_S, text=True)
    assert {*said.split()} & LATER == set()


@pytest.mark.true_starts
def test_no_module_is_imported_by_two_processes_of_a_broker(tmp_path: Path) -> None:
    """What actors use the supervisor has imported before it forks them."""
    broker = Broker(tmp_path / "broker", {}, environment={"PYTHONVERBOSE": "1"})
    try:
        broker.start()
        imported = re.findall(r"^import '([^']+)' #", broker.output(), re.MULTILINE)
        assert {"penstock.supervisor", "penstock.actors.monitor"} <= {*imported}
        assert [name for name, times in Counter(imported).items() if times > 1] == []
        broker.stop()
    finally:
        broker.clear()


@pytest.mark.true_starts
def test_an_actor_that_is_said_to_do_without_numpy_does_so_at_work(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", {})
    try:
        broker.start()
        with Connection(store=broker.store) as connection:
            producer = connection.producer(group="shop")
            producer.create_topic("orders", 2)
            for number in range(20):
                producer.send("orders", bytes([number]))
            with producer.transaction("orders") as transaction:
                transaction.send(b"committed")
            # where it begins is looked up by time, and how far it lags is counted by its entries
            with connection.group("readers", "orders", start="-1h") as group:
                for number, message in enumerate(group):
                    message.ack()
                    if number == 20:
                        break
                group.commit()
            with GroupAdmin(store=broker.store) as groups:
                assert groups.describe("readers").queues
        have = {
            name
            for name, pid in broker.actors().items()
            if "_multiarray_umath" in Path(f"/proc/{pid}/maps").read_text()
        }
        assert have == NUMPY
        # it forks, which no process with threads can do safely
        assert len(list(Path(f"/proc/{broker.process.pid}/task").iterdir())) == 1
        broker.stop()
    finally:
        broker.clear()
