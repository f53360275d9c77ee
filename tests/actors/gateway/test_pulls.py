"""Pulls that wait in the gateway, and queues that grow just before they are counted."""

from __future__ import annotations

import socket
from typing import Any, cast

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.pulls import Pulls, _Pull
from penstock.remoting.codes import Request
from penstock.remoting.command import Command
from penstock.remoting.fields import PULL_WAITS, PullFields

NONE = cast(Any, None)


def test_queues_that_grew_just_before_a_pull_was_counted_are_looked_at_again() -> None:
    """The reput has seen nobody wait, and notified nobody."""
    positions = cast(Any, {"queued": 7})
    pulls = Pulls(NONE, NONE, NONE, positions, "flushed", NONE, NONE, lambda: 0, NONE)
    assert not pulls.has_grown
    pulls._queued = 7
    ours, theirs = socket.socketpair()
    with ours, theirs:
        by = Connection(ours, ("127.0.0.1", 1), 0)
        fields = PullFields("G", "t", 0, 0, 1, PULL_WAITS, 0, 1000)
        pulls._hold(_Pull(Call(by, Command(Request.PULL_MESSAGE, 1), 0), fields, None, 1000, 0))
        assert not pulls.has_grown
        positions["queued"] = 8
        assert pulls.has_grown
