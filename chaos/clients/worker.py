"""A program with a member in each of two groups, which writes down what it is given, and when.

    python -m penstock.chaos.clients.worker STORE HISTORY

One group works with several handlers at a time, the other one in order. Each line of HISTORY is in
the file before the program goes on, so a kill removes none. Its last word is this machine's time in
ns, from one clock for all programs. See chaos/work_history.py for the lines.

Some messages fail when they come for the first time. SIGTERM ends the program in order; the program
waits for a broker that is away.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
import zlib

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.message import GroupMessage
from penstock.shared.errors import BrokerTimeout, ConnectError, StoreUnavailable

# group -> its topic; the second one is orderly
TOPICS = {"crew": "work", "line": "steps"}
ORDERLY = "line"
# Long, so that the end of a connection is seen before a session ends.
SESSION_MS = 5000
WORKERS = 3
# One of this many messages fails at first; a handler takes up to this many ms.
FAILS, MOST_MS = 40, 3
RETRY_S = 0.3
# Seconds between two looks at which queues are the member's, and how far they are committed.
LOOK_S = 0.01
EXIT_FAILED = 3
_WAIT_MS = 60_000


class Diary:
    """The lines of one member."""

    def __init__(self, handle: int, group: str) -> None:
        self._handle, self._group = handle, group

    def write(self, what: str, topic: str, queue_id: int, number: int, body: str = "-") -> None:
        now_ns = time.monotonic_ns()
        line = f"{what} {self._group} {topic} {queue_id} {number} {body} {now_ns}\n"
        os.write(self._handle, line.encode())


class Worker:
    """One member: its handler, and a thread that watches its queues."""

    def __init__(self, store: str, handle: int, group: str) -> None:
        self._diary = Diary(handle, group)
        self._consumer = GroupConsumer(
            store=store,
            group=group,
            topics=TOPICS[group],
            start="first",
            orderly=group == ORDERLY,
            session_timeout_ms=SESSION_MS,
            suspend_ms=50,
            wait_for_broker_ms=_WAIT_MS,
        )
        self._ended = threading.Event()

    def run(self) -> None:
        """Run until `stop`. Raises the error with which the member fails."""
        looking = threading.Thread(target=self._look, daemon=True)
        looking.start()
        try:
            self._consumer.run(self._handle, workers=WORKERS)
        finally:
            self._ended.set()
            looking.join()

    def stop(self) -> None:
        self._consumer.stop()

    def _handle(self, message: GroupMessage) -> None:
        record, body = message.message, bytes(message.body).decode()
        where = record.topic, record.queue_id, record.queue_offset
        self._diary.write("begin", *where, body)
        chance = zlib.crc32(body.encode())
        time.sleep(chance % 1000 / 1000 * MOST_MS / 1000)
        if not message.reconsume_times and not chance % FAILS:
            self._diary.write("again", *where, body)
            message.retry(delay=RETRY_S)
        else:
            self._diary.write("end", *where, body)

    def _look(self) -> None:
        owned: dict[tuple[str, int], int] = {}
        done: dict[tuple[str, int], int] = {}
        while not self._ended.wait(LOOK_S):
            try:
                loop = self._consumer.loop
            except StoreUnavailable:
                continue  # it has not joined yet
            with loop.lock:
                now = {name: queue.epoch for name, queue in loop.core.queues.items()}
                answered = dict(loop.core.membership.committed)
            for name, epoch in owned.items() - now.items():
                self._diary.write("lost", *name, epoch)
            for name, epoch in now.items() - owned.items():
                self._diary.write("own", *name, epoch)
            for name, offset in answered.items() - done.items():
                self._diary.write("done", *name, offset)
            owned, done = now, answered


def work(store: str, handle: int, group: str, leaving: threading.Event) -> None:
    """Be a member, and become one again whenever the broker was away for too long."""
    try:
        while not leaving.is_set():
            try:
                worker = Worker(store, handle, group)
                threading.Thread(target=_stop_later, args=(worker, leaving), daemon=True).start()
                worker.run()
            except (BrokerTimeout, ConnectError, StoreUnavailable) as error:
                print(f"{group}: {error}", file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(EXIT_FAILED)  # the other member is useless alone, and the judge sees the code


def _stop_later(worker: Worker, leaving: threading.Event) -> None:
    leaving.wait()
    worker.stop()


def main(store: str, history: str) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    handle = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    leaving = threading.Event()
    threads = [
        threading.Thread(target=work, args=(store, handle, group, leaving)) for group in TOPICS
    ]
    for thread in threads:
        thread.start()
    # Without a timeout: with one, Python returns from a freeze as if the signal had come.
    signal.sigwait((signal.SIGTERM,))
    leaving.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
