"""How much a member's reader asks for at a time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.core.groups.assigned_core import MAX_PULL_BYTES, SOON_MS, AssignedCore
from penstock.client.core.reading.records_at_hand import DIRECT_PULL_BYTES, PULL_BYTES
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode

MIB = 1 << 20


class Talk:
    """A reader of one queue, and what it is answered."""

    def __init__(self, direct: bool) -> None:
        self.core = AssignedCore(
            "tcp://x:1",
            "orders",
            selection=None,
            timeout_ms=10**9,
            max_body_bytes=MAX_PULL_BYTES,
            direct=direct,
        )
        self.core.add(0, 0)
        self.now_ms = 1000

    def pull(self) -> messages.Pull:
        ((header,),) = self.core.outgoing(self.now_ms)
        found = messages.decode_consume_request(header)
        assert isinstance(found, messages.Pull)
        return found

    def answer(self, pull: messages.Pull, size: int) -> None:
        """One record of that many bytes, which is taken."""
        record = Record("orders", b"", b"", 0, queue_offset=pull.cursors[0])
        body = bytes(size - len(encode_record(record)))
        raw = encode_record(Record("orders", body, b"", 0, queue_offset=record.queue_offset))
        offset = record.queue_offset
        part: Any = messages.QueueSlice(0, offset, offset + 1, 0, 99, len(raw))
        header = encode(messages.Pulled(pull.request, (part,), (0,), ""))
        self.core.received([header, raw], self.now_ms)
        assert self.core.take_queue() is not None


@pytest.mark.parametrize(
    ("came", "after_ms", "asked"),
    [
        # what came, how long after the pull before it the next one leaves, and what it asks for
        ([MIB], [SOON_MS], [2 * MIB, 4 * MIB]),
        ([MIB - 1], [SOON_MS], [2 * MIB, 2 * MIB]),
        ([MIB], [SOON_MS + 1], [2 * MIB, 2 * MIB]),
        ([MIB, 2 * MIB, 4 * MIB], [9, 9, 9], [2 * MIB, 4 * MIB, 8 * MIB, MAX_PULL_BYTES]),
        ([MIB, MIB], [9, 9], [2 * MIB, 4 * MIB, 2 * MIB]),
        ([MIB, 2 * MIB], [SOON_MS, SOON_MS], [2 * MIB, 4 * MIB, 8 * MIB]),
    ],
)
def test_a_member_that_keeps_up_asks_for_more_and_else_for_the_usual(
    came: list[int], after_ms: list[int], asked: list[int]
) -> None:
    talk = Talk(direct=True)
    found = [(pull := talk.pull()).max_bytes]
    for size, pause_ms in zip(came, after_ms, strict=True):
        talk.answer(pull, size)
        talk.now_ms += pause_ms
        found.append((pull := talk.pull()).max_bytes)
    assert found == asked and asked[0] == DIRECT_PULL_BYTES


def test_a_member_on_another_machine_asks_for_the_same_each_time() -> None:
    talk = Talk(direct=False)
    for _ in range(4):
        pull = talk.pull()
        assert pull.max_bytes == PULL_BYTES
        talk.answer(pull, PULL_BYTES)
        talk.now_ms += 1
