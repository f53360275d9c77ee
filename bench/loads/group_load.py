"""One consumer that reads a topic from its beginning: plain, or a group's only member.

    python -m penstock.bench.loads.group_load ORDER      a Reading, as JSON

It follows the protocol of load processes in load.py. It times from the first message to the last.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from penstock.bench.loads.load import ANSWER_TIMEOUT_S, Seen, await_go
from penstock.client import Consumer, GroupConsumer

# Between two looks at a member's progress.
LOOK_S = 0.005
BATCH = 1000
# Commit only at the end; and as often as possible.
NEVER_MS, OFTEN_MS = 86_400_000, 1


class Reading(msgspec.Struct, frozen=True):
    """Read all `messages` of a topic: `plain`, by a handler of `batches`, or by a `handler` that
    gets one message at a time and does nothing. Offsets are committed every `commit_ms`. Plain and
    in batches, each body is read."""

    produce: str
    consume: str
    topic: str
    messages: int
    how: Literal["plain", "batches", "handler"]
    group: str = ""
    workers: int = 1
    commit_ms: int = 200


class Read(Seen):
    """What it saw, and how often it committed."""

    commits: int = 0


def read(order: Reading) -> Read:
    """Carry out the order. Raises SystemExit for another number of messages."""
    await_go()
    cpu_s = time.process_time()
    commits = 0
    if order.how == "plain":
        messages, seconds = _read_plain(order)
    else:
        messages, seconds, commits = _read_as_member(order)
    if messages != order.messages:
        raise SystemExit(f"{order.how}: {messages} messages came, not {order.messages}")
    return Read(messages, 0, seconds, time.process_time() - cpu_s, [], commits=commits)


def _read_plain(order: Reading) -> tuple[int, float]:
    done, began = 0, 0.0
    with Consumer(order.consume, order.topic, follow=False) as consumer:
        while batch := consumer.poll(None):
            began = began or time.perf_counter()
            _touch(batch)
            done += len(batch)
    return done, time.perf_counter() - began


def _touch(records: Iterable[Any]) -> int:
    touched = 0
    for record in records:
        body = record.body
        touched += len(body) + body[-1]
    return touched


def _read_as_member(order: Reading) -> tuple[int, float, int]:
    consumer = GroupConsumer(
        order.produce, order.group, order.topic, start="first", commit_ms=order.commit_ms
    )
    took: list[float] = []
    looking = threading.Thread(target=_look, args=(consumer, order, took), daemon=True)
    looking.start()
    if order.how == "handler":
        consumer.run(lambda message: None, workers=order.workers)
    else:
        consumer.run(lambda batch: _touch(batch.records), workers=order.workers, batch=BATCH)
    looking.join()
    seconds = took[0] if took else 0.0
    return sum(consumer.committed.values()), seconds, consumer.loop.core.commits


def _look(consumer: GroupConsumer, order: Reading, took: list[float]) -> None:
    """Stop the consumer when all is done, and append how long that took."""
    while not consumer.client_id:
        time.sleep(LOOK_S)
    began = time.perf_counter()
    until = began + ANSWER_TIMEOUT_S
    while True:
        done = sum(consumer.assignment.values())
        now = time.perf_counter()
        if not done:
            began = now  # the last look that found nothing: the next one may find all
        if done >= order.messages or now > until:
            took.append(now - began)
            consumer.stop()
            return
        time.sleep(LOOK_S)


def main() -> None:
    seen = read(msgspec.json.decode(sys.argv[1], type=Reading))
    print(msgspec.json.encode(seen).decode(), flush=True)


if __name__ == "__main__":
    main()
