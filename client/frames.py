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

from penstock.shared.errors import ConnectError, PenstockError
from penstock.shared.message_id import offset_message_id
from penstock.shared.messages import Appended

FRAME_BYTES = 256 << 10
_log = logging.getLogger("penstock")


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    message_id: str
    unique_key: str
    store_timestamp_ms: int


class Frame:
    """Messages of one queue: open while they wait to leave, closed when they have."""

    __slots__ = (
        "topic",
        "queue_id",
        "ack",
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

    def __init__(self, topic: str, queue_id: int, ack: str) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.ack = ack
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

    def takes(self, size: int) -> bool:
        """Whether a record of `size` bytes still belongs in this frame."""
        return self.size + size <= FRAME_BYTES or not self._records

    def add(self, record: bytes, future: SendFuture) -> None:
        future.frame = self
        future.index = len(self._records)
        self._records.append(record)
        self._futures.append(future)
        self.size += len(record)
        if future.watched:
            self.watched = True

    def close(self, seq: int) -> None:
        """Nothing is added any more: the frame has its number and leaves."""
        self.seq = seq
        self.payload = b"".join(self._records)
        self._sizes = list(map(len, self._records))
        self._records = []

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
        if not self._starts:
            self._starts = [0, *accumulate(self._sizes)]
        runs = self.answer.runs
        run = next(run for run in reversed(runs) if run.first <= index)
        physical = run.physical_offset + self._starts[index] - self._starts[run.first]
        return Receipt(
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=run.queue_offset + index - run.first,
            physical_offset=physical,
            message_id=offset_message_id(self.answer.store_host, physical),
            unique_key=unique_key,
            store_timestamp_ms=self.answer.store_timestamp_ms,
        )


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
        """The error, or None when the message is stored. Waits up to `timeout` seconds."""
        self.seen = True
        if not self.done():
            with self._settled:
                if not self._settled.wait_for(self.done, timeout):
                    raise ConnectError(
                        "a message is answered within the timeout",
                        f"{timeout} s",
                        "it may still be stored; ask again",
                    )
        return self.error or (self.frame.error if self.frame is not None else None)

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
