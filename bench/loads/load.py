"""The load: one process that sends or receives through the public client, and reports what it saw.

    python -m penstock.bench.loads.load ORDER      an order below, as JSON

It warms up, prints a line when it is ready, waits for a line on stdin, does the measured part and
prints what it saw as one line of JSON. `load_process.py` also starts drivers in other languages
that keep to this (bench/peers). Nothing here looks at the broker's processes or files, so it can
measure a broker on another machine too.
"""

from __future__ import annotations

import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import msgspec

from penstock.bench.loads.stages import Followed, Stage
from penstock.client import Consumer, Producer, SendFuture
from penstock.shared.names import MAX_QUEUES_PER_TOPIC

# One message of SAMPLE_EVERY has its latency kept, and the process reports at most MAX_SAMPLES.
SAMPLE_EVERY = 16
MAX_SAMPLES = 4096
ANSWER_TIMEOUT_S = 60
STAMP, _TWO_STAMPS = struct.Struct("=Q"), struct.Struct("=QQ")


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send for `seconds` with at most `in_flight` unanswered messages, then wait for all answers.

    With a `rate_per_s`, that many are due each second, `seconds` times as many in all. Each carries
    the moment at which it was due and, with `explain`, that at which it was sent. A `batch` above 1
    sends that number as one batch. Before, it sends one message to each of `queues`, in as few
    topics as possible, and warms up for `warm_s` and until `warm_messages` are sent. With a
    `consume` endpoint it counts at the end what the topics hold.
    """

    endpoint: str
    topics: list[str]
    body_bytes: int
    ack: str
    in_flight: int
    seconds: float
    warm_s: float = 0.5
    warm_messages: int = 0
    rate_per_s: int = 0
    batch: int = 1
    consume: str = ""
    ring: bool = True
    queues: int = 0
    explain: bool = False


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """Receive all `messages` of a topic from its beginning, again and again for `seconds`.

    Each pass must find all of them, with the bodies of `body_bytes` that were sent: the lengths and
    last bytes are added up. With `stamped` the topic is received once, while it grows: `warm`
    messages before it is ready, then `messages`. A latency is then the time since the message was
    due. With `direct` a consumer may read the log's files; with `bodies` it asks for bodies alone,
    with `arrow` for rows. `explain` is the path of the broker's positions page, from which it
    learns where messages that came alone have been.
    """

    endpoint: str
    topic: str
    messages: int
    seconds: float
    body_bytes: int = 0
    stamped: bool = False
    warm: int = 0
    direct: bool = True
    bodies: bool = False
    arrow: bool = False
    explain: str = ""


class Seen(msgspec.Struct):
    """What a load process saw. `seconds` run from its first send or pull to the last answer.

    `warm_messages` were sent before and do not count in a rate. `stored` is what the store holds at
    the end, from drivers that can ask it.
    """

    messages: int
    warm_messages: int
    seconds: float
    cpu_s: float
    latencies_ms: list[float]
    stored: int = -1
    stages: list[Stage] = []


def body_of(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[:size]


class _Sender:
    """Keeps a bounded number of messages unanswered, and times each."""

    def __init__(self, producer: Producer, order: Send) -> None:
        self._producer = producer
        self._order = order
        self._room = max(1, order.in_flight // order.batch)
        self._topics = cycle(order.topics)
        self._waiting: deque[tuple[SendFuture, float]] = deque()
        self._body = body_of(order.body_bytes)
        self._batch = [self._body] * order.batch
        self.sent = 0
        # an array, because an hour at full rate has tens of millions
        self.latencies_ms = array("d")

    def _settle(self, room: int) -> None:
        """Take what has been answered; wait until at most `room` are unanswered."""
        waiting = self._waiting
        while waiting and (len(waiting) > room or waiting[0][0].done()):
            future, since = waiting.popleft()
            error = future.exception(ANSWER_TIMEOUT_S)
            if error is not None:
                raise error
            if since:
                self.latencies_ms.append((time.perf_counter() - since) * 1000)

    def to_each_queue(self) -> None:
        """Send one message to each, so that none is new to the broker later."""
        for number in range(self._order.queues):
            topic, queue = divmod(number, MAX_QUEUES_PER_TOPIC)
            self._settle(self._room - 1)
            future = self._producer.send(self._order.topics[topic], self._body, queue=queue)
            self._waiting.append((future, 0.0))
        self.sent += self._order.queues
        self._settle(0)

    def at_full_rate(self, seconds: float, at_least: int = 0) -> None:
        """Send as a fast program would: it checks the clock, and one outcome, for several messages
        at a time. Frames are answered in order, and `flush` raises the failure of any."""
        batch, waiting = self._batch, self._waiting
        each = max(1, min(SAMPLE_EVERY, self._order.in_flight // 4) // len(batch))
        room = max(1, self._order.in_flight // (each * len(batch)))
        send = self._batches if len(batch) > 1 else self._singles
        until = time.perf_counter() + seconds
        sent = 0
        while (now := time.perf_counter()) < until or sent * len(batch) < at_least:
            # a backlog must have exactly as many as were ordered
            count = each if now < until else min(each, -(-at_least // len(batch)) - sent)
            self._settle(room - 1)
            waiting.append((send(count), now))
            sent += count
        self.sent += sent * len(batch)
        self._settle(0)
        self._producer.flush(ANSWER_TIMEOUT_S)

    def _singles(self, count: int) -> SendFuture:
        """Send `count` messages one by one. Returns the future of the last."""
        send, topics, body = self._producer.send, self._topics, self._body
        for _ in range(count):
            future = send(next(topics), body)
        return future

    def _batches(self, count: int) -> SendFuture:
        for _ in range(count):
            future = self._producer.send_batch(next(self._topics), self._batch)
        return future

    def at_a_rate(self, seconds: float, at_least: int = 0) -> None:
        """Send each message when it is due, late ones at once: none is left out."""
        rate = self._order.rate_per_s
        count = max(at_least, round(seconds * rate))
        stamps = 1 + self._order.explain
        rest = self._body[stamps * STAMP.size :]
        began_ns = time.monotonic_ns()
        for number in range(count):
            due_ns = began_ns + number * 1_000_000_000 // rate
            if (early_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(early_ns / 1e9)
            self._settle(self._room - 1)
            stamp = STAMP.pack(due_ns)
            if stamps > 1:
                stamp += STAMP.pack(time.monotonic_ns())
            future = self._producer.send(next(self._topics), stamp + rest)
            self._waiting.append((future, 0.0))
        self.sent += count
        self._settle(0)


def send(order: Send) -> Seen:
    """Carry out a Send. Raises the first error of a message."""
    with Producer(order.endpoint, ack=order.ack, ring=order.ring) as producer:
        sender = _Sender(producer, order)
        run = sender.at_a_rate if order.rate_per_s else sender.at_full_rate
        sender.to_each_queue()
        run(order.warm_s, order.warm_messages)
        warm, sender.latencies_ms = sender.sent, array("d")
        await_go()
        began, cpu_began = time.perf_counter(), time.process_time()
        run(order.seconds)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    stored = _await_stored(order, sender.sent) if order.consume else -1
    return Seen(sender.sent - warm, warm, seconds, cpu_s, thinned(sender.latencies_ms), stored)


def stored_in(consume: str, topics: list[str]) -> int:
    """How many messages the queues of these topics hold, by their offsets."""
    found = 0
    for topic in topics:
        with Consumer(consume, topic, start="latest", follow=False) as consumer:
            consumer.poll(None)
            found += sum(consumer.positions.values())
    return found


def _await_stored(order: Send, messages: int) -> int:
    """What is stored, once that is `messages` or the time is over."""
    until = time.monotonic() + ANSWER_TIMEOUT_S
    while (found := stored_in(order.consume, order.topics)) < messages:
        if time.monotonic() > until:
            break
    return found


def receive(order: Receive) -> Seen:
    """Carry out a Receive. Raises SystemExit for a topic that ends too early."""
    with _consumer(order, follow=True) as consumer:
        if not order.stamped:
            return _receive_backlog(order)
        _take(consumer, order.warm)
        await_go()
        began, cpu_began = time.perf_counter(), time.process_time()
        latencies_ms: list[float] = []
        followed = Followed(Path(order.explain)) if order.explain else None
        _take(consumer, order.messages, latencies_ms, followed)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    seen = Seen(order.messages, order.warm, seconds, cpu_s, thinned(latencies_ms))
    if followed is not None:
        seen.stages = followed.stages()
        followed.close()
    return seen


def _consumer(order: Receive, follow: bool) -> Consumer:
    return Consumer(order.endpoint, order.topic, follow=follow, direct=order.direct)


def _take(
    consumer: Consumer,
    messages: int,
    latencies_ms: list[float] | None = None,
    followed: Followed | None = None,
) -> None:
    """Take this many messages as they come, and record how late each is."""
    done = 0
    while done < messages:
        batch = consumer.poll(ANSWER_TIMEOUT_S)
        now_ns = time.monotonic_ns()
        if not batch:
            raise SystemExit(f"{done} of {messages} messages came")
        done += len(batch)
        if latencies_ms is not None:
            stamps = (STAMP.unpack_from(message.body)[0] for message in batch)
            latencies_ms.extend((now_ns - due_ns) / 1e6 for due_ns in stamps)
        if followed is not None and len(batch) == 1:
            end = batch[0].physical_offset + len(batch[0].record)
            due_ns, sent_ns = _TWO_STAMPS.unpack_from(batch[0].body)
            followed.follow(end, due_ns, sent_ns, now_ns)
    if done > messages:
        raise SystemExit(f"{done} messages came where {messages} were sent")


def _receive_backlog(order: Receive) -> Seen:
    """Read all bodies of a topic again and again; a latency is the time from batch to batch."""
    latencies_ms: list[float] = []
    messages = 0
    body = body_of(order.body_bytes)
    expected = order.messages * (len(body) + body[-1])
    if order.arrow:
        import penstock.client.arrow.columns  # noqa: F401 - not in the measured time
    await_go()
    began, cpu_began = time.perf_counter(), time.process_time()
    while not messages or time.perf_counter() - began < order.seconds:
        with _consumer(order, follow=False) as consumer:
            if order.arrow:
                done, touched = _touch_rows(consumer, latencies_ms)
            elif order.bodies:
                done, touched = _touch_bodies(consumer)
            else:
                done, touched = _touch(consumer, latencies_ms)
        if (done, touched) != (order.messages, expected):
            raise SystemExit(
                f"{order.topic} has {done} messages, not {order.messages}; their bodies come to "
                f"{touched} and not {expected}"
            )
        messages += done
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Seen(messages, 0, seconds, cpu_s, thinned(latencies_ms))


def _touch(consumer: Consumer, latencies_ms: list[float]) -> tuple[int, int]:
    """The number of messages, and the checksum of their bodies."""
    done = touched = 0
    since = time.perf_counter()
    while batch := consumer.poll(None):
        for message in batch:
            body = message.body
            touched += len(body) + body[-1]
        done += len(batch)
        now = time.perf_counter()
        latencies_ms.append((now - since) * 1000)
        since = now
    return done, touched


def _touch_bodies(consumer: Consumer) -> tuple[int, int]:
    """The same without seeing batches, and so without latencies."""
    done = touched = 0
    for body in consumer.bodies():
        touched += len(body) + body[-1]
        done += 1
    return done, touched


def _touch_rows(consumer: Consumer, latencies_ms: list[float]) -> tuple[int, int]:
    """The same by columns: the ends of the bodies show where their last bytes are."""
    import numpy as np

    done = touched = 0
    since = time.perf_counter()
    while (batch := consumer.poll_arrow(None)).num_rows:
        _, ends, data = batch.column("body").buffers()
        bounds = np.frombuffer(ends, np.int32)
        touched += int(bounds[-1] + np.frombuffer(data, np.uint8)[bounds[1:] - 1].sum())
        done += batch.num_rows
        now = time.perf_counter()
        latencies_ms.append((now - since) * 1000)
        since = now
    return done, touched


def thinned(values: Iterable[float]) -> list[float]:
    """At most MAX_SAMPLES of the values, evenly spaced in their order of size."""
    ordered = sorted(values)
    step = max(1, -(-len(ordered) // MAX_SAMPLES))
    return ordered[step // 2 :: step] if step > 1 else ordered


def await_go() -> None:
    print('{"ready":true}', flush=True)
    if not sys.stdin.readline():
        raise SystemExit("whoever measures is gone")


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Send | Receive)
    seen = send(order) if isinstance(order, Send) else receive(order)
    print(msgspec.json.encode(seen).decode(), flush=True)


if __name__ == "__main__":
    main()
