"""What a producer has in hand: messages, the frames they are packed into, and their outcome.

A frame is for one queue, and is answered as a whole; so one answer settles all its messages, and a
message's receipt is worked out only when somebody asks. No sockets, no threads of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import accumulate
from threading import Condition

import msgspec

from penstock.shared.errors import PUT_OK, ConnectError, FlushTimeout, PenstockError
from penstock.shared.message_id import offset_message_id
from penstock.shared.messages import Appended
from penstock.shared.record import Shape, reshape

FRAME_BYTES = 256 << 10
_log = logging.getLogger("penstock")


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is stored. A batch has one receipt: of its first message, with all ids.

    `message_id` and `unique_key` of a batch are joined by commas, as RocketMQ's are. `status` is
    PUT_OK; the receipt of a FlushTimeout says FLUSH_DISK_TIMEOUT.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    unique_key: str
    store_timestamp_ms: int
    status: str = PUT_OK


class Frame:
    """Messages of one queue: open while they wait to leave, closed when they have.

    A batch is a frame by itself, with one future for all its messages.
    """

    __slots__ = (
        "topic",
        "queue_id",
        "ack",
        "shape",
        "batch",
        "seq",
        "size",
        "payload",
        "retry",
        "since_ms",
        "answer",
        "error",
        "watched",
        "_records",
        "_futures",
        "_sizes",
        "_starts",
    )

    def __init__(
        self, topic: str, queue_id: int, ack: str, shape: Shape, batch: bool = False
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.ack = ack
        self.shape = shape
        self.batch = batch
        self.seq = 0
        self.size = 0
        self.payload = b""
        self.retry = False
        self.since_ms = 0
        self.answer: Appended | None = None
        self.error: PenstockError | None = None
        self.watched = False
        self._records: list[bytes] = []
        self._futures: list[SendFuture] = []
        self._sizes: list[int] = []
        self._starts: list[int] = []

    @property
    def count(self) -> int:
        return len(self._sizes)

    @property
    def futures(self) -> list[SendFuture]:
        """The messages' futures; none any more once the frame is settled."""
        return self._futures

    def takes(self, size: int, ack: str, shape: Shape) -> bool:
        """Whether another record, of `size` bytes, belongs in this frame."""
        if self.ack != ack or self.shape is not shape or self.batch:
            return False
        return self.size + size <= FRAME_BYTES

    def add(self, record: bytes, future: SendFuture) -> None:
        future.frame = self
        future.index = len(self._records)
        self._records.append(record)
        self._futures.append(future)
        self.size += len(record)
        if future.watched:
            self.watched = True

    def add_batch(self, records: list[bytes], future: SendFuture) -> None:
        self._records = records
        self._futures = [future]
        future.frame = self
        self.size = sum(map(len, records))
        self.watched = future.watched

    def close(self, seq: int) -> None:
        """Nothing is added any more: the frame has its number and leaves."""
        self.seq = seq
        self.payload = b"".join(self._records)
        self._sizes = list(map(len, self._records))
        self._records = []

    def reshape(self, shape: Shape) -> None:
        """Make a closed frame's records anew for a broker that wants other room in them."""
        self.shape = shape
        starts = [0, *accumulate(self._sizes)]
        records = [
            reshape(self.payload[at:end], shape)
            for at, end in zip(starts, starts[1:], strict=False)
        ]
        self.payload = b"".join(records)
        self._sizes = list(map(len, records))
        self.size = len(self.payload)

    def settle(self, answer: Appended | None, error: PenstockError | None) -> None:
        """Note the outcome of all messages, and tell those who asked to be told."""
        self.answer, self.error = answer, error
        self.payload = b""
        futures, self._futures = self._futures, []
        if self.watched:
            for future in futures:
                future.tell()

    def receipt(self, index: int, unique_key: str) -> Receipt:
        assert self.answer is not None
        queue_offset, physical = self._place(index)
        ids = [physical]
        if self.batch:
            ids = [self._place(each)[1] for each in range(self.count)]
        host = self.answer.store_host
        return Receipt(
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical,
            message_id=",".join(offset_message_id(host, each) for each in ids),
            unique_key=unique_key,
            store_timestamp_ms=self.answer.store_timestamp_ms,
            status=self.answer.status,
        )

    def _place(self, index: int) -> tuple[int, int]:
        """Queue offset and physical offset of a message of the frame."""
        assert self.answer is not None
        if not self._starts:
            self._starts = [0, *accumulate(self._sizes)]
        run = next(run for run in reversed(self.answer.runs) if run.first <= index)
        physical = run.physical_offset + self._starts[index] - self._starts[run.first]
        return run.queue_offset + index - run.first, physical

    def failure(self, index: int, unique_key: str) -> PenstockError | None:
        """Why a message is not stored as was asked for; None when it is."""
        if self.answer is None or self.answer.status == PUT_OK:
            return self.error
        error = FlushTimeout(
            "a message is on disk within the broker's sync_flush_timeout_ms",
            f"{self.topic}/{self.queue_id} is not, as far as is known",
            "it is stored and will be flushed: see the error's receipt, and do not send it again",
        )
        error.receipt = self.receipt(index, unique_key)
        return error


class SendFuture:
    """The outcome of one send, now or later."""

    __slots__ = ("_settled", "unique_key", "frame", "index", "error", "seen", "_callbacks")

    def __init__(self, settled: Condition, unique_key: str) -> None:
        self._settled = settled
        self.unique_key = unique_key
        self.frame: Frame | None = None
        self.index = 0
        self.error: PenstockError | None = None
        self.seen = False
        self._callbacks: list[Callable[[SendFuture], None]] | None = None

    def done(self) -> bool:
        """Whether the outcome is known."""
        frame = self.frame
        return self.error is not None or (
            frame is not None and (frame.answer is not None or frame.error is not None)
        )

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        """The error, or None when the message is stored as was asked for.

        Waits up to `timeout` seconds. A FlushTimeout has the receipt of a stored message.
        """
        self.seen = True
        if not self.done():
            with self._settled:
                if not self._settled.wait_for(self.done, timeout):
                    raise ConnectError(
                        "a message is answered within the timeout",
                        f"{timeout} s",
                        "it may still be stored; ask again",
                    )
        if self.error is not None or self.frame is None:
            return self.error
        return self.frame.failure(self.index, self.unique_key)

    def result(self, timeout: float | None = None) -> Receipt:
        """Where the message is stored. Raises its error; ConnectError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self.frame is not None
        return self.frame.receipt(self.index, self.unique_key)

    def add_done_callback(self, callback: Callable[[SendFuture], None]) -> None:
        """Call `callback(future)` once the outcome is known, from the producer's thread.

        What it raises is logged.
        """
        with self._settled:
            if not self.done():
                self._callbacks = [*(self._callbacks or ()), callback]
                if self.frame is not None:
                    self.frame.watched = True
                return
        callback(self)

    @property
    def watched(self) -> bool:
        """Whether somebody wants to be told of the outcome."""
        return self._callbacks is not None

    def fail(self, error: PenstockError) -> None:
        """Settle a message that is in no frame yet."""
        self.error = error
        self.tell()

    def tell(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:
                # other messages wait for this thread; the callback's caller is long gone
                _log.exception("a callback of message %s failed", self.unique_key)
