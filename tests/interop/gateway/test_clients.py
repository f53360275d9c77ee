"""Clients of other languages against the gateway and a real broker: what they print is the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.interop.gateway.programs import CLIENTS, PROGRAMS, printed

pytestmark = pytest.mark.takes(125)

# what a real broker has the short program print, for `make test`, which has none
SHORT, SHORT_CLIENT = PROGRAMS / "python_short.json", "Python 0.5.0rc2"

# What is other on purpose, both ways: (by the gateway, by a real broker).
OTHERWISE: dict[str, dict[str, tuple[object, object]]] = {
    # the mark is "1", which a real broker takes for no: it keeps one message that nobody can read
    "Python 0.4.4": {"batch": ([0, ["b0", "b1", "b2", "b3", "b4"]], [0, []])},
}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_prints_is_the_same_for_the_gateway_and_for_a_real_broker(
    client: str, both: tuple[Any, Any], tmp_path: Path, verdicts: Callable[..., None]
) -> None:
    command, topic = CLIENTS[client](), f"of-{client.replace('.', '-').replace(' ', '-')}"
    with ThreadPoolExecutor(2) as at_once:
        ours, theirs = at_once.map(
            lambda place: printed(command, place, topic, tmp_path / str(place.port)), both
        )
    names = ours | theirs
    different = {name: (ours.get(name), theirs.get(name)) for name in names}
    different = {name: both for name, both in different.items() if both[0] != both[1]}
    assert different == OTHERWISE.get(client, {})
    assert not [name for name, value in ours.items() if value is False]
    verdicts(client, ours, theirs)
    if client == SHORT_CLIENT:
        hold_short(theirs)


def hold_short(theirs: dict[str, Any]) -> None:
    """Compare what a real broker has had printed with what `make test` takes for it."""
    told = json.loads(SHORT.read_text())
    found = {name: theirs[name] for name in told}
    if "PENSTOCK_WRITE_TABLES" in os.environ:
        rows = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
        SHORT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        assert found == told
