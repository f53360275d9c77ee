"""What a producer has in hand: messages, the frames they are packed into, and their outcomes.

A frame has messages of any queues, grouped into one run per queue, and is answered as a whole. So
one answer settles all its messages; a message's receipt, and its UNIQ_KEY as text, are computed
only when somebody asks. No sockets, no threads of its own.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any, NamedTuple

import msgspec

from penstock.client.core import log
from penstock.client.core.arguments import check_timeout
from penstock.client.core.delays import Recall, recall_handle
from penstock.client.core.sending.encoding import Encoder, WaitingForm
from penstock.client.core.timeouts import no_outcome
from penstock.shared.errors import PUT_OK, FlushTimeout, PenstockError, StoreUnavailable
from penstock.shared.formats.message_id import KeyOrigin, make_unique_key, offset_message_id
from penstock.shared.loops.active import FrameOfRuns, FrameRun, Outcome
from penstock.shared.loops.forms import Draft
from penstock.shared.messaging.delayed import Delay
from penstock.shared.notebook import as_table
from penstock.shared.wire.messages import Appended, QueueRun, StoredRun


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is stored. A batch has one receipt: of its first message, with all ids.

    `message_id` and `unique_key` of a batch are joined by commas, as RocketMQ's are. `status` is
    PUT_OK; the receipt of a FlushTimeout says FLUSH_DISK_TIMEOUT. For a delayed message it names
    the place where the message waits. If the delay is not by level, the receipt has a handle that
    recalls the message.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    unique_key: str
    store_timestamp_ms: int
    status: str = PUT_OK
    recall_handle: str = ""

    def _repr_html_(self) -> str:
        return as_table("Receipt", msgspec.structs.asdict(self).items())


class Frame(FrameOfRuns):
    """Runs of messages: open while they wait to leave, closed when they leave."""

    __slots__ = ("seq", "retry", "since_ms", "tried", "whole", "_starts")

    # log offsets of the staging messages that hold its records
    staged: tuple[int, ...] = ()

    def __init__(self, ack: str) -> None:
        super().__init__(ack)
        self.seq = 0
        self.retry = False
        self.since_ms = 0
        # queues that have refused messages of this frame
        self.tried: tuple[int, ...] = ()
        # whether its messages are stored together or not at all
        self.whole = False
        self._starts: Sequence[int] = ()

    def close(self, seq: int) -> None:
        """Give the frame its number; nothing is added any more, and it leaves."""
        self.seq = seq
        self.open_runs.clear()
        first = 0
        for run in self.runs:
            run.first, run.count = first, len(run.drafts)
            first += run.count

    def pack(
        self, encoder: Encoder, into: bytearray | memoryview
    ) -> tuple[int, tuple[QueueRun, ...]]:
        """Write the frame's records. Returns how many bytes they take, and their runs for the
        broker. Raises PropertiesTooLarge."""
        starts = encoder.pack(into, [drafts_of(run) for run in self.runs])
        return starts[-1], self.packed(starts)

    def packed(self, starts: Sequence[int]) -> tuple[QueueRun, ...]:
        """Note where the records begin in the payload. Returns their runs for the broker."""
        self._starts = starts
        return tuple([_told(run) for run in self.runs])

    def halves(self, room: Callable[[str, Draft], int]) -> list[Frame]:
        """The same messages in two frames, which may be answered differently.

        `room` says how many bytes a message takes at most.
        """
        middle = len(self.runs) // 2
        made = []
        for runs in (self.runs[:middle], self.runs[middle:]):
            frame = Frame(self.ack)
            frame.retry, frame.since_ms, frame.watched = self.retry, self.since_ms, self.watched
            frame.tried = self.tried
            frame.size = sum(room(run.topic, draft) for run in runs for draft in run.drafts)
            frame.runs = runs
            for run in runs:
                run.frame = frame
            frame.close(self.seq)
            made.append(frame)
        return made

    @property
    def futures(self) -> list[Any]:
        """The messages' futures; empty once the frame is settled."""
        return [future for run in self.runs for future in run.futures]

    def counted_futures(self) -> list[tuple[str, int, Any]]:
        """Each future with its topic and the number of its messages."""
        return [
            (run.topic, len(future.keys or (0,)), future)
            for run in self.runs
            for future in run.futures
        ]

    @property
    def unsettled(self) -> int:
        """How many futures there are."""
        return sum([len(run.futures) for run in self.runs])

    def settle(self, answer: Appended | None, error: PenstockError | None) -> None:
        """Note the outcome of all messages, and tell those who asked to be told."""
        watched = self.futures if self.watched else ()
        for run in self.runs:
            run.drafts, run.futures = [], []
        self.runs = []
        self.stored = answer is not None and answer.status == PUT_OK
        self.answer, self.error = answer, error
        for future in watched:
            future.tell()

    def place(self, index: int) -> tuple[int, int]:
        """The queue offset and the physical offset of a message of the frame."""
        assert self.answer is not None
        stored = self.answer.runs
        run = stored[bisect_right(stored, index, key=_first_of) - 1]
        physical = run.physical_offset + self._starts[index] - self._starts[run.first]
        return run.queue_offset + index - run.first, physical


def drafts_of(run: FrameRun) -> tuple[str, int, list[Draft], array[int]]:
    """A run in the form that the encoder packs."""
    return run.topic, run.queue_id, run.drafts, run.keys


def _told(run: FrameRun) -> QueueRun:
    return QueueRun(run.topic, run.queue_id, run.count, run.batch)


def _first_of(run: StoredRun) -> int:
    return run.first


class Sender(NamedTuple):
    """What all futures of a producer share: where callers wait, and where keys come from."""

    settled: Condition
    origin: KeyOrigin
    endpoint: str = ""
    # the process whose thread settles the futures; 0: no thread does
    pid: int = 0


class SendFuture(Outcome):
    """The outcome of one send, now or later."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Where the message is stored, or its error's type. This does not count as asking for the
        outcome, so a failure stays unseen."""
        run = self.run
        topic = "" if run is None else f" to {run.topic}"
        if not self.done():
            return f"<SendFuture{topic}: no outcome yet>"
        error = self.error or (None if run is None else run.frame.error)
        if error is not None or run is None:
            return f"<SendFuture{topic}: {type(error).__name__}>"
        receipt = self._receipt(run)
        where = f"{run.queue_id}@{receipt.queue_offset}"
        return f"<SendFuture{topic}/{where}: {receipt.status}>"

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of the message; those of a batch joined by commas."""
        origin = self.sender.origin
        return ",".join([make_unique_key(origin, key) for key in self.keys or (self.key,)])

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        """The error, or None if the message is stored as it was to be.

        Waits up to `timeout` seconds. A FlushTimeout carries the receipt of a stored message.
        """
        return None if self.ask() else self._find_error(timeout)

    def _find_error(self, timeout: float | None) -> PenstockError | None:
        if not self.done():
            self._wait(check_timeout(timeout))
        if self.error is not None or self.run is None:
            return self.error
        frame = self.run.frame
        if frame.answer is None or frame.stored:
            return frame.error
        return self._late(self.run)

    def _wait(self, timeout: float | None) -> None:
        settled, _, endpoint, pid = self.sender
        if pid and pid != os.getpid():
            raise StoreUnavailable(
                "this process is a fork of the one that sent the message",
                endpoint,
                "only the process that sent a message can wait for its outcome",
            )
        with settled:
            if not settled.wait_for(self.done, timeout):
                raise no_outcome(endpoint, timeout)

    def _late(self, run: FrameRun) -> FlushTimeout:
        error = FlushTimeout(
            "the message is not known to be on disk within the broker's sync_flush_timeout_ms",
            f"{run.topic}/{run.queue_id}",
            "it is stored, and the error's receipt says where: do not send it again",
        )
        error.receipt = self._receipt(run)
        return error

    def result(self, timeout: float | None = None) -> Receipt:
        """Where the message is stored. Raises its error; BrokerTimeout after `timeout` seconds."""
        if not self.ask() and (error := self._find_error(timeout)) is not None:
            raise error
        assert self.run is not None
        return self._receipt(self.run)

    def _receipt(self, run: FrameRun) -> Receipt:
        frame = run.frame
        assert isinstance(frame, Frame) and frame.answer is not None
        answer, index = frame.answer, run.first + self.index
        queue_offset, physical = frame.place(index)
        ids = [physical]
        if run.batch:
            ids = [frame.place(index + each)[1] for each in range(run.count)]
        return Receipt(
            topic=run.topic,
            queue_id=run.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical,
            message_id=",".join([offset_message_id(answer.store_host, each) for each in ids]),
            unique_key=self.unique_key,
            store_timestamp_ms=answer.store_timestamp_ms,
            status=answer.status,
        )

    def add_done_callback(self, callback: Callable[[SendFuture], None]) -> None:
        """Call `callback(future)` from the producer's thread once the outcome is known.

        An exception from the callback is logged.
        """
        with self.sender.settled:
            if not self.done():
                self.callbacks = [*(self.callbacks or ()), callback]
                if self.run is not None:
                    self.run.frame.watched = True
                return
        self._call(callback)

    @property
    def watched(self) -> bool:
        """Whether a callback waits for the outcome."""
        return self.callbacks is not None

    def fail(self, error: PenstockError) -> None:
        """Settle a message that is in no frame yet."""
        self.error = error
        self.tell()

    def tell(self) -> None:
        callbacks, self.callbacks = self.callbacks, None
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callable[[SendFuture], None]) -> None:
        try:
            callback(self)
        except (Exception, SystemExit):
            # other messages wait for this thread; the callback's caller is long gone
            log().exception("a callback of message %s failed", self.unique_key)


class DelayedFuture(SendFuture):
    """The future of a message that waits as `delay` says before it comes into `topic`."""

    __slots__ = ("topic", "delay")

    topic: str
    delay: Delay

    def _receipt(self, run: FrameRun) -> Receipt:
        receipt = super()._receipt(run)
        if self.delay.level or self.delay.recalls:
            return receipt
        due_ms = self.delay.out_ms
        if self.delay.delay_ms:
            # the broker counts the delay from when it stores the message
            due_ms = max(due_ms, receipt.store_timestamp_ms + self.delay.delay_ms)
        handle = recall_handle(Recall(self.topic, due_ms, receipt.unique_key))
        return msgspec.structs.replace(receipt, recall_handle=handle)


def outcome_of(sender: Sender, key: int, topic: str, delay: WaitingForm | None) -> SendFuture:
    """The future of a message that is sent, which with a Delay is a DelayedFuture."""
    if not isinstance(delay, Delay):
        return SendFuture(sender, key)
    future = DelayedFuture(sender, key)
    future.topic, future.delay = topic, delay
    return future
