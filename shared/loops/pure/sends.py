"""What a producer has under way: a send's outcome, and frames of runs that take messages.

In pure Python: the twin of what `compiled` has under the same names (see `active`). Only what
happens once per message is here. The client knows what a frame is made of and how it is sent, and
what a receipt is; it extends these classes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from penstock.shared.errors import PenstockError
from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.loops.forms import Draft
from penstock.shared.wire.messages import Appended


class KeyNumbers:
    """Gives the messages of one producer the numbers of their UNIQ_KEYs.

    The counter has 16 bits and wraps around, so keys are distinct for up to 65,536 messages in one
    millisecond. Under the producer's lock.
    """

    __slots__ = ("origin", "_count")

    def __init__(self, origin: KeyOrigin) -> None:
        self.origin = origin
        self._count = 0

    def next(self, now_ms: int) -> int:
        """What key_number computes, written out: the call would take as long as all the rest."""
        self._count = count = self._count + 1 & 0xFFFF
        return now_ms - self.origin.month_start_ms << 16 | count

    def several(self, now_ms: int, count: int) -> array[int]:
        """The numbers of a batch: its messages were all sent at `now_ms`."""
        return array("q", [self.next(now_ms) for _ in range(count)])


class FrameRun:
    """Consecutive messages of one queue in a frame.

    A batch is a run by itself, with one future for all its messages.
    """

    __slots__ = (
        "frame",
        "topic",
        "queue_id",
        "batch",
        "fixed",
        "drafts",
        "keys",
        "futures",
        "first",
        "count",
    )

    def __init__(self, frame: FrameOfRuns, topic: str, queue_id: int, batch: bool) -> None:
        self.frame = frame
        self.topic = topic
        self.queue_id = queue_id
        self.batch = batch
        # whether some message in it must go to this queue and no other
        self.fixed = False
        self.drafts: list[Draft] = []
        # the numbers of their UNIQ_KEYs
        self.keys = array("q")
        self.futures: list[Outcome] = []
        # set when the frame is closed: its messages are `count` from the frame's message `first` on
        self.first = self.count = 0


class FrameOfRuns:
    """Runs of messages that want the same acknowledgement, and the outcome of all of them.

    Futures find their outcome here, so an answer is stored once for a frame, instead of once for
    each message. Then exactly one of `answer` and `error` is set, and never changes.
    """

    __slots__ = ("ack", "size", "runs", "open_runs", "watched", "answer", "error", "stored")

    def __init__(self, ack: str) -> None:
        self.ack = ack
        # an upper limit, for any room that a broker may want in records
        self.size = 0
        self.runs: list[FrameRun] = []
        # the runs that still take messages: topic -> queue id -> run
        self.open_runs: dict[str, dict[int, FrameRun]] = {}
        # whether a callback waits for the outcome
        self.watched = False
        self.answer: Appended | None = None
        self.error: PenstockError | None = None
        # whether the answer is that everything was stored as asked
        self.stored = False

    def put(
        self,
        topic: str,
        queue_id: int,
        draft: Draft,
        size: int,
        future: Outcome,
        fixed: bool = False,
    ) -> None:
        """Take a message of at most `size` bytes; a `fixed` one must go to this queue."""
        run = self.open_runs.setdefault(topic, {}).get(queue_id)
        if run is None:
            run = self.open_runs[topic][queue_id] = FrameRun(self, topic, queue_id, False)
            self.runs.append(run)
        if fixed:
            run.fixed = True
        future.run, future.index = run, len(run.drafts)
        run.drafts.append(draft)
        run.keys.append(future.key)
        run.futures.append(future)
        self.size += size

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        drafts: list[Draft],
        size: int,
        future: Outcome,
        fixed: bool = False,
    ) -> None:
        """Take messages that are stored together. Later messages for the queue start another run,
        so that they are stored after these."""
        self.open_runs.get(topic, {}).pop(queue_id, None)
        run = FrameRun(self, topic, queue_id, True)
        run.fixed = fixed
        run.drafts = drafts
        assert future.keys is not None
        run.keys = future.keys
        run.futures.append(future)
        future.run = run
        self.runs.append(run)
        self.size += size


class Outcome:
    """The outcome of one send, now or later.

    A batch has one for all of its messages. `run` is None until the message is in a frame.
    """

    __slots__ = ("sender", "key", "keys", "run", "index", "error", "seen", "callbacks")

    def __init__(self, sender: Any, key: int, keys: array[int] | None = None) -> None:
        """`key`: the number of the message's UNIQ_KEY; for a batch the first of its `keys`.

        `sender` is for the subclass; nothing here uses it.
        """
        self.sender = sender
        self.key = key
        self.keys = keys
        self.run: FrameRun | None = None
        self.index = 0
        # for a message that is in no frame
        self.error: PenstockError | None = None
        # whether somebody has asked for the outcome
        self.seen = False
        self.callbacks: list[Callable[[Any], None]] | None = None

    def done(self) -> bool:
        """Whether the outcome is known."""
        if self.error is not None:
            return True
        run = self.run
        return run is not None and (run.frame.answer is not None or run.frame.error is not None)

    def ask(self) -> bool:
        """Note that somebody has asked for the outcome. Returns whether everything is stored.

        The producer itself reports those failures for which nobody has asked, and only those.
        """
        self.seen = True
        run = self.run
        return run is not None and run.frame.stored
