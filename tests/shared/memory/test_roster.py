"""The roster: one row for each actor, and the orders that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import actors
from penstock.shared.config import Config
from penstock.shared.memory.roster import ACTORS, ROSTER, row_of, start_order, stop_order
from penstock.shared.memory.run_directory import Endpoints
from penstock.shared.process.actor import import_actor


def test_every_module_of_the_actors_has_a_row_and_every_row_its_module() -> None:
    places = {path.stem for path in Path(actors.__path__[0]).iterdir()}
    assert {f"penstock.actors.{name}" for name in places - {"__init__", "__pycache__"}} == {
        row.code.partition(":")[0] for row in ROSTER
    }


@pytest.mark.parametrize("actor", ACTORS)
def test_a_row_names_a_class_that_can_be_imported(actor: str) -> None:
    assert import_actor(actor).__name__.lower() == actor


def test_what_an_acknowledgement_needs_starts_first_and_what_needs_numpy_last() -> None:
    order = start_order()
    assert sorted(order) == sorted(ACTORS)
    assert order[:3] == ("writer", "committer", "flusher")
    assert {*order[:3]} == {row.name for row in ROSTER if row.acknowledges}
    numpy = {row.name for row in ROSTER if row.needs_numpy}
    assert {*order[-len(numpy) :]} == numpy


def test_actors_stop_upstream_first_and_the_flusher_last() -> None:
    """Else a message that was taken would wait for somebody who has gone."""
    order = stop_order()
    assert sorted(order) == sorted(ACTORS)
    flow = ["writer", "committer", "reput", "flusher"]
    assert [name for name in order if name in flow] == flow
    assert order.index("allocator") > order.index("writer"), "which may need a segment to finish"
    assert order[-1] == "flusher"


def test_every_endpoint_has_an_actor_that_serves_it() -> None:
    served = [each for row in ROSTER for each in row.serves]
    assert {*served} <= {*Endpoints.__struct_fields__}
    assert {"produce", "consume", "group"} <= {*served}
    assert row_of("cleaner").serves == ()


def test_a_broker_has_the_actors_that_its_configuration_wants_and_all_that_every_broker_has() -> (
    None
):
    optional = {row.name: row.enabled_by for row in ROSTER if row.enabled_by}
    assert optional
    for wanted in (True, False):
        keys: dict[str, Any] = dict.fromkeys(optional.values(), wanted)
        config = Config(**keys)
        expected = sorted(each for each in ACTORS if wanted or each not in optional)
        for order in (start_order(config), stop_order(config)):
            assert sorted(order) == expected
