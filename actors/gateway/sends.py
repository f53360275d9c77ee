"""What clients send, on its way into the log: to the writer as frames, and back as answers.

    take -> its topic is there -> waits -> frame -> outcome -> answer

What several connections send in one turn goes out in one frame, and so does what has come while
a few frames are on their way. A frame that is refused is put again message by message, so that one
bad message fails alone. Nothing is kept: what a client has no answer for when this process dies is
for the client to send again.

When the writer takes nothing, what waits here is refused as RocketMQ would, and the client decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import zmq
from msgspec.structs import replace

from penstock.actors.gateway.asking.questions import AGAIN_MS, Make, Questions, Then
from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.put_times import PutTimes
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import TopicTable
from penstock.actors.gateway.waiting import Plain, Waiting, places_of, send_of
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.codes import Response
from penstock.remoting.fields import SendAnswer, SendFields, write_fields
from penstock.remoting.plain import PlainSends, encode_stored
from penstock.remoting.sends import (
    REGION,
    Sent,
    sent_batch,
    sent_message,
    with_dead_letters,
)
from penstock.shared.errors import (
    PUT_OK,
    BrokerBusy,
    GroupNotFound,
    NoPermission,
    PenstockError,
    TopicNotFound,
)
from penstock.shared.formats.message_id import (
    key_number,
    key_origin,
    make_unique_key,
)
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import message_ids
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delayed import delayed
from penstock.shared.messaging.half import as_sent
from penstock.shared.messaging.system_topics import NOT_SENT_TO
from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.names import is_group_topic
from penstock.shared.process.actor import Stage
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Appended, QueueRun, error_from_refusal
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

MOST_IN_FRAME = 1000
# With as many frames on their way the next one leaves when it is full, or one of them is back: each
# wakes all that a message passes. 64 that wait for their answers were 13,400 a second without this
# limit, 15,300 with 1, 17,900 with 2, 15,500 with 3 in one run, beside other work.
FEW_IN_FLIGHT = 2
# Beyond this no client is read from until some of it is stored.
MOST_WAITING_BYTES = 32 << 20
# How long a message waits for its topic to be made. RocketMQ's clients wait for 3 s as a rule.
MOST_MAKING_MS = 5000
# Between two looks for those that have waited too long.
_LOOK_MS = 100
# an int: an enum's `&` makes another enum
_POLLIN = int(zmq.POLLIN)
_TRACED = {"MSG_REGION": REGION, "TRACE_ON": "true"}


class Sends:
    """All sends of the gateway, and its connection to the writer."""

    def __init__(
        self,
        stage: Stage,
        topics: TopicTable,
        serving: Serving,
        answer: Callable[[Call, Reply], None],
        answer_frame: Callable[[Connection, bytes], None],
    ) -> None:
        config = self._config = stage.config
        self._clock, self._topics = stage.clock, topics
        self._serving, self._answer, self._answer_frame = serving, answer, answer_frame
        self._run_id = stage.run.run_id
        self._sender = RecordSender(stage.run.run_id, "gateway", stage.generation, ack="")
        host = pack_host(config.broker_ip, 0)
        self._shape = Shape(len(host), config.enabled_append_prop_crc)
        most = config.max_message_size_bytes
        self._plain = PlainSends(config.cluster_name, most, self._shape)
        self._origin, self._keys = key_origin(host[:-4], self._clock.now_ms()), 0
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        # what waits for a topic that is being made
        self._making: dict[str, list[tuple[Call, Callable[[TopicConfig], None]]]] = {}
        self._making_bytes = self._look_ms = 0
        self.times = PutTimes()
        # of topics, to the writer
        self._questions = Questions("writer", messages.decode_produce_request)
        self.socket: Any = dial(
            stage.context, stage.run.endpoints.produce_ipc, PRODUCE_ANSWER_BYTES
        )

    @property
    def has_room(self) -> bool:
        waiting_bytes = self._waiting_bytes + self._making_bytes
        return waiting_bytes + self._sender.waiting_bytes < MOST_WAITING_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken has its answer."""
        return not (self._waiting or len(self._questions) or len(self._sender))

    # --- in ---

    def take(self, call: Call, fields: SendFields, is_batch: bool) -> None:
        """Have a message stored, or a batch. Raises PenstockError."""
        if fields.topic in NOT_SENT_TO:
            raise NoPermission("nobody sends to this topic by its name", fields.topic)
        if is_group_topic(fields.topic) and self._topics.get(fields.topic) is None:
            group = fields.topic.rpartition("%")[2]
            raise GroupNotFound("there is no consumer group of this name", group)
        fields = with_dead_letters(fields)

        def put(config: TopicConfig) -> None:
            queue_id = self._topics.queue_for(fields.topic, config, fields.queue_id)
            self._put(send_of(call, queue_id, self._sent(call, fields, queue_id, is_batch)))

        # The template is RocketMQ's: a client may ask for fewer queues than it has.
        self._with_topic(call, fields.topic, max(1, fields.default_topic_queue_nums), put)

    def take_plain(self, connection: Connection, frame: bytes, now_ms: int) -> bool:
        """Have a frame's message stored; whether it is a plain one, of a topic that is there."""
        found = self._plain.read(frame, connection.host)
        if found is None or self._sender.trouble is not None:
            return False
        opaque, is_oneway, topic, queue_id, unique_key, record = found
        config = self._topics.get(topic)
        if config is None or queue_id >= config.queues or topic in NOT_SENT_TO:
            return False
        self._put(Plain(topic, queue_id, record, unique_key, connection, opaque, is_oneway, now_ms))
        return True

    def put_back(self, call: Call, record: Record) -> None:
        """Have a message stored that its group is given again: `record` as `retried` makes it."""

        def put(config: TopicConfig) -> None:
            # the group may have been given more queues than its topic has
            waits = delayed(replace(record, queue_id=record.queue_id % max(1, config.queues)))
            raw = encode_record(as_sent(waits, self._shape))
            self._put(send_of(call, -1, Sent(waits.topic, waits.queue_id, raw, (len(raw),), False)))

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
        self._making_bytes += _kept_bytes(call)
        if topic in self._making:
            self._making[topic].append((call, put))
            return
        self._making[topic] = [(call, put)]
        self.ask(
            lambda number: messages.Route(number, topic, True, self._run_id, queues),
            lambda answer: self._made(topic, answer),
        )

    def ask(self, make: Make, then: Then) -> None:
        """Ask the writer of a topic: see Questions.ask."""
        self._questions.ask(make, self._serving.later(then), self._clock.monotonic_ms())

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

    def _put(self, send: Waiting) -> None:
        self._waiting.append(send)
        self._waiting_bytes += len(send.records)

    def _new_key(self, now_ms: int) -> str:
        self._keys += 1
        return make_unique_key(self._origin, key_number(self._origin, now_ms, self._keys))

    # --- to the writer and back ---

    def work(self, now_ms: int) -> int:
        """Take answers, and send what waits."""
        done = self._hear(now_ms)
        self.times.work(now_ms)
        for frame, outcome, stored_after in self._sender.outcomes():
            if isinstance(outcome, Appended):
                self.times.took(now_ms - frame[0].now_ms, len(frame))
            self._settle(frame, outcome, stored_after)
            done += 1
        if self._sender.trouble is not None:
            self._refuse_all(self._sender.trouble)
        while (
            self._waiting
            and self._sender.has_room
            and (len(self._sender) < FEW_IN_FLIGHT or self._is_full)
        ):
            self._pack()
        self._give_up(now_ms)
        self._ask(now_ms)
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

    @property
    def _is_full(self) -> bool:
        """Whether what waits makes a whole frame."""
        return self._waiting_bytes >= FRAME_BYTES or len(self._waiting) >= MOST_IN_FRAME

    def _pack(self) -> None:
        """The next frame: what waits, in its order for each queue."""
        taken: list[Waiting] = []
        size = count = 0
        while self._waiting:
            each = self._waiting[0]
            more, messages = len(each.records), len(each.sizes) if each.is_batch else 1
            if taken and (size + more > FRAME_BYTES or count + messages > MOST_IN_FRAME):
                break
            size, count = size + more, count + messages
            taken.append(self._waiting.popleft())
        self._waiting_bytes -= size
        self._send_frame(taken)

    def _send_frame(self, sends: Sequence[Waiting], stored_after: int = -1) -> None:
        # A queue's messages stand together, but for batches: each of those is a run by itself.
        runs: list[list[Waiting]] = []
        open_runs: dict[tuple[str, int], list[Waiting]] = {}
        for each in sends:
            key = each.topic, each.queue_id
            if each.is_batch:
                runs.append([each])
                open_runs.pop(key, None)
                continue
            run = open_runs.get(key)
            if run is None:
                run = open_runs[key] = []
                runs.append(run)
            run.append(each)
        frame = tuple(each for run in runs for each in run)
        said = []
        for run in runs:
            first = run[0]
            count = len(first.sizes) if first.is_batch else len(run)
            said.append(QueueRun(first.topic, first.queue_id, count, first.is_batch))
        self._sender.put(said, b"".join([each.records for each in frame]), frame, stored_after)

    def _hear(self, now_ms: int) -> int:
        heard = 0
        # mostly there is none, and an exception costs more than the question
        while int(self.socket.get(zmq.EVENTS)) & _POLLIN:
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
            heard += 1
            answer = messages.decode_produce_answer(parts[0])
            if isinstance(answer, messages.Routed | messages.TopicDescribed):
                self._questions.answered(answer.request, answer)
            elif isinstance(answer, messages.Refused) and not answer.session and answer.request:
                self._questions.answered(answer.request, error_from_refusal(answer))
            else:
                self._sender.received(parts, now_ms)
        return heard

    # --- topics ---

    def _ask(self, now_ms: int) -> None:
        for header in self._questions.outgoing(now_ms):
            try:
                self.socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                break  # the writer is being replaced

    def _give_up(self, now_ms: int) -> None:
        """Refuse what has waited too long for its topic, which may be made all the same."""
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + _LOOK_MS
        for topic, waiting in self._making.items():
            late = 0
            while late < len(waiting) and now_ms - waiting[late][0].now_ms >= MOST_MAKING_MS:
                late += 1
            for call, _ in waiting[:late]:
                self._making_bytes -= _kept_bytes(call)
                what = f"its topic has not been made within {MOST_MAKING_MS} ms"
                self._answer(call, refusal(BrokerBusy(what, topic, "send it again")))
            del waiting[:late]

    def _made(self, topic: str, answer: Any) -> None:
        """A topic is there for its first messages, or cannot be."""
        waiting = self._making.pop(topic)
        self._topics.look()
        config = self._topics.get(topic)
        for call, put in waiting:
            self._making_bytes -= _kept_bytes(call)
            if isinstance(answer, PenstockError):
                self._answer(call, refusal(answer))
            elif config is None:
                missing = TopicNotFound("there is no topic of this name", topic)
                self._answer(call, refusal(missing))
            else:
                self._serving.do(call, partial(put, config))

    # --- outcomes ---

    def _refuse_all(self, why: PenstockError) -> None:
        self.times.failed += len(self._waiting)
        while self._waiting:
            self._answer(self._waiting.popleft().call, refusal(why))
        self._waiting_bytes = 0

    def _settle(
        self, frame: Sequence[Waiting], outcome: Appended | PenstockError, stored_after: int
    ) -> None:
        if isinstance(outcome, Appended):
            self._stored(frame, outcome)
        elif len(frame) == 1:
            self.times.failed += 1
            self._answer(frame[0].call, refusal(outcome))
        else:
            for each in frame:
                self._send_frame([each], stored_after)

    def _stored(self, frame: Sequence[Waiting], outcome: Appended) -> None:
        is_late = outcome.status != PUT_OK
        code = Response.FLUSH_DISK_TIMEOUT if is_late else Response.SUCCESS
        # ids begin with the broker's address, and end in the message's place in the log
        lead = outcome.store_host.hex().upper()
        places = places_of(outcome, frame)
        # the answers of one connection go out as one piece
        answers: dict[Connection, list[bytes]] = {}
        for each, (offset, position, pieces) in zip(frame, places, strict=True):
            if isinstance(each, Plain):
                if not each.is_oneway:
                    message_id = f"{lead}{position:016X}"
                    answers.setdefault(each.connection, []).append(
                        encode_stored(
                            each.opaque, each.unique_key, each.queue_id, code, message_id, offset
                        )
                    )
                continue
            if each.told_queue < 0:
                self._answer(each.call, Reply())
                continue
            found = pieces or ((position, each.sizes),)
            message_id = ",".join([message_ids(lead, at, list(sizes)) for at, sizes in found])
            answer = SendAnswer(message_id, each.told_queue, offset, each.unique_key)
            self._answer(each.call, Reply(write_fields(answer) | _TRACED, code=code))
        for connection, parts in answers.items():
            self._answer_frame(connection, b"".join(parts))

    def close(self) -> None:
        self.socket.close(linger=0)


def _kept_bytes(call: Call) -> int:
    """Of memory, while a request waits for its topic."""
    command = call.command
    return len(command.body) + sum(map(len, command.fields.values()))
