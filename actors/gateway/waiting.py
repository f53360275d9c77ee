"""A request to store messages while it waits for the writer: as any request, or as a plain message.

What goes into frames is the same of both. This file knows nothing of frames and of answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.connecting.connection import Connection
from penstock.remoting.codes import Request
from penstock.remoting.command import ONEWAY_FLAG, Command
from penstock.remoting.sends import Sent
from penstock.shared.wire.messages import Appended


class Send(NamedTuple):
    """One request. `told_queue` is the one that its client is told, whatever it waits in; -1 where
    it is told nothing but that all is well."""

    topic: str
    queue_id: int
    records: bytes
    sizes: Sequence[int]
    is_batch: bool
    unique_key: str
    call: Call
    told_queue: int

    @property
    def now_ms(self) -> int:
        return self.call.now_ms


class Plain(NamedTuple):
    """A plain message: what most requests are, so it has no call unless that is asked for."""

    topic: str
    queue_id: int
    records: bytes
    unique_key: str
    connection: Connection
    opaque: int
    is_oneway: bool
    now_ms: int
    is_batch: bool = False

    @property
    def sizes(self) -> Sequence[int]:
        return (len(self.records),)

    @property
    def call(self) -> Call:
        flag = ONEWAY_FLAG if self.is_oneway else 0
        command = Command(Request.SEND_MESSAGE_V2, self.opaque, flag=flag)
        return Call(self.connection, command, self.now_ms)


Waiting = Send | Plain


def send_of(call: Call, told_queue: int, sent: Sent) -> Send:
    return Send(
        sent.topic, sent.queue_id, sent.records, sent.sizes, sent.is_batch, sent.unique_key,
        call, told_queue,
    )  # fmt: skip


# Where the records of one request are: the first one's queue offset and log offset, and of a batch
# all of them, as log offsets and the sizes of what follows each without a gap. A named tuple takes
# several times as long.
Placed = tuple[int, int, Sequence[tuple[int, Sequence[int]]]]


def places_of(outcome: Appended, frame: Iterable[Waiting]) -> Iterator[Placed]:
    """Where the requests of a frame are. No more is done for each record of a batch than for all:
    mostly a batch is one piece."""
    runs = deque(outcome.runs)
    number = offset = position = 0
    for each in frame:
        if runs and runs[0].first == number:
            run = runs.popleft()
            offset, position = run.queue_offset, run.physical_offset
        if not each.is_batch:
            yield offset, position, ()
            number, offset, position = number + 1, offset + 1, position + len(each.records)
            continue
        pieces, begin, end = [], 0, number + len(each.sizes)
        first, at = (offset, position), position
        while runs and runs[0].first < end:  # what was sent again may lie in several places
            run = runs.popleft()
            pieces.append((at, each.sizes[begin : run.first - number]))
            begin, at = run.first - number, run.physical_offset
        pieces.append((at, each.sizes[begin:]))
        yield *first, pieces
        number = end  # what comes next is another run
