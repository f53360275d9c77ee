"""Programs in two groups on one broker, the load they work on, and what they wrote down so far."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

from penstock.chaos.broker import Broker
from penstock.chaos.clients.worker import ORDERLY, TOPICS
from penstock.chaos.work_history import (
    TOLD,
    Killed,
    Line,
    Owners,
    Queue,
    gone_back,
    in_hand_at_once,
    left_out,
    never_handled,
    read_lines,
    repeated,
    stored_too_often,
    unsaid,
)
from penstock.client.core.sending.frames import SendFuture
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer
from penstock.shared.errors import FlushTimeout, PenstockError
from penstock.shared.messaging.system_topics import retry_topic

QUEUES, KEYS = 6, 24
# Messages a second for each group, sent in steps.
RATE, STEP_S = 100, 0.05
# The longest time from the last strike until everything acknowledged is handled.
SETTLE_S = 120.0
END_S = 60.0
LOOK_S = 0.01
# Seconds between two checks whether a promise is broken: each reads all lines again.
CHECK_S = 1.0
# A program that was continued may be struck again only once others have heard of it.
AWAKE_S = 1.0


class RoundOver(Exception):
    """A promise is broken already, or the broker has ended by itself: the rest of the round would
    show nothing more and only add lines to read."""


class Program:
    """One worker."""

    def __init__(self, store: Path, place: Path, number: int) -> None:
        self.name = f"worker-{number}"
        self.history = place / f"{self.name}.history"
        self.said = place / f"{self.name}.said"
        self.history.touch()
        self.is_frozen = False
        self._awake_s = 0.0
        self._read = 0
        with self.said.open("ab") as said:
            worker = (sys.executable, "-m", "penstock.chaos.clients.worker")
            self.process = subprocess.Popen(
                [*worker, store, self.history], stdout=said, stderr=said
            )

    def freeze(self) -> None:
        self.is_frozen = True
        self.process.send_signal(SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(SIGCONT)
        self.is_frozen, self._awake_s = False, time.monotonic()

    @property
    def is_awake(self) -> bool:
        return not self.is_frozen and time.monotonic() - self._awake_s > AWAKE_S

    def new_lines(self) -> list[Line]:
        """The whole lines that the program has written since the last call."""
        with self.history.open("rb") as file:
            file.seek(self._read)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read += len(whole)
        return read_lines(self.name, whole.decode())


class Crew:
    """All programs that were ever started, and how their groups are doing."""

    def __init__(self, broker: Broker, place: Path) -> None:
        self.broker, self._place = broker, place
        self.programs: list[Program] = []
        self._ever: list[Program] = []
        self._lines: list[Line] = []
        # when the last look began: all older lines are read; and when promises were checked
        self._looked_ns = self._judged_ns = 0
        self._owners = Owners()
        self._kills: list[Killed] = []
        self.end_of_feed, self.feed_rests = threading.Event(), threading.Event()
        self._sent: dict[str, tuple[str, SendFuture]] = {}
        self._feed_error = ""
        with Producer(store=broker.store, timeout_ms=60_000) as producer:
            for topic in TOPICS.values():
                producer.create_topic(topic, QUEUES)

    # --- programs ---

    def start(self) -> None:
        """One more program."""
        program = Program(self.broker.store, self._place, len(self._ever))
        self._ever.append(program)
        self.programs.append(program)
        self.note(f"{program.name} starts")

    def awake(self) -> list[Program]:
        """Programs that may be struck; waits for one that was just continued."""
        while not (found := [each for each in self.programs if each.is_awake]):
            time.sleep(LOOK_S)
        return found

    def kill(self, program: Program) -> Killed:
        self.programs.remove(program)
        self.note(f"{program.name} is killed")
        gone = Killed(time.monotonic_ns(), program.name)
        program.process.send_signal(SIGKILL)
        program.process.wait()
        self._kills.append(gone)
        return gone

    def tell_to_leave(self, program: Program) -> Killed:
        self.programs.remove(program)
        self.note(f"{program.name} is told to leave")
        gone = Killed(time.monotonic_ns(), program.name)
        program.process.send_signal(SIGTERM)
        return gone

    def await_end(self, program: Program) -> list[str]:
        """Wait for a program that was told to leave; return what is wrong with how it ended."""
        try:
            code = program.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill(program)
            return [f"{program.name} has not left within {END_S:.0f} s"]
        # one that had not begun yet could not leave in order
        unborn = code == -SIGTERM and not program.history.stat().st_size
        return [f"{program.name} has left with code {code}"] if code and not unborn else []

    def kill_all(self) -> None:
        """Leave no process, whatever has happened."""
        for program in self._ever:
            program.process.kill()
            program.process.wait()

    def note(self, what: str) -> None:
        """Write down what is done to the programs, so that a kept round shows when."""
        with (self._place / "strikes").open("a") as file:
            file.write(f"{time.monotonic_ns()} {what}\n")

    # --- load ---

    def feed(self) -> None:
        """Send to both groups until `end_of_feed`."""
        try:
            with Producer(store=self.broker.store, timeout_ms=120_000) as producer:
                self._send_all(producer)
        except FlushTimeout:
            pass  # only the first refused message; others may have other errors: `_feed_errors`
        except PenstockError as error:
            self._feed_error = str(error)

    def _send_all(self, producer: Producer) -> None:
        number = 0
        while not self.end_of_feed.wait(STEP_S):
            if self.feed_rests.is_set():
                continue
            for _ in range(round(RATE * STEP_S)):
                number += 1
                key = f"k{number % KEYS}"
                for group, topic in TOPICS.items():
                    body = f"{group}.{key}.{number}"
                    future = producer.send(topic, body.encode(), shard=key)
                    self._sent[body] = group, future

    def _feed_errors(self) -> list[str]:
        """Why the load has ended early, and the errors with which messages were refused. A message
        that is stored but not known to be on disk counts as not sent: it has no receipt."""
        ended = [future for _, future in self._sent.values() if future.done()]
        errors = [error for each in ended if (error := each.exception(0)) is not None]
        refused = {str(each) for each in errors if not isinstance(each, FlushTimeout)}
        return sorted(refused | {self._feed_error} - {""})

    @property
    def acknowledged(self) -> list[tuple[str, str]]:
        """(group, body) of each message that has a receipt."""
        return [
            (group, body)
            for body, (group, future) in list(self._sent.items())
            if future.done() and future.exception(0) is None
        ]

    # --- what is written down ---

    def look(self) -> None:
        """Read what the programs have written since the last look."""
        self._looked_ns = time.monotonic_ns()
        for program in self._ever:
            lines = program.new_lines()
            self._lines += lines
            self._owners.take(lines)

    def wait_for(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Return whether it becomes so in time. Raises RoundOver if it may never do so."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            if is_so():
                return True
            if time.monotonic() > until:
                return False
            self.check()
            time.sleep(LOOK_S)

    def is_calm(self) -> bool:
        """Whether each living program has queues of each group, and each queue has one program."""
        now_ns = time.monotonic_ns()
        alive = {each.name for each in self.programs}
        for group, topic in TOPICS.items():
            queues = [(group, topic, queue_id) for queue_id in range(QUEUES)]
            owners = [self._owners.owner(queue, now_ns) for queue in queues]
            if set(owners) != alive:
                return False
        return True

    def had(self, gone: Killed) -> list[Queue]:
        self.look()
        return self._owners.had(gone.program, gone.at_ns)

    def taken_s(self, queue: Queue, gone: Killed) -> float:
        """Seconds from then until others had the queue; negative if they do not have it yet."""
        return self._owners.taken_ns(queue, gone) / 1e9

    def unsaid(self, queues: Iterable[Queue], program: Program | None = None) -> list[Queue]:
        """The queues in which this program, or any, began something and was not told it is done."""
        self.look()
        name = None if program is None else program.name
        return unsaid(
            each for each in self._lines if each.queue in queues and name in (None, each.program)
        )

    def has_lost(self, program: Program, queues: Iterable[Queue], since_ns: int) -> bool:
        """Whether the program knows by now that these queues are no longer its own."""
        self.look()
        lost = {
            each.queue
            for each in self._lines
            if each.what == "lost" and each.program == program.name and each.at_ns > since_ns
        }
        return lost >= set(queues)

    def check(self) -> None:
        """Raise RoundOver if there is no point in continuing."""
        if time.monotonic_ns() - self._judged_ns > CHECK_S * 1e9:
            if self.broken() or self.broker.process.poll() is not None:
                raise RoundOver
            self._judged_ns = time.monotonic_ns()

    def broken(self) -> list[str]:
        """Promises that are known by now to be broken."""
        self.look()
        # of two programs, the later line may be read before the line that it depends on
        return self._broken_by([each for each in self._lines if each.at_ns < self._looked_ns])

    def _broken_by(self, lines: list[Line]) -> list[str]:
        orderly = [each for each in lines if each.group == ORDERLY]
        return repeated(lines) + in_hand_at_once(orderly, self._kills) + gone_back(orderly)

    @property
    def handled(self) -> int:
        """How many times a handler has finished a message."""
        return sum(each.what == "end" for each in self._lines)

    # --- the end ---

    def settle(self) -> list[str]:
        """Wait until all is handled and make all programs leave; return the broken promises."""
        wrong = [f"the producer has failed: {each}" for each in self._feed_errors()]
        wrong += [
            f"{each.name} has ended by itself with code {each.process.returncode}: "
            f"{each.said.read_text()[-500:]}"
            for each in self.programs
            if each.process.poll() is not None
        ]
        if (code := self.broker.process.poll()) is not None:
            return [*wrong, f"the broker has ended with code {code}: {self.broker.output()[-500:]}"]
        if self.broken():
            for program in list(self.programs):  # some may be frozen, and would not leave
                self.kill(program)
            self.look()
            return wrong + self._judged()
        self.await_handled()
        for program in list(self.programs):
            self.tell_to_leave(program)
            wrong += self.await_end(program)
        self.look()
        for group in TOPICS:
            due = [body for each, body in self.acknowledged if each == group]
            left = never_handled(self._lines, group, due)
            if left:
                wrong.append(
                    f"{len(left)} of {len(due)} acknowledged messages are lost to {group}: "
                    f"{left[:TOLD]}"
                )
        return wrong + self._judged()

    def is_handled(self, groups: Collection[str]) -> bool:
        """Whether handlers of these groups have finished every message that was sent to them."""
        ended = {each.body for each in self._lines if each.what == "end"}
        sent = [future.done() for group, future in list(self._sent.values()) if group in groups]
        due = [body for group, body in self.acknowledged if group in groups]
        return all(sent) and all(body in ended for body in due)

    def await_handled(self, groups: Collection[str] = tuple(TOPICS)) -> bool:
        """Wait until these groups have handled everything; return whether they do so in time."""
        until = time.monotonic() + SETTLE_S
        while not (found := self.wait_for(lambda: self.is_handled(groups), 0)):
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        return found

    def _judged(self) -> list[str]:
        stored: list[tuple[str, str]] = []
        keys: dict[str, list[str]] = defaultdict(list)
        for group, topic in TOPICS.items():
            for where in (topic, retry_topic(group)):
                for body, key in self._stored(where):
                    stored.append((group, body))
                    if where == TOPICS[ORDERLY]:
                        keys[key].append(body)
        wrong = self._broken_by(self._lines) + stored_too_often(self._lines, stored)
        return wrong + left_out(self._lines, keys)

    def _stored(self, topic: str) -> list[tuple[str, str]]:
        """(body, sharding key) of each message of a topic, in the order of its queues. A retry
        topic exists only once its first message is stored."""
        with Producer(store=self.broker.store) as producer:
            if topic not in producer.topics():
                return []
        with Consumer(store=self.broker.store, topic=topic, follow=False) as consumer:
            found = [
                (each.queue_id, each.queue_offset, bytes(each.body).decode(), each.shard or "")
                for each in consumer
            ]
        return [(body, key) for _, _, body, key in sorted(found)]
