"""What clients send, on its way into the log: to the writer as frames, and back as answers.

    take -> its topic is there -> waits -> frame -> outcome -> answer

What several connections send in one turn goes out in one frame, and so does what has come while
enough frames are on their way. A frame that is refused is put again message by message, so that one
bad message fails alone. Nothing is kept: what a client has no answer for when this process dies is
for the client to send again.

When the writer takes nothing, what waits here is refused as RocketMQ would, and the client decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import zmq

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.topics import TopicTable
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.codes import Response
from penstock.remoting.fields import SendAnswer, SendFields, write_fields
from penstock.remoting.sends import (
    REGION,
    Sent,
    sent_batch,
    sent_message,
    with_dead_letters,
)
from penstock.shared.errors import PUT_OK, GroupNotFound, PenstockError, TopicNotFound
from penstock.shared.formats.message_id import (
    key_number,
    key_origin,
    make_unique_key,
    offset_message_id,
)
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_layout import AT_TOTAL_SIZE, Shape
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delayed import delayed
from penstock.shared.messaging.half import as_sent
from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.names import is_group_topic
from penstock.shared.process.actor import Stage
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Appended, QueueRun, WireMessage, error_from_refusal
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

MOST_IN_FRAME = 1000
# Beyond this no client is read from until some of it is stored.
MOST_WAITING_BYTES = 32 << 20
# A topic that is being made is asked for again after this time: the writer may be a new one.
AGAIN_MS = 1000
_TRACED = {"MSG_REGION": REGION, "TRACE_ON": "true"}


class _Send(NamedTuple):
    """One request. `queue_id` is the one that its client is told, whatever it waits in; -1 where it
    is told nothing but that all is well."""

    call: Call
    queue_id: int
    sent: Sent


class _Asked:
    """A question of topics that the writer has not answered."""

    __slots__ = ("asked_ms", "message", "then")

    def __init__(self, message: WireMessage, then: Callable[[Any], None]) -> None:
        self.message, self.then, self.asked_ms = message, then, -AGAIN_MS


class Sends:
    """All sends of the gateway, and its connection to the writer."""

    def __init__(
        self, stage: Stage, topics: TopicTable, answer: Callable[[Call, Reply], None]
    ) -> None:
        config = self._config = stage.config
        self._clock, self._topics, self._answer = stage.clock, topics, answer
        self._run_id = stage.run.run_id
        self._sender = RecordSender(stage.run.run_id, "gateway", stage.generation, ack="")
        host = pack_host(config.broker_ip, 0)
        self._shape = Shape(len(host), config.enabled_append_prop_crc)
        self._origin, self._keys = key_origin(host[:-4], self._clock.now_ms()), 0
        self._waiting: deque[_Send] = deque()
        self._waiting_bytes = 0
        # what waits for a topic that is being made
        self._making: dict[str, list[tuple[Call, Callable[[TopicConfig], None]]]] = {}
        self._asked: dict[int, _Asked] = {}
        self._requests = 0
        self.socket: Any = dial(
            stage.context, stage.run.endpoints.produce_ipc, PRODUCE_ANSWER_BYTES
        )

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes + self._sender.waiting_bytes < MOST_WAITING_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken has its answer."""
        return not (self._waiting or self._asked or len(self._sender))

    # --- in ---

    def take(self, call: Call, fields: SendFields, is_batch: bool) -> None:
        """Have a message stored, or a batch. Raises PenstockError."""
        if is_group_topic(fields.topic) and self._topics.get(fields.topic) is None:
            group = fields.topic.rpartition("%")[2]
            raise GroupNotFound("there is no consumer group of this name", group)
        fields = with_dead_letters(fields)

        def put(config: TopicConfig) -> None:
            queue_id = self._topics.queue_for(fields.topic, config, fields.queue_id)
            self._put(_Send(call, queue_id, self._sent(call, fields, queue_id, is_batch)))

        # The template is RocketMQ's: a client may ask for fewer queues than it has.
        self._with_topic(call, fields.topic, max(1, fields.default_topic_queue_nums), put)

    def put_back(self, call: Call, record: Record) -> None:
        """Have a message stored that its group is given again: `record` as `retried` makes it."""

        def put(config: TopicConfig) -> None:
            waits = delayed(record)
            raw = encode_record(as_sent(waits, self._shape))
            self._put(_Send(call, -1, Sent(waits.topic, waits.queue_id, raw, 1, False)))

        self._with_topic(call, record.topic, 1, put)

    def _with_topic(
        self, call: Call, topic: str, queues: int, put: Callable[[TopicConfig], None]
    ) -> None:
        """Go on with the topic, once it is there. Raises PenstockError."""
        if self._sender.trouble is not None:
            raise self._sender.trouble
        config = self._topics.get(topic)
        if config is not None:
            put(config)
            return
        if topic in self._making:
            self._making[topic].append((call, put))
            return
        self._making[topic] = [(call, put)]
        self.ask(
            lambda number: messages.Route(number, topic, True, self._run_id, queues),
            lambda answer: self._made(topic, answer),
        )

    def ask(self, make: Callable[[int], WireMessage], then: Callable[[Any], None]) -> None:
        """Ask the writer what `make` makes with a number; `then` gets the answer, or an error."""
        self._requests += 1
        self._asked[self._requests] = _Asked(make(self._requests), then)

    def _sent(self, call: Call, fields: SendFields, queue_id: int, is_batch: bool) -> Sent:
        body, host = bytes(call.command.body), call.connection.host
        most = self._config.max_message_size_bytes
        if is_batch:
            return sent_batch(
                fields, queue_id, body, born_host=host, max_message_bytes=most, shape=self._shape
            )
        now_ms = self._clock.now_ms()
        return sent_message(
            fields, queue_id, body, new_key=self._new_key(now_ms), now_ms=now_ms, born_host=host,
            cluster=self._config.cluster_name, max_message_bytes=most, shape=self._shape,
        )  # fmt: skip

    def _put(self, send: _Send) -> None:
        self._waiting.append(send)
        self._waiting_bytes += len(send.sent.records)

    def _new_key(self, now_ms: int) -> str:
        self._keys += 1
        return make_unique_key(self._origin, key_number(self._origin, now_ms, self._keys))

    # --- to the writer and back ---

    def work(self, now_ms: int) -> int:
        """Take answers, and send what waits."""
        done = self._hear(now_ms)
        for frame, outcome in self._sender.outcomes():
            self._settle(frame, outcome)
            done += 1
        if self._sender.trouble is not None:
            self._refuse_all(self._sender.trouble)
        while self._waiting and self._sender.has_room:
            self._pack()
        self._ask_again(now_ms)
        for parts in self._sender.outgoing(now_ms):
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                self._sender.not_connected(now_ms)
                break
        return done

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing has to be sent, unless something comes in."""
        return AGAIN_MS if self.is_idle else self._sender.wait_ms(now_ms)

    def _pack(self) -> None:
        """The next frame: what waits, in its order for each queue."""
        taken: list[_Send] = []
        size = count = 0
        while self._waiting:
            sent = self._waiting[0].sent
            size, count = size + len(sent.records), count + sent.messages
            if taken and (size > FRAME_BYTES or count > MOST_IN_FRAME):
                break
            taken.append(self._waiting.popleft())
            self._waiting_bytes -= len(sent.records)
        self._send_frame(taken)

    def _send_frame(self, sends: Sequence[_Send]) -> None:
        # A queue's messages stand together, but for batches: each of those is a run by itself.
        runs: list[list[_Send]] = []
        open_runs: dict[tuple[str, int], list[_Send]] = {}
        for each in sends:
            key = each.sent.topic, each.sent.queue_id
            run = None if each.sent.is_batch else open_runs.get(key)
            if run is None:
                run = []
                runs.append(run)
            run.append(each)
            if each.sent.is_batch:
                open_runs.pop(key, None)
            else:
                open_runs[key] = run
        frame = tuple(each for run in runs for each in run)
        said = [
            QueueRun(
                run[0].sent.topic,
                run[0].sent.queue_id,
                sum(each.sent.messages for each in run),
                run[0].sent.is_batch,
            )
            for run in runs
        ]
        self._sender.put(said, b"".join([each.sent.records for each in frame]), frame)

    def _hear(self, now_ms: int) -> int:
        heard = 0
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return heard
            heard += 1
            answer = messages.decode_produce_answer(parts[0])
            if isinstance(answer, messages.Routed | messages.TopicDescribed):
                self._answered(answer.request, answer)
            elif isinstance(answer, messages.Refused) and not answer.session and answer.request:
                self._answered(answer.request, error_from_refusal(answer))
            else:
                self._sender.received(parts, now_ms)

    # --- topics ---

    def _ask_again(self, now_ms: int) -> None:
        for asked in self._asked.values():
            if now_ms - asked.asked_ms >= AGAIN_MS:
                try:
                    self.socket.send(messages.encode(asked.message), zmq.NOBLOCK)
                except zmq.Again:
                    return  # the writer is being replaced
                asked.asked_ms = now_ms

    def _answered(self, number: int, answer: Any) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.then(answer)

    def _made(self, topic: str, answer: Any) -> None:
        """A topic is there for its first messages, or cannot be."""
        waiting = self._making.pop(topic)
        self._topics.look()
        config = self._topics.get(topic)
        for call, put in waiting:
            try:
                if isinstance(answer, PenstockError) or config is None:
                    raise (
                        answer
                        if isinstance(answer, PenstockError)
                        else TopicNotFound("there is no topic of this name", topic)
                    )
                put(config)
            except PenstockError as refused:
                self._answer(call, refusal(refused))

    # --- outcomes ---

    def _refuse_all(self, why: PenstockError) -> None:
        while self._waiting:
            self._answer(self._waiting.popleft().call, refusal(why))
        self._waiting_bytes = 0

    def _settle(self, frame: Sequence[_Send], outcome: Appended | PenstockError) -> None:
        if isinstance(outcome, Appended):
            self._stored(frame, outcome)
        elif len(frame) == 1:
            self._answer(frame[0].call, refusal(outcome))
        else:
            for each in frame:
                self._send_frame([each])

    def _stored(self, frame: Sequence[_Send], outcome: Appended) -> None:
        sizes = [size for each in frame for size in _sizes(each.sent)]
        places = iter(_places(outcome, sizes))
        is_late = outcome.status != PUT_OK
        code = Response.FLUSH_DISK_TIMEOUT if is_late else Response.SUCCESS
        for each in frame:
            found = [next(places) for _ in range(each.sent.messages)]
            if each.queue_id < 0:
                self._answer(each.call, Reply())
                continue
            ids = [offset_message_id(outcome.store_host, position) for _, position in found]
            key = each.sent.unique_key
            answer = SendAnswer(",".join(ids), each.queue_id, found[0][0], key)
            self._answer(each.call, Reply(write_fields(answer) | _TRACED, code=code))

    def close(self) -> None:
        self.socket.close(linger=0)


def _sizes(sent: Sent) -> list[int]:
    """Of each record, in bytes."""
    if not sent.is_batch:
        return [len(sent.records)]
    found, at = [], 0
    while at < len(sent.records):
        start = at + AT_TOTAL_SIZE
        found.append(int.from_bytes(sent.records[start : start + 4], "big"))
        at += found[-1]
    return found


def _places(outcome: Appended, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Queue offset and log offset of each record of a frame."""
    found, runs = [], {run.first: run for run in outcome.runs}
    offset = position = 0
    for number, size in enumerate(sizes):
        if run := runs.get(number):
            offset, position = run.queue_offset, run.physical_offset
        found.append((offset, position))
        offset, position = offset + 1, position + size
    return found
