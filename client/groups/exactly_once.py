"""Exactly-once blocks of a consumer in ordinary code: `consumer.exactly_once()`.

    with consumer.exactly_once() as out:
        out.send("bills", bill_of(message.body))

The end of the block stores its outputs and the offsets of its inputs atomically, and waits until
they are on disk. The inputs are what the consumer has handed out since the last block. If another
member has done them meanwhile, nothing is stored, and the consumer goes on where that member is.
This file learns what a consumer has handed out only through `Source`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from penstock.client.core import log
from penstock.client.core.arguments import check_text
from penstock.client.core.blocks import Block, Input, Moves, Queue, Values
from penstock.client.core.send_options import MessageFields, whole_message
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import SendFuture
from penstock.client.sending.block_producer import BlockProducer
from penstock.shared.errors import (
    InvalidArgument,
    OffsetsMoved,
    PenstockError,
    StoreUnavailable,
)
from penstock.shared.messaging.offsets_record import NONE
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.names import check_group

# Called once, with whether a block is stored.
Tell = Callable[[bool], None]


class Source(Protocol):
    """A consumer, as far as blocks need it. `parts` are what a block has read, in its own form."""

    def inputs(self) -> Mapping[Queue, Input] | None:
        """What it has handed out since the last block; None if some of that was taken back.

        Raises InvalidArgument if earlier messages are not done, or others have some of these.
        """

    def on_way(self) -> Any:
        """The block of these inputs is sent, so they no longer belong to the next one. Returns the
        `parts` by which they are named from now on."""

    def done(self, parts: Any) -> None:
        """The block of these inputs is stored."""

    def go_on(self, offsets: Mapping[Queue, int], parts: Sequence[Any]) -> None:
        """Hand out these queues from these offsets on, and nothing else of them before that."""

    def back(self) -> None:
        """Hand out again what was handed out since the last block."""


class _Sent:
    """A block in flight: what it has read, what it moves, and the future of its frame."""

    __slots__ = ("future", "inputs", "moves", "parts", "tell")

    def __init__(
        self,
        inputs: Mapping[Queue, Input],
        moves: Moves,
        parts: Any,
        future: SendFuture,
        tell: Tell,
    ) -> None:
        self.inputs, self.moves, self.parts = inputs, moves, parts
        self.future, self.tell = future, tell


class ExactlyOnce:
    """One consumer's blocks, one after the other.

    Several blocks may be in flight. Each begins where the one before it ends, and the broker
    compares offsets: if it refuses one block, it refuses those after it on the same queues. So it
    does no harm that a block is believed to be stored too early; on a refusal, everything that was
    not stored is taken back.

    A thread that waits for the broker holds the lock, even if its caller has given up meanwhile.
    """

    def __init__(self, group: str, source: Source, connect: Callable[[], BlockProducer]) -> None:
        """`connect` makes the producer that stores the blocks, which is closed with this."""
        self._group = check_group(check_text("group", group))
        self._source = source
        self._connect = connect
        self._lock = threading.RLock()
        self._is_closed = False
        # the block that has begun and has not ended
        self._open: BlockOutputs | None = None
        self._producer: BlockProducer | None = None
        self._values = Values()
        self._on_way: deque[_Sent] = deque()
        # Inputs were taken back since the last block ended. The program may still have some of them
        # in hand, so its next outputs do not count.
        self._is_void = False

    @property
    def is_busy(self) -> bool:
        """Whether a block is in flight."""
        return bool(self._on_way)

    @property
    def producer(self) -> BlockProducer:
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(
                    "the consumer is closed", self._group, "make another one: GroupConsumer"
                )
            if self._producer is None:
                self._producer = self._connect()
                if self._is_closed:  # `close` came meanwhile, and found no producer to close
                    self._producer.close_at_once()
            # each time, because the question may have gone unanswered before
            self._producer.route(OFFSETS_TOPIC)
            return self._producer

    def begin(self, block: BlockOutputs) -> None:
        """Begin a block. Raises InvalidArgument while another one is open: nobody could tell to
        which of them the inputs belong, so the other stores nothing either, and all come again."""
        with self._lock:
            if self._open is not None:
                self._is_void = True
                raise InvalidArgument(
                    "another block of this consumer is open",
                    f"group {self._group}",
                    "end a block before the next one begins; give each thread or task a consumer",
                )
            self._open = block

    def end(self, block: Block, ahead: int, tell: Tell, error: BaseException | None) -> None:
        """End the open block: store it as `store` does or, after an error, have its inputs come
        again."""
        with self._lock:
            self._open = None
            if error is None:
                self.store(block, ahead, tell)
            else:
                self.again()

    def store(self, block: Block, ahead: int, tell: Tell) -> None:
        """Store a block, and go on after it. On return up to `ahead` blocks may be in flight.

        `tell` is called with True once the block is stored, and with False if somebody else has
        done its inputs or they come again. Raises the broker's refusal of this block or of an
        earlier one. Then the inputs come again, and the next block finds out whether this one was
        stored after all.
        """
        with self._lock:
            self._store_after(block, ahead, tell)

    def _store_after(self, block: Block, ahead: int, tell: Tell) -> None:
        self.settle(max(ahead - 1, 0))
        if self._is_void:
            self.again()
            tell(False)
            return
        try:
            inputs = self._source.inputs()
        except InvalidArgument:
            # others that have some of the inputs hear of it at the end of their block
            self.again()
            self._is_void = True
            raise
        if inputs is None:
            log().info("group %s: what a block has read was taken back meanwhile", self._group)
            self.again()
            tell(False)
            return
        if not inputs:
            if len(block):
                raise InvalidArgument(
                    "the block has outputs and no inputs",
                    f"{len(block)} messages",
                    "read from the consumer before the block, or send with a Producer",
                )
            tell(True)
            return
        parts = self._source.on_way()
        try:
            if ahead and self._values.knows(inputs):
                self._send(block, inputs, parts, tell)
            else:
                self._store(block, inputs, parts, tell)
        except BaseException:
            # find out which of the earlier blocks the broker has before any input comes again
            self._give_up()
            self._is_void = False
            self._values.forget(inputs, self._values.moves(inputs))
            self._source.go_on({name: each.begin for name, each in inputs.items()}, [parts])
            raise

    def _send(self, block: Block, inputs: Mapping[Queue, Input], parts: Any, tell: Tell) -> None:
        """Send a block after others, without waiting for its outcome."""
        producer = self.producer
        for topic in block.topics:
            producer.route(topic)
        moves = self._values.moves(inputs)
        future = producer.send_block(block, self._group, moves)
        # the next block relies on this, but the broker refuses it too if this one is refused
        self._values.stored(inputs)
        self._on_way.append(_Sent(inputs, moves, parts, future, tell))

    def _store(self, block: Block, inputs: Mapping[Queue, Input], parts: Any, tell: Tell) -> None:
        if not self.settle():
            # this block has read from queues that were taken back, so its inputs do not count
            self._source.go_on(self._places(inputs), [parts])
            self.again()
            tell(False)
            return
        if (passed := self._values.passed(inputs)) is not None:
            log().info("group %s: what a block has read is done: %s", self._group, passed)
            self._source.go_on(passed, [parts])
            tell(False)
            return
        producer = self.producer
        for topic in block.topics:
            producer.route(topic)
        while True:
            try:
                producer.send_block(block, self._group, self._values.moves(inputs)).result()
            except OffsetsMoved as error:
                back = self._values.moved(inputs, error)
                if back is None:
                    continue
                log().warning("group %s: nothing of a block is stored, %s", self._group, error)
                self._source.go_on(back, [parts])
                tell(False)
                return
            self._values.stored(inputs)
            self._source.done(parts)
            tell(True)
            return

    def settle(self, most: int = 0) -> bool:
        """Wait until at most this many blocks are in flight. False if one was refused; then none is
        in flight. Raises any other error of the broker."""
        with self._lock:
            return self._settle(most)

    def _settle(self, most: int) -> bool:
        while len(self._on_way) > most or self._on_way and self._on_way[0].future.done():
            sent = self._on_way[0]
            try:
                sent.future.result()
            except OffsetsMoved as error:
                log().warning("group %s: nothing of a block is stored, %s", self._group, error)
                self._take_back_refused()
                return False
            except BaseException:
                self._give_up()
                raise
            self._on_way.popleft()
            self._source.done(sent.parts)
            sent.tell(True)
        return True

    def _take_back_refused(self) -> None:
        """A block is refused. Each one after it has an outcome of its own: wait for them all."""
        refused = []
        while self._on_way:
            sent = self._on_way.popleft()
            try:
                sent.future.result()
            except OffsetsMoved as error:
                self._values.refused(sent.inputs, sent.moves, error)
                refused.append(sent)
            except BaseException:
                self._on_way.appendleft(sent)
                self._give_up(refused)
                raise
            else:
                # It was about other queues than the refused block, or another member had moved the
                # queue to where this block begins.
                self._values.stored(sent.inputs)
                self._source.done(sent.parts)
                sent.tell(True)
        self._go_on(refused)

    def _give_up(self, refused: Sequence[_Sent] = ()) -> None:
        """Nobody knows whether the blocks in flight are stored. Wait for the outcomes that can be
        known, and have the other inputs come again: the next block of a queue finds out."""
        left = list(refused)
        while self._on_way:
            sent = self._on_way.popleft()
            if sent.future.exception() is None:
                self._source.done(sent.parts)
                sent.tell(True)
            else:
                left.append(sent)
        for sent in reversed(left):
            self._values.forget(sent.inputs, sent.moves)
        self._go_on(left)

    def _go_on(self, left: Sequence[_Sent]) -> None:
        if not left:
            return
        self._is_void = True
        begins: dict[Queue, Input] = {}
        for sent in left:
            for name, each in sent.inputs.items():
                begins.setdefault(name, each)
        self._source.go_on(self._places(begins), [sent.parts for sent in left])
        for sent in left:
            sent.tell(False)

    def _places(self, inputs: Mapping[Queue, Input]) -> dict[Queue, int]:
        """Where queues go on: at their known offsets, or else where these inputs begin."""
        return {
            name: each.begin if (at := self._values.at(name)) == NONE else at
            for name, each in inputs.items()
        }

    def again(self) -> None:
        """Have the inputs since the last block come again."""
        with self._lock:
            self.settle()
            self._source.back()
            self._is_void = False

    def finish(self) -> None:
        """No more blocks will come: wait for all outcomes. The inputs of blocks that are not stored
        are left to other members."""
        try:
            self.settle()
        except PenstockError as error:
            log().warning(
                "group %s: whether a block is stored is not known: %s", self._group, error
            )

    def close(self, at_once: bool = False) -> None:
        """Wait until every block has its outcome; with `at_once`, give up those that have none."""
        # without the lock, because a thread that waits for the broker may hold it
        self._is_closed, producer = True, self._producer
        if producer is not None:
            producer.close_at_once() if at_once else producer.close()


class BlockOutputs:
    """What the program has of a block: its sends are stored with the block, or not at all.

    After the block `stored` says which: it is False if another member has done the inputs, or if
    they come again. For a block that is in flight it waits for the outcome.
    """

    def __init__(self, work: ExactlyOnce, ahead: int = 0) -> None:
        """`ahead` blocks may be in flight when this one ends."""
        self._work, self._ahead = work, ahead
        self._block = work.producer.block()
        self._open = self._ended = False
        self._stored: bool | None = None

    @property
    def stored(self) -> bool:
        """Whether the block is stored. Raises the broker's error if it becomes known here first."""
        if self._stored is None and not self._open:
            self._work.settle()
        return bool(self._stored)

    def _tell(self, stored: bool) -> None:
        self._stored = stored

    def send(self, topic: str, body: Body, **fields: Unpack[MessageFields]) -> None:
        """Send one message with the block; see `Producer.send` for its fields. All outputs of a
        block go in one frame, so their size is bounded (1 MiB or more, depending on the broker's
        largest message).

        Raises InvalidMessage or InvalidArgument for errors that can be found before sending.
        """
        if not self._open:
            raise StoreUnavailable(
                "the block has ended", topic, "send inside of: with consumer.exactly_once() as out"
            )
        self._block.add(topic, *whole_message(body, **fields))

    def __enter__(self) -> BlockOutputs:
        if self._ended:
            raise InvalidArgument(
                "the block has ended",
                None,
                "begin another one: with consumer.exactly_once() as out",
            )
        self._work.begin(self)
        self._open = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open, self._ended = False, True
        self._work.end(self._block, self._ahead, self._tell, error)
