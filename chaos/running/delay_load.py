"""A producer of delayed messages of all kinds, some of which it recalls just before they are due.

Each body says when the message is due. In the end each message that was acknowledged is in its
queue once and was not stored there before its time, and those of one level are in order. A message
whose recall was answered is not there.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from heapq import heappop, heappush

from penstock.chaos.broker import Broker
from penstock.client.core.message import Message
from penstock.client.core.sending.frames import SendFuture
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import InvalidArgument, InvalidMessage, PenstockError, StoreUnavailable

TOPIC, QUEUES = "delayed", 4
# A scheduler without progress for this many seconds is stuck.
STALL_S = 60
# Seconds to wait for an acknowledgement, or for stored records to reach a consumer.
WAIT_S = 60
_LEVEL_MS = 1000
# A message is recalled at most this long before it is due.
SOON_MS = 40


class DelayLoad:
    """A producer of delayed messages, and what it knows of them."""

    def __init__(self, broker: Broker, dice: random.Random) -> None:
        self._broker, self._dice = broker, dice
        self._producer = Producer(broker.produce)
        self._producer.create_topic(TOPIC, QUEUES)
        self._sent: list[tuple[str, SendFuture]] = []
        # those that may be recalled, by their time
        self._timed: list[tuple[int, str, SendFuture]] = []
        self._recalls: list[tuple[str, SendFuture]] = []

    def step(self, count: int = 20) -> None:
        """Send some more messages: by level, at a time, after a time; one kind lies in the past."""
        self._recall()
        for _ in range(count):
            number, kind = len(self._sent), self._dice.randrange(4)
            now_ms = time.time_ns() // 1_000_000
            wait_ms = self._dice.randint(1, 2000)
            body = f"{number} {now_ms + (_LEVEL_MS if kind == 0 else wait_ms)} {kind}"
            queue = self._dice.randrange(QUEUES)
            if kind == 0:
                future = self._producer.send(TOPIC, body.encode(), queue=queue, delay_level=1)
            elif kind == 1:
                delay = wait_ms / 1000
                future = self._producer.send(TOPIC, body.encode(), queue=queue, delay=delay)
            else:
                at_ms = now_ms + wait_ms
                future = self._producer.send(TOPIC, body.encode(), queue=queue, deliver_at=at_ms)
                heappush(self._timed, (at_ms, body, future))
            self._sent.append((body, future))

    def _recall(self) -> None:
        """Recall some of the messages that are due within a moment."""
        soon_ms = time.time_ns() // 1_000_000 + SOON_MS
        while self._timed and self._timed[0][0] <= soon_ms:
            _, body, future = heappop(self._timed)
            if future.done() and future.exception() is None and self._dice.random() < 0.5:
                with suppress(InvalidArgument):  # its time has come
                    recall = self._producer.recall(future.result())
                    recall.seen = True  # `finish` asks for it, however many have failed by then
                    self._recalls.append((body, recall))

    def finish(self) -> list[str]:
        """Wait until the scheduler has passed all messages; return what is wrong."""
        known, unsure, last = set[str](), set[str](), -1
        for body, future in self._sent:
            try:
                last = max(last, future.result(WAIT_S).physical_offset)
                known.add(body)
            except PenstockError:
                unsure.add(body)
        recalled = set[str]()
        for body, future in self._recalls:
            try:
                last = max(last, future.result(WAIT_S).physical_offset)
                recalled.add(body)
            except InvalidMessage:
                pass  # its time had come
            except PenstockError:
                unsure.add(body)
        known -= recalled | unsure
        self._await_passed(last)
        self._broker.await_dispatched()
        found: list[Message] = []
        with Consumer(self._broker.consume, topic=TOPIC, start="earliest") as consumer:
            missing = set(known)
            # all is in the queues by now: the timeout allows for a slow machine, not for a backlog
            while batch := consumer.poll(timeout=WAIT_S if missing else 1):
                found += batch
                missing -= {each.body.decode() for each in batch}
        return judge(known, unsure, found, recalled)

    def _await_passed(self, last: int) -> None:
        """Wait until no message up to this log offset is pending, however long a backlog takes.

        Raises StoreUnavailable once the scheduler makes no progress.
        """
        moved, moved_s = (-1, -1, -1), time.monotonic()
        while True:
            positions = self._broker.status()["positions"]
            if positions["delay_floor"] > last:
                return
            now = (positions["wrote"], positions["delivered"], positions["pending_delayed"])
            if now != moved:
                moved, moved_s = now, time.monotonic()
            elif time.monotonic() > moved_s + STALL_S:
                raise StoreUnavailable("the scheduler does not get on", now, self._broker.output())
            time.sleep(0.05)

    def close(self) -> None:
        self._producer._disconnect()


def judge(
    known: set[str], unsure: set[str], found: list[Message], recalled: Set[str] = frozenset()
) -> list[str]:
    """What is wrong with the messages that came: each known one must have come once and not early,
    and none that was recalled."""
    counts = Counter(each.body.decode() for each in found)
    wrong = []
    if back := recalled & counts.keys():
        wrong.append(f"{len(back)} of {len(recalled)} recalled messages came, such as {min(back)}")
    if lost := known - counts.keys():
        wrong.append(f"{len(lost)} delayed messages are lost, such as {min(lost)}")
    if twice := [body for body, count in counts.items() if count > 1]:
        wrong.append(f"{len(twice)} delayed messages came twice, such as {min(twice)}")
    if others := counts.keys() - known - unsure - recalled:
        wrong.append(f"messages came that nobody sent, such as {min(others)}")
    last: dict[int, int] = {}
    for each in found:
        number, due_ms, kind = (int(word) for word in each.body.decode().split())
        if each.store_timestamp_ms < due_ms:
            early_ms = due_ms - each.store_timestamp_ms
            wrong.append(f"message {number} came {early_ms} ms early")
        if kind == 0 and counts[each.body.decode()] == 1:
            if number < last.get(each.queue_id, -1):
                wrong.append(f"message {number} of a level stands after {last[each.queue_id]}")
            last[each.queue_id] = number
    return wrong[:10]
