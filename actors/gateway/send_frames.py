"""Frames of what clients send: filled, stored by the writer, answered.

    take, put -> the open frame -> on its way -> outcome -> answers

What several connections send in one turn goes out in one frame, and so does what has come while
a few frames are on their way. A frame that is refused is put again message by message, so that one
bad message fails alone. Nothing is kept: if this process dies, clients send again what has no
answer.

When the writer takes nothing, what waits here is refused as RocketMQ would, and the client decides.
This file knows neither topics nor sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.put_times import PutTimes
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import ONEWAY_FLAG, Command
from penstock.remoting.fields import SendAnswer, write_fields
from penstock.remoting.plain import stored_words
from penstock.remoting.sends import REGION, Sent
from penstock.shared.errors import PUT_OK, PenstockError
from penstock.shared.loops.active import ClientFrame
from penstock.shared.loops.forms import PlainRules
from penstock.shared.wire.messages import Appended, QueueRun

# With this many frames on their way the next one leaves when it is full, or when one of them is
# back: each frame wakes every process that a message passes. 64 senders that wait for their answers
# sent 13,400 messages a second without this limit, 15,300 with 1, 17,900 with 2, 15,500 with 3 in
# one run, on a machine with other work.
FEW_IN_FLIGHT = 2
# Plain messages that are taken between two looks at the clock.
TAKEN_AT_ONCE = 64
_TRACED = {"MSG_REGION": REGION, "TRACE_ON": "true"}


class Send(NamedTuple):
    """A request that is not a plain message. `told_queue` is the queue that its client is told,
    whichever one it waits in; -1 if the client is only told that all is well."""

    call: Call
    told_queue: int
    unique_key: str


class SendFrames:
    """What is on its way to the writer and back."""

    def __init__(
        self,
        sender: RecordSender,
        rules: PlainRules,
        answer: Callable[[Call, Reply], None],
        answer_frame: Callable[[Connection, bytes], None],
    ) -> None:
        self.sender, self._rules = sender, rules
        self._answer, self._answer_frame = answer, answer_frame
        self._open = ClientFrame(rules)
        self._full: deque[ClientFrame] = deque()
        self._full_bytes = 0
        # (requests, messages): of the frames that were closed since `taken_now`, and of the open
        # frame what it has told
        self._closed = self._told = (0, 0)
        self.times = PutTimes()

    @property
    def waiting_bytes(self) -> int:
        return self._open.size + self._full_bytes + self.sender.waiting_bytes

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken has its answer."""
        return self.sender.is_idle and not (self._open.requests or self._full)

    def taken_now(self) -> tuple[int, int]:
        """How many requests were taken since this was asked last, and the messages in them."""
        (requests, messages), (told, of_told) = self._closed, self._told
        self._closed, self._told = (0, 0), (self._open.requests, self._open.count)
        return requests + self._open.requests - told, messages + self._open.count - of_told

    # --- in ---

    def take(
        self,
        connection: Connection,
        data: bytes | bytearray,
        at: int,
        has_time: Callable[[], bool],
        topics: Mapping[str, int],
        now_ms: int,
    ) -> int:
        """Take plain messages, from index `at` of a connection's data on. `topics` says how many
        queues each topic has. Returns the index that it has come to."""
        while True:
            frame, before = self._open_at(now_ms), at
            at = frame.take(data, at, connection, connection.host, topics, TAKEN_AT_ONCE)
            if frame.is_full:
                self._close()
            elif at in (before, len(data)):
                return at
            if not has_time():
                return at

    def put(self, send: Send, sent: Sent) -> None:
        """Have the records of a request stored."""
        said = sent.topic, sent.queue_id, sent.records, sent.sizes, sent.is_batch
        while not self._open_at(send.call.now_ms).put(send, *said):
            self._close()

    def _open_at(self, now_ms: int) -> ClientFrame:
        frame = self._open
        if not frame.requests:
            frame.since_ms = now_ms
        return frame

    def _close(self) -> None:
        self._full.append(self._open)
        self._full_bytes += self._open.size
        requests, messages = self._closed
        self._closed = requests + self._open.requests, messages + self._open.count
        self._open = ClientFrame(self._rules)

    # --- to the writer and back ---

    def work(self, now_ms: int) -> int:
        """Answer what has an outcome, and have what waits leave."""
        done = 0
        for frame, outcome, stored_after in self.sender.outcomes():
            if isinstance(outcome, Appended):
                self.times.took(now_ms - frame.since_ms, frame.requests)
            self._settle(frame, outcome, stored_after)
            done += 1
        if self.sender.trouble is not None:
            self._refuse_all(self.sender.trouble)
        self._send_all()
        return done

    def _send_all(self) -> None:
        """Send the frames that may leave: all that are full, and the open one if few are on their
        way."""
        while (self._full or self._open.requests) and self.sender.has_room:
            if not self._full:
                if len(self.sender) >= FEW_IN_FLIGHT:
                    return
                self._close()
            frame = self._full.popleft()
            self._full_bytes -= frame.size
            self._send(frame)

    def _send(self, frame: ClientFrame, stored_after: int = -1) -> None:
        runs, records = frame.pack()
        self.sender.put([QueueRun(*run) for run in runs], records, frame, stored_after)

    def _refuse_all(self, why: PenstockError) -> None:
        self._close()
        while self._full:
            self._refuse(self._full.popleft(), why)
        self._full_bytes = 0

    def _refuse(self, frame: ClientFrame, why: PenstockError) -> None:
        self.times.failed += frame.requests
        for by, opaque, is_oneway in frame.asked():
            self._answer(_call_of(by, opaque, is_oneway, frame.since_ms), refusal(why))

    def _settle(
        self, frame: ClientFrame, outcome: Appended | PenstockError, stored_after: int
    ) -> None:
        if isinstance(outcome, Appended):
            self._stored(frame, outcome)
        elif frame.requests == 1:
            self._refuse(frame, outcome)
        else:
            for part in frame.parts():
                self._send(part, stored_after)

    def _stored(self, frame: ClientFrame, outcome: Appended) -> None:
        is_late = outcome.status != PUT_OK
        code = Response.FLUSH_DISK_TIMEOUT if is_late else Response.SUCCESS
        # ids begin with the broker's address, and end with the message's log offset
        lead = outcome.store_host.hex().upper().encode()
        places = [(run.first, run.queue_offset, run.physical_offset) for run in outcome.runs]
        # the answers of one connection go out as one piece
        answers, others = frame.answers(stored_words(code), lead, places)
        for connection, frames in answers.items():
            self._answer_frame(connection, frames)
        for send, offset, ids in others:
            if send.told_queue < 0:
                self._answer(send.call, Reply())
                continue
            answer = SendAnswer(ids, send.told_queue, offset, send.unique_key)
            self._answer(send.call, Reply(write_fields(answer) | _TRACED, code=code))


def _call_of(by: Connection | Send, opaque: int, is_oneway: bool, now_ms: int) -> Call:
    if isinstance(by, Send):
        return by.call
    flag = ONEWAY_FLAG if is_oneway else 0
    return Call(by, Command(Request.SEND_MESSAGE_V2, opaque, flag=flag), now_ms)
