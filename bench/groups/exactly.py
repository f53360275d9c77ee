"""How fast is a program that reads, works and writes exactly once, and how fast without it?

One broker, one program, one topic with a backlog, and two topics for the outputs. The same inputs
are copied four ways, each by a group of its own:

    exactly     poll -> block of the outputs, with the offsets; waits until it is on disk
    once ahead  the same with some blocks on their way
    least       poll -> send the outputs -> wait until they are on disk -> commit
    least ahead poll -> send the outputs; acknowledges a batch once its outputs are on disk

The last two may store an output twice after a crash. `least` is the program that most people would
write first, `least ahead` the fastest one that loses nothing. The ways take turns.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from penstock.chaos.broker import Broker, fixed_ports
from penstock.client.core.sending.frames import SendFuture
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.message import GroupMessage
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable
from penstock.shared.store.directory import StoreDirectory

FROM, TO, QUEUES = "copied", ("copies-even", "copies-odd"), 4
OUTCOME_S = 120.0
# This many blocks, or batches of outputs, may be on their way.
AHEAD = 4
SETTINGS: dict[str, object] = {"mapped_file_size_commit_log_bytes": 256 << 20}
Moved = Callable[[int, int], None]


class Exactly(msgspec.Struct, frozen=True):
    """One run: inputs a second each way, and the ratios of exactly once to the rate without it,
    both waiting and both ahead."""

    messages: int
    batch: int
    exactly_per_s: int
    exactly_ahead_per_s: int
    least_per_s: int
    least_ahead_per_s: int
    ratio: float
    ratio_ahead: float
    load_1m: float


def bench_exactly(messages: int, batch: int, size: int, runs: int, moved: Moved) -> list[Exactly]:
    """Copy `messages` inputs each way, `runs` times. Raises StoreUnavailable."""
    place = Path(tempfile.mkdtemp(prefix="penstock-exactly-"))
    broker = Broker(place, {**SETTINGS, **fixed_ports()})
    try:
        broker.start()
        _feed(broker, messages, size)
        found = []
        ways = (_exactly, _exactly_ahead, _least, _least_ahead)
        for run in range(runs):
            rates = []
            for number, copy in enumerate(ways):
                rates.append(_rate(broker, f"{copy.__name__[1:]}-{run}", copy, messages, batch))
                moved(run * len(ways) + number + 1, runs * len(ways))
            _check(broker, messages, (run + 1) * len(ways))
            exactly, exactly_ahead, least, least_ahead = rates
            found.append(
                Exactly(
                    messages,
                    batch,
                    round(exactly),
                    round(exactly_ahead),
                    round(least),
                    round(least_ahead),
                    round(exactly / least, 2),
                    round(exactly_ahead / least_ahead, 2),
                    round(psutil.getloadavg()[0], 1),
                )
            )
        return found
    finally:
        broker.clear()
        shutil.rmtree(place)


def _check(broker: Broker, messages: int, copies: int) -> None:
    """Raises StoreUnavailable unless everything was copied this many times."""
    broker.await_dispatched()
    with StoreDirectory(broker.store) as store:
        found = sum(queue.max_offset for queue in store.queues() if queue.topic in TO)
    # each way consumes its first input by joining
    if found != copies * (messages - 1):
        raise StoreUnavailable(
            "not each input was copied once", f"{found} outputs, {copies} x {messages - 1}"
        )


def _feed(broker: Broker, messages: int, size: int) -> None:
    with Producer(store=broker.store) as producer:
        for topic in (FROM, *TO):
            producer.create_topic(topic, QUEUES)
        for number in range(messages):
            producer.send(FROM, b"%d" % number + b" " * (size - len(b"%d" % number)))
        producer.flush(OUTCOME_S)


# The last argument is the number of messages in a batch.
Copy = Callable[[Broker, GroupConsumer, int, int], None]


def _rate(broker: Broker, group: str, copy: Copy, messages: int, batch: int) -> float:
    """Inputs a second, from when the member has joined until all is committed."""
    with GroupConsumer(
        store=broker.store,
        group=group,
        topics=FROM,
        start="first",
        # batches on their way count as unfinished, and must not stop the polls
        max_messages=(AHEAD + 4) * batch,
        max_span=(AHEAD + 4) * batch,
    ) as consumer:
        while not consumer.poll(1.0, most=1):
            pass
        consumer.commit()
        began = time.monotonic()
        copy(broker, consumer, messages - 1, batch)
        return (messages - 1) / (time.monotonic() - began)


def _exactly(
    broker: Broker, consumer: GroupConsumer, messages: int, batch: int, ahead: int = 0
) -> None:
    done = 0
    while done < messages:
        taken = consumer.poll(1.0, most=batch)
        with consumer.exactly_once(ahead) as out:
            for message in taken:
                out.send(TO[message.queue_offset % 2], message.body)
        # the group has no other member, so nothing is taken back
        done += len(taken)
    consumer.commit()


def _exactly_ahead(broker: Broker, consumer: GroupConsumer, messages: int, batch: int) -> None:
    _exactly(broker, consumer, messages, batch, AHEAD)


def _least(broker: Broker, consumer: GroupConsumer, messages: int, batch: int) -> None:
    done = 0
    with Producer(store=broker.store) as producer:
        while done < messages:
            taken = consumer.poll(1.0, most=batch)
            for message in taken:
                producer.send(TO[message.queue_offset % 2], message.body)
            producer.flush(OUTCOME_S)
            consumer.commit()
            done += len(taken)


def _least_ahead(broker: Broker, consumer: GroupConsumer, messages: int, batch: int) -> None:
    done = 0
    on_way: deque[tuple[list[SendFuture], list[GroupMessage]]] = deque()

    def settle() -> None:
        futures, taken = on_way.popleft()
        for future in futures:
            future.result(OUTCOME_S)
        for message in taken:
            message.ack()

    with Producer(store=broker.store) as producer:
        while done < messages:
            taken = consumer.poll(1.0, most=batch)
            futures = [
                producer.send(TO[message.queue_offset % 2], message.body) for message in taken
            ]
            on_way.append((futures, list(taken)))
            done += len(taken)
            while len(on_way) > AHEAD:
                settle()
        while on_way:
            settle()
        consumer.commit()
