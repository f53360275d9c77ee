"""What goes out for a message that is taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.delays import Recall, recall_handle
from penstock.client.core.send_options import recall
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.wire import messages


@pytest.mark.parametrize("ack", ["durable", "written"])
def test_what_takes_a_message_back_is_acknowledged_like_any_other(
    make_wire: Callable[..., Any], ack: str
) -> None:
    wire = make_wire()
    wire.send("a", None, 0, "", 1)
    wire.heal(8)
    handle = recall_handle(Recall("a", wire.now_ms + 60_000, "K1"))
    recall(wire.core, wire.now_ms, handle, ack)
    ((header, records),) = wire.core.outgoing(wire.now_ms)
    asked = messages.decode_produce_request(bytes(header))
    assert isinstance(asked, messages.Append) and asked.ack == ack
    assert [run.topic for run in asked.runs] == [TIMER_TOPIC]
    assert b"WAIT\x01false" not in bytes(records)
