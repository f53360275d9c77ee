"""What clients send, on its way into the log: which topic and queue it is for, and the connection
to the writer.

    take -> its topic is there -> frame -> outcome -> answer

Frames and answers are those of send_frames.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from msgspec.structs import replace

from penstock.actors.gateway.asking.questions import AGAIN_MS, Make, Questions, Then
from penstock.actors.gateway.asking.writer_stream import WriterStream
from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.send_frames import Send, SendFrames
from penstock.actors.gateway.serving import Serving
from penstock.actors.gateway.topics import MULTI_TAG, TopicTable
from penstock.client.core.sending.record_sender import RecordSender
from penstock.remoting.fields import SendFields
from penstock.remoting.plain import plain_rules
from penstock.remoting.sends import Sent, sent_batch, sent_message
from penstock.shared.errors import (
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
from penstock.shared.formats.record_layout import SYS_MULTI_TAGS, Shape
from penstock.shared.loops.active import has_message
from penstock.shared.messaging.delayed import delayed
from penstock.shared.messaging.half import as_sent
from penstock.shared.messaging.system_topics import NOT_SENT_TO
from penstock.shared.messaging.topic_rules import UNIT, UNIT_SUB, TopicConfig
from penstock.shared.names import RETRY_PREFIX, is_group_topic
from penstock.shared.process.actor import Stage
from penstock.shared.wire import messages
from penstock.shared.wire.messages import error_from_refusal
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial

# With more than this waiting, no client is read from until some of it is stored.
MOST_WAITING_BYTES = 32 << 20
# How long a message waits for its topic to be made. RocketMQ's clients wait for 3 s as a rule.
MOST_MAKING_MS = 5000
# Between two looks for messages that have waited too long.
_LOOK_MS = 100


class Sends:
    """All sends of the gateway, and its connections to the writer."""

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
        self._serving, self._answer = serving, answer
        self._run_id = stage.run.run_id
        host = pack_host(config.broker_ip, 0)
        self._shape = Shape(len(host), config.enabled_append_prop_crc)
        rules = plain_rules(config.cluster_name, config.max_message_size_bytes, self._shape)
        self._sender = RecordSender(stage.run.run_id, "gateway", stage.generation, ack="")
        self._frames = SendFrames(self._sender, rules, answer, answer_frame)
        self._origin, self._keys = key_origin(host[:-4], self._clock.now_ms()), 0
        # topic in the making -> what waits for it
        self._making: dict[str, list[tuple[Call, Callable[[TopicConfig], None]]]] = {}
        self._making_bytes = self._look_ms = 0
        self.times = self._frames.times
        self.stream = WriterStream(stage)
        # to the writer, about topics
        self._stage, self._questions = stage, Questions("writer", messages.decode_produce_request)
        endpoint = stage.run.endpoints.produce_ipc
        self.socket: Any = dial(stage.context, endpoint, PRODUCE_ANSWER_BYTES)

    @property
    def has_room(self) -> bool:
        return self._frames.waiting_bytes + self._making_bytes < MOST_WAITING_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything that was taken has its answer."""
        return self._frames.is_idle and not len(self._questions)

    def taken_now(self) -> tuple[int, int]:
        """How many requests were taken since this was asked last, and the messages in them."""
        return self._frames.taken_now()

    # --- in ---

    def check(self, fields: SendFields) -> None:
        """Raise NoPermission, GroupNotFound or TopicNotFound where no message may be sent."""
        if fields.topic in NOT_SENT_TO:
            raise NoPermission("nobody sends to this topic by its name", fields.topic)
        if self._topics.get(fields.topic) is None:
            if is_group_topic(fields.topic):
                group = fields.topic.rpartition("%")[2]
                raise GroupNotFound("there is no consumer group of this name", group)
            if not self._topics.is_template(fields.default_topic):
                raise self._topics.not_found(fields.topic)

    def take(self, call: Call, fields: SendFields, is_batch: bool) -> None:
        """Have a message stored, or a batch, whose topic is there or may be made. Raises
        PenstockError."""

        def put(config: TopicConfig) -> None:
            queue_id = self._topics.queue_for(fields.topic, config, fields.queue_id)
            marked = fields
            if config.filter_type == MULTI_TAG:
                marked = replace(fields, sys_flag=fields.sys_flag | SYS_MULTI_TAGS)
            sent = self._sent(call, marked, queue_id, is_batch)
            self._frames.put(Send(call, queue_id, sent.unique_key), sent)

        # As in RocketMQ, a client may ask for fewer queues than the template has.
        queues, flag = max(1, fields.default_topic_queue_nums), UNIT if fields.unit_mode else 0
        self._with_topic(call, fields.topic, queues, put, flag)

    def take_plain(
        self,
        connection: Connection,
        data: bytes | bytearray,
        at: int,
        has_time: Callable[[], bool],
        now_ms: int,
    ) -> int:
        """Have plain messages stored, from index `at` of a connection's data on, as long as their
        topics exist. Returns the index that it has come to."""
        if self._sender.trouble is not None:
            return at
        return self._frames.take(connection, data, at, has_time, self._topics.plain, now_ms)

    def put_back(self, call: Call, record: Record, unit_mode: bool) -> None:
        """Have a message stored that its group is to get again: `record` is `retried`'s result."""

        def put(config: TopicConfig) -> None:
            # the group may have been given more queues than its topic has
            waits = delayed(replace(record, queue_id=record.queue_id % max(1, config.queues)))
            raw = encode_record(as_sent(waits, self._shape))
            sent = Sent(waits.topic, waits.queue_id, raw, (len(raw),), False)
            self._frames.put(Send(call, -1, ""), sent)

        is_retry = unit_mode and record.topic.startswith(RETRY_PREFIX)
        self._with_topic(call, record.topic, 1, put, UNIT_SUB if is_retry else 0)

    def _with_topic(
        self,
        call: Call,
        topic: str,
        queues: int,
        put: Callable[[TopicConfig], None],
        flag: int,
    ) -> None:
        """Go on once the topic is there; one that is made gets `flag`. Raises PenstockError."""
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
            lambda number: messages.Route(number, topic, True, self._run_id, queues, flag),
            lambda answer: self._made(topic, answer),
        )

    def ask(self, make: Make, then: Then) -> None:
        """Ask the writer about a topic: see Questions.ask."""
        now_ms = self._clock.monotonic_ms()
        self._questions.ask(make, self._serving.later(then), now_ms)
        self._ask(now_ms)

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

    def _new_key(self, now_ms: int) -> str:
        self._keys += 1
        return make_unique_key(self._origin, key_number(self._origin, now_ms, self._keys))

    # --- to the writer and back ---

    def work(self, now_ms: int, is_due: bool = True) -> int:
        """Take answers, and send what waits. If it `is_due`, what has waited too long is refused,
        and questions are asked again."""
        done = self._hear(now_ms) + self._frames.work(now_ms)
        if is_due or self._stage.heard(self.socket):
            done += self._hear_of_topics()
        if is_due:
            # not left to the first message, which would wait for it
            self.stream.dial()
            self.times.work(now_ms)
            self._give_up(now_ms)
            self._ask(now_ms)
        # The kernel often lets the writer run first, and then its answer is there when the send
        # returns: to look costs less than another turn.
        if self._send(now_ms) and (heard := self._hear(now_ms, has_sent=True)):
            done += heard + self._frames.work(now_ms)
            self._send(now_ms)
        return done

    def _send(self, now_ms: int) -> bool:
        """Send what may leave; returns whether anything did."""
        has_sent = False
        for parts in self._sender.outgoing(now_ms):
            if not self.stream.send(*parts):
                self._sender.not_connected(now_ms)
                break
            has_sent = True
        return has_sent

    def wait_ms(self, now_ms: int) -> int:
        """How long it is until something has to be sent, if nothing comes in."""
        return AGAIN_MS if self.is_idle else self._sender.wait_ms(now_ms)

    def _hear(self, now_ms: int, has_sent: bool = False) -> int:
        """Take the writer's answers about frames; returns how many."""
        answers = self.stream.answers(has_sent)
        for header in answers:
            self._sender.take(messages.decode_produce_answer(header), now_ms)
        if self.stream.has_ended:
            self.stream.end()
            self._sender.not_connected(now_ms)
        return len(answers)

    # --- topics ---

    def _hear_of_topics(self) -> int:
        heard = 0
        # mostly there is no message, and an exception costs more than this check
        while has_message(self.socket):
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
            heard += 1
            answer = messages.decode_produce_answer(parts[0])
            if isinstance(answer, (messages.Routed, messages.TopicDescribed)):
                self._questions.answered(answer.request, answer)
            elif isinstance(answer, messages.Refused):
                self._questions.answered(answer.request, error_from_refusal(answer))
        return heard

    def _ask(self, now_ms: int) -> None:
        for header in self._questions.outgoing(now_ms):
            try:
                self.socket.send(header, zmq.NOBLOCK)
            except zmq.Again:
                break  # the writer is being replaced

    def _give_up(self, now_ms: int) -> None:
        """Refuse messages that have waited too long for their topic, which may still be made."""
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
        """A topic has been made, or could not be: go on with its first messages, or refuse them."""
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

    def close(self) -> None:
        self.socket.close(linger=0)
        self.stream.end()


def _kept_bytes(call: Call) -> int:
    """Memory that a request takes while it waits for its topic."""
    command = call.command
    return len(command.body) + sum(map(len, command.fields.values()))
